//! The runs of jobs with pointers. Slurm may reuse a job id while processes of the earlier job run.

use std::fs;
use std::io;

use ipu_slurm::pointer_name;

use super::{PoolDirectory, read_if_exists, remove_if_exists, replace};

/// The directory with the runs of jobs, by the name of the pointer.
const RUNS_DIR: &str = "runs";

impl PoolDirectory {
    /// Sets the run of the job whose pointer this process may write.
    pub(crate) fn with_run(mut self, run: String) -> Self {
        self.run = Some(run);
        self
    }

    /// Returns whether the pointer of a job is that of an earlier run of its id. Needs the lock.
    pub(crate) fn has_earlier_run(&self, job_id: u32) -> io::Result<bool> {
        let Some(present) = &self.run else {
            return Ok(false);
        };
        if self.pointer(job_id)?.is_none() {
            return Ok(false);
        }
        let recorded = read_if_exists(&self.path(RUNS_DIR).join(pointer_name(job_id)))?;
        // Graphcore's scripts record none.
        Ok(recorded.is_some_and(|recorded| recorded.trim() != present))
    }

    /// Records the run, before the pointer.
    pub(super) fn record_run(&self, job_id: u32) -> io::Result<()> {
        let Some(run) = &self.run else {
            return self.forget_run(job_id);
        };
        let directory = self.path(RUNS_DIR);
        fs::create_dir_all(&directory)?;
        replace(&directory, &pointer_name(job_id), &format!("{run}\n"))
    }

    pub(super) fn forget_run(&self, job_id: u32) -> io::Result<()> {
        remove_if_exists(&self.path(RUNS_DIR).join(pointer_name(job_id)))
    }
}
