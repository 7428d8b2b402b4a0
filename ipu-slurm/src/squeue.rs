//! Output of `squeue`: the state of every run, without a text that a user chooses.

mod gres;
mod job;

pub use self::gres::{SQUEUE_GRES_ARGS, parse_squeue_gres};
pub use self::job::{ArrayTask, SQUEUE_JOB_ARGS, SlurmJob, UNKNOWN_JOB, parse_squeue_job};
use crate::error::{InputError, decimal};
use crate::job_state::JobState;
use crate::run::{RunId, RunKey};

/// The arguments of `squeue` for [`RunList::parse`]. Its environment needs `SLURM_TIME_FORMAT=%s`.
///
/// Slurm before 25.11 does not know `SLUID`: it prints an empty field, exits with 0, and says so on standard
/// error.
pub const SQUEUE_ARGS: [&str; 5] = [
    "--noheader",
    "--all",
    "--states=all",
    "--local",
    "--Format=JobID:0|,State:0|,SubmitTime:0|,SLUID:0|,NodeList:0|",
];

/// The runs of all jobs that slurmctld knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunList {
    /// Sorted by job id.
    runs: Vec<ListedRun>,
}

/// A line of `squeue`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ListedRun {
    job_id: u32,
    state: JobState,
    /// [`RunId::Submitted`].
    submitted: RunId,
    /// [`RunId::Sluid`], from Slurm 25.11 on.
    sluid: Option<RunId>,
    has_nodes: bool,
}

/// The entry of slurmctld's list for a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListedState {
    /// The job id is not listed.
    Unlisted,
    /// The job id belongs to another run.
    OtherRun {
        /// Whether that one is not finished and has nodes.
        has_nodes: bool,
    },
    /// This run, but slurmctld has started it again since:
    /// [`RunStart::listed_in`](crate::RunStart::listed_in).
    LaterStart {
        /// Whether the later start is not finished and has nodes.
        has_nodes: bool,
    },
    /// The job id is listed, but without the identity of the run.
    Indistinguishable,
    /// This very run.
    SameRun {
        /// Its state.
        state: JobState,
        /// Whether it has nodes. While a run completes, these are the nodes that are not done.
        has_nodes: bool,
    },
}

impl RunList {
    /// Parses the whole output of a `squeue` that succeeded.
    ///
    /// # Errors
    ///
    /// The first line that cannot be read. A list without it would make its job look gone.
    ///
    /// ```
    /// use ipu_slurm::{JobState, ListedState, RunKey, RunList};
    ///
    /// let runs = RunList::parse("7|RUNNING|1795599506||n1|\n8|PENDING|1795599507||(null)|\n")?;
    /// let running = ListedState::SameRun { state: JobState::Running, has_nodes: true };
    /// assert_eq!(runs.state_of(&RunKey::from_uid("7.1795599506")?), running);
    /// // Job 8 has been requeued since.
    /// let other = ListedState::OtherRun { has_nodes: false };
    /// assert_eq!(runs.state_of(&RunKey::from_uid("8.1795590000")?), other);
    /// assert_eq!(
    ///     RunList::parse("7|RUNNING|17955").unwrap_err().to_string(),
    ///     "squeue = 7|RUNNING|17955: the last line is truncated; \
    ///      run squeue with the documented arguments and SLURM_TIME_FORMAT=%s",
    /// );
    /// # Ok::<(), ipu_slurm::InputError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, InputError> {
        if !text.is_empty() && !text.ends_with('\n') {
            let rule = "the last line is truncated";
            return Err(error(text.lines().next_back().unwrap_or_default(), rule));
        }
        let runs: Result<Vec<ListedRun>, InputError> = text.lines().map(parse_line).collect();
        let mut runs = runs?;
        runs.sort_by_key(|run| run.job_id);
        if let Some(pair) = runs.windows(2).find(|pair| pair[0].job_id == pair[1].job_id) {
            return Err(error(&pair[0].job_id.to_string(), "the job is listed twice"));
        }
        Ok(Self { runs })
    }

    /// Returns the number of jobs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Returns whether no job is listed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns the key of the run that a job id has now: by its SLUID, otherwise by its submission. A hook
    /// gets it with the further argument `--jobs=ID`, whatever the name of the job is.
    #[must_use]
    pub fn key_of(&self, job_id: u32) -> Option<RunKey> {
        let listed = self.find(job_id)?;
        let run = listed.sluid.as_ref().unwrap_or(&listed.submitted).clone();
        Some(RunKey { job_id, run })
    }

    /// Returns whether the run that a job id has now may have processes, or a hook at work.
    #[must_use]
    pub fn may_have_nodes(&self, job_id: u32) -> bool {
        self.find(job_id)
            .is_some_and(|run| may_use_nodes(&run.state, run.has_nodes))
    }

    fn find(&self, job_id: u32) -> Option<&ListedRun> {
        let found = self.runs.binary_search_by_key(&job_id, |run| run.job_id);
        found.ok().and_then(|i| self.runs.get(i))
    }

    /// Returns the entry for a run.
    #[must_use]
    pub fn state_of(&self, key: &RunKey) -> ListedState {
        let Some(listed) = self.find(key.job_id) else {
            return ListedState::Unlisted;
        };
        let listed_id = match key.run {
            RunId::Submitted(_) => Some(&listed.submitted),
            RunId::Sluid(_) => listed.sluid.as_ref(),
        };
        match listed_id {
            None => ListedState::Indistinguishable,
            Some(id) if *id == key.run => ListedState::SameRun {
                state: listed.state.clone(),
                has_nodes: listed.has_nodes,
            },
            Some(_) => ListedState::OtherRun {
                has_nodes: may_use_nodes(&listed.state, listed.has_nodes),
            },
        }
    }
}

/// Returns whether a run may have processes. A finished one is listed with the nodes that it had.
pub(crate) const fn may_use_nodes(state: &JobState, has_nodes: bool) -> bool {
    has_nodes && !state.is_finished()
}

fn parse_line(line: &str) -> Result<ListedRun, InputError> {
    let fields: Vec<&str> = line.split('|').collect();
    let [job_id, state, submitted, sluid, nodes, ""] = fields.as_slice() else {
        return Err(error(line, "a line has five fields, each followed by '|'"));
    };
    let job_id = decimal(job_id).ok_or_else(|| error(line, "JobID is a number"))?;
    let state = JobState::parse(state).ok_or_else(|| error(line, "State is a word"))?;
    let sluid = if sluid.is_empty() {
        None
    } else {
        Some(RunId::from_sluid(sluid)?)
    };
    if nodes.contains(char::is_whitespace) {
        return Err(error(line, "NodeList has no blanks"));
    }
    Ok(ListedRun {
        job_id,
        state,
        submitted: RunId::from_submit_time(submitted)?,
        sluid,
        has_nodes: !matches!(*nodes, "" | "(null)"),
    })
}

fn error(line: &str, rule: &str) -> InputError {
    let fix = "run squeue with the documented arguments and SLURM_TIME_FORMAT=%s";
    InputError::new("squeue", Some(line), rule, fix)
}
