//! Checks that a hook is the current one of its job. A hook can outlive its slurmctld, and the job id may
//! have another run by then.

use std::cell::OnceCell;
use std::io;
use std::os::unix::process::parent_id;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use ipu_slurm::{JobState, SlurmJob};

use super::Refusal;
use super::acquire_error::AcquireError;
use crate::failure::Failure;
use crate::run_file::{self, RunFile};
use crate::slurm_commands::Slurm;

/// The reason of a hook that finds the file of another one.
const LATER_HOOK: &str = "a later PrologSlurmctld has the file of the job";

/// Returns an id of this process that no other process has, on any host at any time.
pub(super) fn hook_id() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}-{}", std::process::id(), since.as_nanos())
}

/// The run of a hook, which a run with the job id at another time is not.
pub(super) struct OwnRun {
    /// The parent process when the hook started.
    parent: u32,
    /// The start of the hook in seconds since 1970.
    started: u64,
    /// SubmitTime of the job when the hook saw it first.
    submit_time: OnceCell<String>,
}

impl OwnRun {
    /// Returns the run of this process, at its start.
    pub(super) fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            parent: parent_id(),
            started: since.as_secs(),
            submit_time: OnceCell::new(),
        }
    }

    /// Takes the first answer of slurmctld about the job.
    pub(super) fn see(&self, job: &SlurmJob) {
        self.submit_time.get_or_init(|| job.submit_time.clone());
    }

    /// Checks that the process that started the hook lives: slurmctld, or a script of the site.
    pub(super) fn ensure_parent(&self) -> Result<(), Refusal> {
        if parent_id() == self.parent {
            return Ok(());
        }
        Err(superseded("slurmctld ended during the hook"))
    }

    /// Returns the job of the run, if slurmctld waits for the hook.
    pub(super) async fn waiting_job(&self, slurm: &Slurm, id: u32) -> Option<SlurmJob> {
        let job = slurm.job(id).await.ok().flatten()?;
        // After the answer, which a slurmctld that started meanwhile may have given.
        let has_parent = self.ensure_parent().is_ok();
        (has_parent && job.state == JobState::Configuring && self.is_run_of(&job)).then_some(job)
    }

    /// Returns whether a job of the id is of this run. A hook that has not seen its job cannot be one of a
    /// job that was submitted later.
    fn is_run_of(&self, job: &SlurmJob) -> bool {
        match self.submit_time.get() {
            Some(submit_time) => job.submit_time == *submit_time,
            None => job.submit_time.parse().is_ok_and(|at: u64| at <= self.started),
        }
    }
}

/// A running hook.
pub(super) struct Hook<'a> {
    pub(super) slurm: &'a Slurm,
    /// The job as it was when the hook started.
    pub(super) job: &'a SlurmJob,
    /// The run of the hook.
    pub(super) own_run: &'a OwnRun,
}

impl Hook<'_> {
    /// Checks that slurmctld waits for this hook: its job is CONFIGURING, and of the submission that the hook
    /// has seen first.
    pub(super) async fn ensure_current(&self) -> Result<(), Refusal> {
        self.own_run.ensure_parent()?;
        match self.same_run().await? {
            job if job.state == JobState::Configuring => Ok(()),
            job => Err(superseded(&format!("the job is {} already", job.state.as_str()))),
        }
    }

    /// Returns the job, if it is of the submission that the hook has seen first.
    pub(super) async fn same_run(&self) -> Result<SlurmJob, Refusal> {
        match self.slurm.job(self.job.id).await? {
            Some(job) if job.submit_time == self.job.submit_time => Ok(job),
            Some(_) => Err(superseded("the job id has another run")),
            None => Err(superseded("slurmctld does not know the job any more")),
        }
    }
}

/// The file of a job in IpuofDir.
pub(super) struct JobFile<'a> {
    pub(super) directory: &'a Path,
    pub(super) name: String,
}

impl JobFile<'_> {
    /// Replaces the content, unless a later hook has written the file.
    pub(super) fn replace(&self, file: &RunFile) -> Result<(), Refusal> {
        match run_file::replace_own(self.directory, &self.name, file) {
            Ok(true) => Ok(()),
            Ok(false) => Err(superseded(LATER_HOOK)),
            Err(error) => Err(self.cannot_write(&error).into()),
        }
    }

    /// Checks that no later hook has written the file. A directory that cannot be read now is left to
    /// [`replace`](Self::replace).
    pub(super) fn ensure_own(&self, hook: &str) -> Result<(), AcquireError> {
        match run_file::is_of_hook(self.directory, &self.name, hook) {
            Ok(true) | Err(_) => Ok(()),
            Ok(false) => Err(AcquireError::Superseded(LATER_HOOK.to_owned())),
        }
    }

    /// Removes the files of this hook, which has no partition, unless a later hook has written the file. A
    /// file that cannot be removed makes a task fail, and the next hook removes it.
    pub(super) fn remove(&self, file: &RunFile) -> Result<(), Refusal> {
        match run_file::end_own(self.directory, &self.name, file) {
            Ok(true) | Err(_) => Ok(()),
            Ok(false) => Err(superseded(LATER_HOOK)),
        }
    }

    pub(super) fn cannot_write(&self, error: &io::Error) -> Failure {
        let directory = self.directory.display();
        Failure(format!(
            "cannot write the files of the job to {directory}: {error}"
        ))
    }
}

fn superseded(problem: &str) -> Refusal {
    Refusal::Superseded(Failure(problem.to_owned()))
}

#[cfg(test)]
mod tests {
    use ipu_slurm::parse_job;

    use super::*;

    /// A record of Slurm 22.05.
    const CONFIGURING: &str = include_str!("../../../../ipu-slurm/tests/data/scontrol-22.05/configuring.txt");

    #[test]
    fn a_hook_acts_on_no_job_of_its_id_that_was_submitted_later() {
        let id = CONFIGURING
            .strip_prefix("JobId=")
            .and_then(|rest| rest.split(' ').next());
        let mut job = parse_job(CONFIGURING, id.unwrap().parse().unwrap()).unwrap();
        let own_run = OwnRun {
            started: 1_000,
            ..OwnRun::new()
        };
        for (submit_time, is_own) in [("999", true), ("1000", true), ("1001", false), ("", false)] {
            job.submit_time = submit_time.to_owned();
            assert_eq!(own_run.is_run_of(&job), is_own, "{submit_time}");
        }
        job.submit_time = "900".to_owned();
        own_run.see(&job);
        for (submit_time, is_own) in [("900", true), ("901", false), ("899", false)] {
            job.submit_time = submit_time.to_owned();
            assert_eq!(own_run.is_run_of(&job), is_own, "{submit_time}");
        }
    }
}
