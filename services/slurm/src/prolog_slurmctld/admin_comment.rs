//! The AdminComment of the job of a hook.

use ipu_slurm::SlurmJob;
use ipu_slurm::text::{admin_comment, may_replace};

use crate::slurm_commands::Slurm;

/// Writes the AdminComment of a job, unless it is someone else's. A failure of it never fails a hook.
pub(super) struct AdminCommentWriter<'a> {
    slurm: &'a Slurm,
    /// None if `scontrol` cannot address the job alone.
    job_id: Option<String>,
    may_replace: bool,
    /// The text that is set; none if it is absent.
    current: Option<String>,
}

impl<'a> AdminCommentWriter<'a> {
    pub(super) fn new(slurm: &'a Slurm, job: &SlurmJob) -> Self {
        Self {
            slurm,
            job_id: job.scontrol_id(),
            may_replace: may_replace(job.admin_comment.as_deref()),
            current: job.admin_comment.clone(),
        }
    }

    /// Writes a sentence, if it is new.
    pub(super) async fn write(&mut self, sentence: &str) {
        let text = admin_comment(sentence);
        if !self.may_replace || self.current.as_ref() == Some(&text) {
            return;
        }
        if let Some(job_id) = &self.job_id
            && self.slurm.set_admin_comment(job_id, &text).await.is_ok()
        {
            self.current = Some(text);
        }
    }

    /// Replaces a sentence of an earlier moment. A job without one gets none.
    pub(super) async fn replace(&mut self, sentence: &str) {
        if self.current.is_some() {
            self.write(sentence).await;
        }
    }
}
