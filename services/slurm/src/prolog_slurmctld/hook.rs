//! The hook of this process, which acts for its own run only. A hook can outlive its slurmctld, and the job
//! id may have another run by then.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::os::unix::process::parent_id;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use ipu_core::PartitionId;
use ipu_proxy_client::IpuofConfigDocument;
use ipu_slurm::text::notification;
use ipu_slurm::{JobState, RunStart, SlurmJob};

use super::admin_comment::AdminCommentWriter;
use crate::failure::Failure;
use crate::run_file::{self, Grant, RunFile};
use crate::slurm_commands::Slurm;

/// The reason of a hook that finds the file of another one.
const LATER_HOOK: &str = "a later PrologSlurmctld has the file of the job";

/// The end of a hook without a partition.
pub(super) enum Refusal {
    /// Slurm requeues the job: IPUs may be free later.
    Requeue(Failure),
    /// The request can never be granted. Slurm would otherwise requeue the job again and again.
    Hold(Failure),
    /// Another hook or another slurmctld decides about the job.
    Superseded(Failure),
}

impl<E: Into<Failure>> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self::Requeue(error.into())
    }
}

fn superseded(problem: &str) -> Refusal {
    Refusal::Superseded(Failure(problem.to_owned()))
}

/// This process.
pub(super) struct Hook {
    pub(super) slurm: Slurm,
    /// The parent process when the hook started.
    parent: u32,
    /// The start of the hook in seconds since 1970.
    started: u64,
    /// An id that no other process has, on any host at any time.
    id: String,
    /// SubmitTime of the job when the hook saw it first.
    submit_time: OnceCell<String>,
}

impl Hook {
    /// Returns the hook of this process, at its start.
    pub(super) fn new(slurm: Slurm) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            slurm,
            parent: parent_id(),
            started: since.as_secs(),
            id: format!("{}-{}", std::process::id(), since.as_nanos()),
            submit_time: OnceCell::new(),
        }
    }

    /// Checks that the process that started the hook lives: slurmctld, or a script of the site.
    pub(super) fn ensure_parent(&self) -> Result<(), Refusal> {
        if parent_id() == self.parent {
            return Ok(());
        }
        Err(superseded("slurmctld ended during the hook"))
    }

    /// Returns the job, and remembers its run.
    pub(super) async fn job(&self, id: u32) -> Result<SlurmJob, Refusal> {
        let job = self.slurm.job(id).await?;
        let job = job.ok_or_else(|| Failure("slurmctld does not know the job".into()))?;
        self.submit_time.get_or_init(|| job.submit_time.clone());
        Ok(job)
    }

    /// Checks that slurmctld waits for this hook: its job is CONFIGURING, and of the submission that the hook
    /// has seen first.
    pub(super) async fn ensure_current(&self, id: u32) -> Result<(), Refusal> {
        let job = self.slurm.job(id).await?;
        // After the answer, which a slurmctld that started meanwhile may have given.
        self.ensure_parent()?;
        match job {
            Some(job) if !self.is_run_of(&job) => Err(superseded("the job id has another run")),
            Some(job) if job.state == JobState::Configuring => Ok(()),
            Some(job) => Err(superseded(&format!("the job is {} already", job.state.as_str()))),
            None => Err(superseded("slurmctld does not know the job any more")),
        }
    }

    /// Returns whether a job of the id is of the hook's run. A hook that has not seen its job cannot be one
    /// of a job that was submitted later.
    fn is_run_of(&self, job: &SlurmJob) -> bool {
        match self.submit_time.get() {
            Some(submit_time) => job.submit_time == *submit_time,
            None => job.submit_time.parse().is_ok_and(|at: u64| at <= self.started),
        }
    }

    /// Reports a refusal in AdminComment and at the terminal of srun and salloc, and holds the job if it can
    /// never start. All are best effort, and for the run of this hook only: the job id may have another one
    /// by now.
    pub(super) async fn explain(&self, refusal: Refusal) -> Failure {
        let (failure, hold) = match refusal {
            Refusal::Requeue(failure) => (failure, false),
            Refusal::Hold(failure) => (failure, true),
            Refusal::Superseded(failure) => return failure,
        };
        let id = std::env::var("SLURM_JOB_ID").ok().and_then(|id| id.parse().ok());
        let Some(id) = id else {
            return failure;
        };
        let job = self.slurm.job(id).await.ok().flatten();
        let Some(job) = job.filter(|job| self.is_waited_for(job)) else {
            return failure;
        };
        AdminCommentWriter::new(&self.slurm, &job).write(&failure.0).await;
        let (job, text) = (id.to_string(), notification(id, &failure.0));
        let _ = self.slurm.scontrol(&["notify", &job, &text]).await;
        // The commands before may have waited for a slurmctld that started meanwhile.
        if hold && self.ensure_current(id).await.is_ok() {
            // srun and salloc are not requeued: Slurm cancels them.
            let _ = self.slurm.scontrol(&["requeuehold", &address(id)]).await;
        }
        failure
    }

    fn is_waited_for(&self, job: &SlurmJob) -> bool {
        self.ensure_parent().is_ok() && job.state == JobState::Configuring && self.is_run_of(job)
    }
}

