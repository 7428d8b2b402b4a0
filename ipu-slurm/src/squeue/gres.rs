//! The requested GRES of a job in `squeue`, for jobs whose texts make the record of `scontrol` ambiguous.

use super::error;
use super::job::NONE;
use crate::error::InputError;
use crate::gres::GresList;

/// The arguments of `squeue` for [`parse_squeue_gres`], besides `--jobs=ID`.
pub const SQUEUE_GRES_ARGS: [&str; 5] = [
    "--noheader",
    "--all",
    "--states=all",
    "--local",
    "--Format=JobID:0|,tres-per-job:0|,tres-per-socket:0|,tres-per-task:0|,tres-per-node:0|",
];
/// The fix for a request that cannot be read.
const FIX: &str = "ask for partitions with --gres=vipu:<size>:<count>";
/// The resource of this project.
const GRES_NAME: &str = "vipu";

/// Parses the output of `squeue` with [`SQUEUE_GRES_ARGS`] and returns the resources that the job `id`
/// requested for each node; none if `vipu` is not among them.
///
/// # Errors
///
/// If the output does not have exactly one line of the job, the line has other fields, or the job requested
/// `vipu` for anything but nodes, or without a type: Slurm has chosen it then.
///
/// ```
/// use ipu_slurm::parse_squeue_gres;
///
/// let list = parse_squeue_gres("7|N/A|N/A|N/A|gres/vipu:2:4,gres/gpu:1|\n", 7)?;
/// assert_eq!(list.to_string(), "vipu:2:4,gpu:1");
/// assert_eq!(
///     parse_squeue_gres("7|N/A|N/A|N/A|gres/vipu:2|\n", 7).unwrap_err().to_string(),
///     "GRES = gres/vipu:2: must name the size of the partition; \
///      ask for partitions with --gres=vipu:<size>:<count>",
/// );
/// # Ok::<(), ipu_slurm::InputError>(())
/// ```
pub fn parse_squeue_gres(text: &str, id: u32) -> Result<GresList, InputError> {
    let prefix = format!("{id}|");
    let mut lines = text.lines().filter(|line| line.starts_with(&prefix));
    let line = match (lines.next(), lines.next()) {
        (Some(line), None) => line,
        _ => return Err(error(&prefix, "the output has one line of the job")),
    };
    let fields: Vec<&str> = line.split('|').collect();
    let [_, others @ .., per_node, ""] = fields.as_slice() else {
        return Err(error(line, "a line has five fields, each followed by '|'"));
    };
    if others.len() != 3 {
        return Err(error(line, "a line has five fields, each followed by '|'"));
    }
    if let Some(other) = others.iter().find(|other| other.contains(GRES_NAME)) {
        return Err(InputError::new(
            "GRES",
            Some(other),
            "partitions are counted for each node",
            FIX,
        ));
    }
    if NONE.contains(per_node) || !per_node.contains(GRES_NAME) {
        return Ok(GresList::default());
    }
    let list: GresList = per_node
        .parse()
        .map_err(|_| error(line, "tres-per-node is a list of resources"))?;
    if list.named(GRES_NAME).any(|gres| gres.kind().is_none()) {
        return Err(InputError::new(
            "GRES",
            Some(per_node),
            "must name the size of the partition",
            FIX,
        ));
    }
    Ok(list)
}
