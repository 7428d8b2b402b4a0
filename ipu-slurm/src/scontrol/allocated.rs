//! The resources that a job has on its nodes, in the output of `scontrol -o -d show job`.

use super::record;
use crate::error::InputError;
use crate::gres::list::GresList;

/// Parses the output of `scontrol -o -d show job ID` and returns the resources that the job `id` has on each
/// of its nodes. A job that asked with `--gres` has the same on every node.
///
/// # Errors
///
/// If there is no record of the job that can be read, or its nodes have different resources.
pub fn parse_allocated_gres(text: &str, id: u32) -> Result<GresList, InputError> {
    // Slurm indents `Nodes=` also on one line.
    let text = collapse_blanks(text, "Nodes=");
    let core = record::core(super::record_of(&text, id)?)?;
    let mut values = core
        .text
        .split(' ')
        .filter_map(|token| token.strip_prefix("GRES="));
    let error = |value: &str, rule: &str| {
        let fix = "ask for partitions with --gres=vipu:<size>:<count>";
        Err(InputError::new("GRES", Some(value), rule, fix))
    };
    let Some(first) = values.next() else {
        let fix = "pass the output of scontrol -o -d show job of a running job";
        return Err(InputError::new("GRES", None, "the job has no nodes", fix));
    };
    if let Some(other) = values.find(|value| *value != first) {
        return error(other, "the nodes of the job have different resources");
    }
    match first.parse() {
        Ok(list) => Ok(list),
        Err(_) => error(first, "is not as Slurm prints it"),
    }
}

/// Replaces several blanks before a key by one.
fn collapse_blanks(text: &str, key: &str) -> String {
    let mut parts = text.split(key).peekable();
    let mut collapsed = String::with_capacity(text.len());
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            collapsed.push_str(part);
            break;
        }
        let trimmed = part.trim_end_matches(' ');
        collapsed.push_str(trimmed);
        if trimmed.len() < part.len() {
            collapsed.push(' ');
        }
        collapsed.push_str(key);
    }
    collapsed
}
