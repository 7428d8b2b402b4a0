//! A job of `squeue`, for jobs whose texts make the record of `scontrol` ambiguous.

use super::error;
use crate::error::{InputError, decimal};
use crate::job_state::JobState;
use crate::run::RunId;
use crate::scontrol::{AdminComment, ArrayTask, HetComponent, SlurmJob, parse_time_limit};

/// The arguments of `squeue` for [`parse_squeue_job`], besides `--jobs=ID`. Its environment needs
/// `SLURM_TIME_FORMAT=%s`.
pub const SQUEUE_JOB_ARGS: [&str; 5] = [
    "--noheader",
    "--all",
    "--states=all",
    "--local",
    // No text that a user chooses. Licenses are the last, because they may contain '|'.
    "--Format=JobID:0|,ArrayJobID:0|,ArrayTaskID:0|,HetJobID:0|,HetJobOffset:0|,UserName:0|,UserID:0|,State:0|,\
     Reason:0|,RestartCnt:0|,TimeLimit:0|,SubmitTime:0|,StartTime:0|,NodeList:0|,Licenses:0|",
];
/// The number of fields of a line.
const FIELDS: usize = 15;
/// A field without a value.
pub(super) const NONE: [&str; 3] = ["", "N/A", "(null)"];

/// Parses the output of `squeue` with [`SQUEUE_JOB_ARGS`] and returns the job `id`. Its name is empty, it has
/// no account, and its AdminComment is [`AdminComment::Ambiguous`]: `squeue` cannot show them safely.
///
/// # Errors
///
/// If the output does not have exactly one line of the job, or one with other fields.
pub fn parse_squeue_job(text: &str, id: u32) -> Result<SlurmJob, InputError> {
    let prefix = format!("{id}|");
    let mut lines = text.lines().filter(|line| line.starts_with(&prefix));
    let line = match (lines.next(), lines.next()) {
        (Some(line), None) => line,
        _ => return Err(error(&prefix, "the output has one line of the job")),
    };
    let fields: Vec<&str> = line.splitn(FIELDS, '|').collect();
    let [
        _,
        array,
        array_task,
        het,
        het_offset,
        user,
        uid,
        state,
        reason,
        restarts,
        time_limit,
        submitted,
        started,
        nodes,
        licenses,
    ] = fields.as_slice()
    else {
        return Err(error(line, "a line has fifteen fields, each followed by '|'"));
    };
    let licenses = licenses
        .strip_suffix('|')
        .ok_or_else(|| error(line, "the last field is followed by '|'"))?;
    let number =
        |text: &str| decimal(text).ok_or_else(|| error(line, "the job has numbers as Slurm prints them"));
    let is_set = |text: &&str| !NONE.contains(text);
    // Only the seconds since 1970 are the same in every zone.
    RunId::from_submit_time(submitted)?;
    Ok(SlurmJob {
        id,
        array: match Some(*array_task).filter(is_set) {
            Some(task) => Some(ArrayTask {
                job_id: number(array)?,
                task_id: task.to_owned(),
            }),
            None => None,
        },
        het: match Some(*het).filter(is_set) {
            Some(het) => Some(HetComponent {
                job_id: number(het)?,
                offset: number(het_offset)?,
            }),
            None => None,
        },
        name: String::new(),
        user: (*user).to_owned(),
        uid: number(uid)?,
        account: None,
        state: JobState::parse(state).ok_or_else(|| error(line, "State is a word"))?,
        reason: (*reason).to_owned(),
        restarts: number(restarts)?,
        time_limit: parse_time_limit(time_limit)?,
        submit_time: (*submitted).to_owned(),
        start_time: (*started).to_owned(),
        node_list: Some(*nodes).filter(is_set).map(str::to_owned),
        licenses: licenses.to_owned(),
        admin_comment: AdminComment::Ambiguous,
    })
}
