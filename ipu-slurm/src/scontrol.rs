//! Output of `scontrol -o show job`: one record a line, `Key=value` separated by blanks.
//!
//! Users choose some of the values (JobName, Account, Comment, Command, WorkDir), and those may contain
//! blanks, line feeds and `Key=`. The parser relies on the order in which Slurm prints the keys:
//!
//! 1. `JobId`, ids of arrays and heterogeneous jobs, then `JobName` with a value of any text;
//! 2. `UserId` to `QOS` or `WCKey`: exactly these keys, values without blanks;
//! 3. the core, `JobState` to `Licenses`: values without blanks, the keys read here once each and in order;
//! 4. the rest from `Network` on, with values of any text. Only AdminComment is read from there.
//!
//! A record with two possible cores is refused as ambiguous: a user can spoil the record of an own job, but
//! not change it. A line feed in a text may end a record early and begin one that Slurm did not write. So
//! [`parse_job`] and [`parse_allocated_gres`] refuse output of several lines, also that of arrays and
//! heterogeneous jobs. [`parse_squeue_job`](crate::parse_squeue_job),
//! [`parse_squeue_gres`](crate::parse_squeue_gres) and [`RunList`](crate::RunList) read no texts of users.

mod allocated;
pub(crate) mod config;
mod job;
pub(crate) mod licenses;
mod record;

pub use allocated::parse_allocated_gres;
pub(crate) use job::parse_time_limit;
pub use job::{AdminComment, ArrayTask, HetComponent, SlurmJob};

use crate::error::InputError;

/// The beginning of every AdminComment of ours. One that begins otherwise is never replaced.
pub const ADMIN_COMMENT_PREFIX: &str = "vipu: ";

/// Returns whether an AdminComment may be replaced: it is absent, or one of ours.
#[must_use]
pub fn may_replace(comment: &AdminComment) -> bool {
    match comment {
        AdminComment::Absent => true,
        AdminComment::Text(text) => text.is_empty() || text.starts_with(ADMIN_COMMENT_PREFIX.trim_end()),
        AdminComment::Ambiguous => false,
    }
}

/// The message of `scontrol` (standard error, exit code 1) for a job that slurmctld does not know.
pub const UNKNOWN_JOB: &str = "Invalid job id specified";

/// Parses the output of `scontrol -o show job`. Records that cannot be read are errors of their own. A user
/// can forge records of any job: the result decides nothing.
///
/// # Errors
///
/// If the output is neither a list of records nor `No jobs in the system`.
pub fn parse_jobs(text: &str) -> Result<Vec<Result<SlurmJob, InputError>>, InputError> {
    let records = record::split(text)?;
    Ok(records.into_iter().map(job::parse).collect())
}

/// Parses the output of `scontrol -o show job ID` and returns the job `id`.
///
/// # Errors
///
/// If the output is not exactly one line, or not the record of the job, or cannot be read. It has several
/// lines for arrays and heterogeneous jobs too: [`parse_squeue_job`](crate::parse_squeue_job) reads those.
pub fn parse_job(text: &str, id: u32) -> Result<SlurmJob, InputError> {
    job::parse(record_of(text, id)?)
}

/// Returns the AdminComment of the job `id` in the output of `scontrol -o show job ID`, which may have
/// several lines, such as those of other tasks of an array. Only the choice whether to replace a comment may
/// rely on it. With two records of the job, a comment that is not ours makes it ambiguous.
#[must_use]
pub fn admin_comment_in(text: &str, id: u32) -> AdminComment {
    const KEY: &str = "AdminComment=";
    let mut comments = text.split(KEY).skip(1).peekable();
    if comments.peek().is_none() {
        return AdminComment::Absent;
    }
    let are_ours = comments.all(|comment| comment.starts_with(ADMIN_COMMENT_PREFIX.trim_end()));
    let records = record::split(text).unwrap_or_default();
    let mut records = records.into_iter().filter(|one| record::job_id(one) == Some(id));
    let own = records.next();
    if records.next().is_some() && !are_ours {
        return AdminComment::Ambiguous;
    }
    let core = own.and_then(|one| record::core(one).ok());
    core.map_or(AdminComment::Ambiguous, |core| {
        job::parse_admin_comment(core.after)
    })
}

/// Returns the record of a job, if it is the only line of the output.
fn record_of(text: &str, id: u32) -> Result<&str, InputError> {
    let record = text.trim_end_matches('\n');
    let id_text = id.to_string();
    let error = |rule, fix| InputError::new("JobId", Some(&id_text), rule, fix);
    if record::job_id(record) != Some(id) {
        return Err(error(
            "the output has no record of the job",
            "pass the output of scontrol -o show job ID",
        ));
    }
    if record.contains('\n') {
        return Err(error(
            "the output has several lines, and a text of the user may have added them",
            "pass the output of squeue",
        ));
    }
    Ok(record)
}