/// Returns the id by which `scontrol` requeues the job of this hook alone. The last task of an array has the
/// id of the array, which addresses all tasks. Slurm requeues the components of a heterogeneous job together,
/// by the id of the first.
fn address(job_id: u32) -> String {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    match (number("SLURM_ARRAY_JOB_ID"), number("SLURM_ARRAY_TASK_ID")) {
        (Some(array), Some(task)) => format!("{array}_{task}"),
        _ => number("SLURM_HET_JOB_ID").unwrap_or(job_id).to_string(),
    }
}

/// The file of the hook's job in IpuofDir.
pub(super) struct JobFile<'a> {
    directory: &'a Path,
    name: String,
    /// The content that the hook has written.
    file: RunFile,
    /// The file of an earlier hook.
    pub(super) earlier: Option<RunFile>,
}

impl<'a> JobFile<'a> {
    /// Takes the file over.
    pub(super) fn take_over(directory: &'a Path, name: String, hook: &Hook) -> Result<Self, Failure> {
        let taken_over = run_file::take_over(directory, &name, &hook.id);
        let (file, earlier) = taken_over.map_err(|error| cannot_write(directory, &error))?;
        Ok(Self {
            directory,
            name,
            file,
            earlier,
        })
    }

    /// Checks that no later hook has taken the file over. A directory that cannot be read now is left to
    /// [`write`](Self::write).
    pub(super) fn ensure_own(&self) -> Result<(), Refusal> {
        match run_file::is_of_hook(self.directory, &self.name, &self.file.hook) {
            Ok(true) | Err(_) => Ok(()),
            Ok(false) => Err(superseded(LATER_HOOK)),
        }
    }

    /// Remembers a start whose partition tasks may have used, unless a later hook has taken the file over.
    pub(super) fn remember(&mut self, start: RunStart, partition: PartitionId) -> Result<(), Refusal> {
        self.file.grant = Some(Grant {
            start,
            partition,
            ipus: 0,
            gcds: 1,
            variables: BTreeMap::new(),
        });
        match run_file::replace_own(self.directory, &self.name, &self.file) {
            Ok(true) => Ok(()),
            Ok(false) => Err(superseded(LATER_HOOK)),
            Err(error) => Err(cannot_write(self.directory, &error).into()),
        }
    }

    /// Writes the files with which tasks start, unless a later hook has taken the file over.
    pub(super) fn write(&mut self, grant: Grant, config: &IpuofConfigDocument) -> Result<(), Refusal> {
        self.file.grant = Some(grant);
        match run_file::write(self.directory, &self.name, &self.file, config) {
            Ok(true) => Ok(()),
            Ok(false) => Err(superseded(LATER_HOOK)),
            Err(error) => Err(cannot_write(self.directory, &error).into()),
        }
    }

    /// Removes the files of a hook without partition, unless a later hook has taken the file over. A file
    /// that cannot be removed makes a task fail, and the next hook takes it over.
    pub(super) fn remove(&self) -> Result<(), Refusal> {
        match run_file::end(self.directory, &self.name, &self.file) {
            Ok(true) | Err(_) => Ok(()),
            Ok(false) => Err(superseded(LATER_HOOK)),
        }
    }
}

fn cannot_write(directory: &Path, error: &std::io::Error) -> Failure {
    let directory = directory.display();
    Failure(format!(
        "cannot write the files of the job to {directory}: {error}"
    ))
}
