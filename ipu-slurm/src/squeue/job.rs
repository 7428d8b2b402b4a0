//! A job of `squeue`.
//!
//! `scontrol show job` prints texts of users, such as the name of the job, between the values. `squeue`
//! prints the values that are asked for, and users choose none of these.

use super::error;
use crate::conf::LicenseList;
use crate::error::{InputError, decimal};
use crate::job_state::JobState;
use crate::run::RunId;

/// The arguments of `squeue` for [`parse_squeue_job`], besides `--jobs=ID`. Its environment needs
/// `SLURM_TIME_FORMAT=%s`.
pub const SQUEUE_JOB_ARGS: [&str; 5] = [
    "--noheader",
    "--all",
    "--states=all",
    "--local",
    // Licenses may contain '|', but not twice in a row. The last value is of administrators.
    "--Format=JobID:0|,ArrayJobID:0|,ArrayTaskID:0|,State:0|,Reason:0|,TimeLimit:0|,SubmitTime:0|,NodeList:0|,\
     Licenses:0||,admin_comment:0",
];
/// The number of fields of a line, with licenses and comment as one.
const FIELD_COUNT: usize = 9;
/// A field without a value.
pub(super) const NONE: [&str; 3] = ["", "N/A", "(null)"];
/// The message of `squeue` (standard error, exit code 1) for a job that slurmctld does not know.
pub const UNKNOWN_JOB: &str = "Invalid job id specified";

/// A job as `squeue` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlurmJob {
    /// The job id. Each task of an array and each component of a heterogeneous job has its own.
    pub id: u32,
    /// The place in an array.
    pub array: Option<ArrayTask>,
    /// The state.
    pub state: JobState,
    /// The reason, such as `Licenses`.
    pub reason: String,
    /// The time limit in seconds; none without limit.
    pub time_limit: Option<u64>,
    /// The submission of this run in seconds since 1970.
    pub submit_time: String,
    /// The allocated nodes; none for an empty list. While the job completes, those that are not done.
    pub node_list: Option<String>,
    /// The requested licenses as Slurm prints them.
    pub licenses: String,
    /// The first line of the comment of an administrator, or of ours.
    pub admin_comment: Option<String>,
}

/// The place of a job in an array.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArrayTask {
    /// The id of the array.
    pub job_id: u32,
    /// The task, or the set of tasks that are pending together, such as `3-5%2`.
    pub task_id: String,
}

impl SlurmJob {
    /// Returns the id by which `scontrol` changes this job alone. One task of an array has the id of the
    /// array, which addresses all tasks. None for a set of pending tasks that Slurm has abbreviated.
    ///
    /// ```
    /// use ipu_slurm::parse_squeue_job;
    ///
    /// let pending = "1|1|2-5%1|PENDING|Licenses|1:00|1795617923||pod64:2||(null)\n";
    /// assert_eq!(parse_squeue_job(pending, 1)?.scontrol_id().as_deref(), Some("1_[2-5]"));
    /// let running = "2|1|1|RUNNING|None|1:00|1795617923|n1|pod64:2||(null)\n";
    /// assert_eq!(parse_squeue_job(running, 2)?.scontrol_id().as_deref(), Some("1_1"));
    /// # Ok::<(), ipu_slurm::InputError>(())
    /// ```
    #[must_use]
    pub fn scontrol_id(&self) -> Option<String> {
        let Some(ArrayTask { job_id, task_id }) = &self.array else {
            return Some(self.id.to_string());
        };
        if decimal::<u32>(task_id).is_some() {
            return Some(format!("{job_id}_{task_id}"));
        }
        let (tasks, _) = task_id.split_once('%').unwrap_or((task_id, ""));
        let is_set = !tasks.is_empty() && tasks.bytes().all(|b| b.is_ascii_digit() || b",-".contains(&b));
        is_set.then(|| format!("{job_id}_[{tasks}]"))
    }

    /// Parses the requested licenses.
    #[must_use]
    pub fn license_list(&self) -> LicenseList {
        LicenseList::parse("Licenses", &self.licenses)
    }
}

/// Parses the output of `squeue` with [`SQUEUE_JOB_ARGS`] and returns the job `id`.
///
/// # Errors
///
/// If the output does not have exactly one line of the job, or one with other fields.
///
/// ```
/// use ipu_slurm::{JobState, parse_squeue_job};
///
/// let text = "7|7|N/A|RUNNING|None|1-02:04:00|1795617923|n1|pod64:2||vipu: waits for 2 IPUs\n";
/// let job = parse_squeue_job(text, 7)?;
/// assert_eq!((job.state.clone(), job.time_limit), (JobState::Running, Some(93_840)));
/// assert_eq!(job.license_list().count("pod64"), Some(2));
/// assert_eq!(job.admin_comment.as_deref(), Some("vipu: waits for 2 IPUs"));
/// # Ok::<(), ipu_slurm::InputError>(())
/// ```
pub fn parse_squeue_job(text: &str, id: u32) -> Result<SlurmJob, InputError> {
    let prefix = format!("{id}|");
    let mut lines = text.lines().filter(|line| line.starts_with(&prefix));
    let line = match (lines.next(), lines.next()) {
        (Some(line), None) => line,
        _ => return Err(error(&prefix, "the output has one line of the job")),
    };
    let fields: Vec<&str> = line.splitn(FIELD_COUNT, '|').collect();
    let [
        _,
        array,
        array_task,
        state,
        reason,
        time_limit,
        submitted,
        nodes,
        rest,
    ] = fields.as_slice()
    else {
        return Err(error(line, "a line has ten fields"));
    };
    let (licenses, comment) = rest
        .split_once("||")
        .ok_or_else(|| error(line, "the licenses are followed by '||'"))?;
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
        state: JobState::parse(state).ok_or_else(|| error(line, "State is a word"))?,
        reason: (*reason).to_owned(),
        time_limit: parse_time_limit(time_limit),
        submit_time: (*submitted).to_owned(),
        node_list: Some(*nodes).filter(is_set).map(str::to_owned),
        licenses: licenses.to_owned(),
        admin_comment: Some(comment.trim_end()).filter(is_set).map(str::to_owned),
    })
}

/// Parses `MM:SS`, `HH:MM:SS` or `D-HH:MM:SS` into seconds. None for a job without a limit, and for a limit
/// that `squeue` does not show: above 365 days it prints INVALID.
fn parse_time_limit(text: &str) -> Option<u64> {
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let number = |text: &str| {
        let is_number = text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<u64>().ok().filter(|_| is_number)
    };
    let mut seconds: u64 = 0;
    for part in clock.split(':') {
        seconds = seconds.checked_mul(60)?.checked_add(number(part)?)?;
    }
    let days = number(days)?.checked_mul(86_400)?;
    let sum = days.checked_add(seconds)?;
    matches!(clock.split(':').count(), 2 | 3).then_some(sum)
}
