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
//! not change it. In the output of several jobs, a line feed in a comment may begin a record that Slurm did
//! not write. For decisions about many jobs use [`RunList`](crate::RunList), which has no texts of users.

mod allocated;
pub(crate) mod config;
mod job;
pub(crate) mod licenses;
mod record;

pub use allocated::parse_allocated_gres;
pub(crate) use job::parse_time_limit;
pub use job::{AdminComment, ArrayTask, HetComponent, SlurmJob};

use crate::error::InputError;

/// The message of `scontrol` (standard error, exit code 1) for a job that slurmctld does not know.
pub const UNKNOWN_JOB: &str = "Invalid job id specified";

/// Parses the output of `scontrol -o show job`. Records that cannot be read are errors of their own.
///
/// # Errors
///
/// If the output is neither a list of records nor `No jobs in the system`.
pub fn parse_jobs(text: &str) -> Result<Vec<Result<SlurmJob, InputError>>, InputError> {
    let records = record::split(text)?;
    Ok(records.into_iter().map(job::parse).collect())
}

/// Parses the output of `scontrol -o show job ID` and returns the job `id`. Slurm also prints the tasks of an
/// array, or the other components of a heterogeneous job.
///
/// # Errors
///
/// If the output has no record of the job, several, or one that cannot be read.
pub fn parse_job(text: &str, id: u32) -> Result<SlurmJob, InputError> {
    job::parse(record_of(text, id)?)
}

/// Returns the only record of a job.
fn record_of(text: &str, id: u32) -> Result<&str, InputError> {
    let mut records = record::split(text)?
        .into_iter()
        .filter(|record| record::job_id(record) == Some(id));
    let id_text = id.to_string();
    let error = |rule, fix| InputError::new("JobId", Some(&id_text), rule, fix);
    let Some(record) = records.next() else {
        return Err(error(
            "the output has no record of the job",
            "pass the output of scontrol -o show job ID",
        ));
    };
    if records.next().is_some() {
        return Err(error(
            "the output has two records of the job",
            "remove line feeds from names and comments of the job",
        ));
    }
    Ok(record)
}
