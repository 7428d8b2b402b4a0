//! The resources that a job has on its nodes, in the output of `scontrol -o -d show job`.

use super::record;
use crate::error::InputError;
use crate::gres::list::GresList;

/// Parses the output of `scontrol -o -d show job ID` and returns the resources that the job `id` has on the
/// first of its nodes. It has the same `vipu` on every node; other resources may differ.
///
/// # Errors
///
/// If [`parse_job`](crate::parse_job) refuses the output, or the nodes have different `vipu`.
pub fn parse_allocated_gres(text: &str, id: u32) -> Result<GresList, InputError> {
    // Slurm indents `Nodes=` also on one line.
    let text = collapse_blanks(text, "Nodes=");
    let core = record::core(super::record_of(&text, id)?)?;
    let error = |value: &str, rule: &str| {
        let fix = "ask for partitions with --gres=vipu:<size>:<count>";
        InputError::new("GRES", Some(value), rule, fix)
    };
    let values = core
        .text
        .split(' ')
        .filter_map(|token| token.strip_prefix("GRES="));
    let mut first: Option<GresList> = None;
    for value in values {
        let list: GresList = value
            .parse()
            .map_err(|_| error(value, "is not as Slurm prints it"))?;
        match &first {
            None => first = Some(list),
            Some(first) if first.named("vipu").eq(list.named("vipu")) => {}
            Some(_) => return Err(error(value, "the nodes of the job have different vipu resources")),
        }
    }
    first.ok_or_else(|| {
        let fix = "pass the output of scontrol -o -d show job of a running job";
        InputError::new("GRES", None, "the job has no nodes", fix)
    })
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
