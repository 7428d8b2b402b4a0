//! Follows the state of a job, for `submit --wait` and `logs --follow`.

use futures::StreamExt as _;
use futures::stream::BoxStream;
use ipu_core::job::JobPhase;
use ipu_k8s::crd::IpuJobStatus;
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject};
use kube::runtime::{WatchStreamExt as _, watcher};

use super::get::{phase_of, status_of};
use crate::context::{Context, job_resource};
use crate::exit_code::{Code, Failure, api_failure};
use crate::output;

/// States of a job, as the API server reports them.
pub(super) struct JobWatch {
    states: BoxStream<'static, watcher::Result<Option<DynamicObject>>>,
    /// `namespace/name`.
    title: String,
    uid: Option<String>,
    /// Last printed line.
    shown: String,
}

impl JobWatch {
    /// Watches a job that exists.
    pub(super) fn new(job: &DynamicObject, context: &Context) -> Self {
        let namespace = job.namespace().unwrap_or_else(|| context.namespace.clone());
        let api: Api<DynamicObject> =
            Api::namespaced_with(context.client.clone(), &namespace, &job_resource());
        let name = job.name_any();
        Self {
            states: watcher::watch_object(api, &name).default_backoff().boxed(),
            title: format!("{namespace}/{name}"),
            uid: job.uid(),
            shown: String::new(),
        }
    }

    /// Waits for the next state. Prints phase and message to standard error if they have changed.
    ///
    /// # Errors
    ///
    /// If the caller may not watch the job, or if it was deleted.
    pub(super) async fn next(&mut self) -> Result<DynamicObject, Failure> {
        while let Some(state) = self.states.next().await {
            match state {
                Ok(Some(job)) if job.uid() == self.uid => {
                    self.show(&status_of(&job));
                    return Ok(job);
                }
                Ok(_) => {
                    let text = format!("IPUJob {} was deleted before it had finished", self.title);
                    return Err(Failure::new(Code::NotFound, text));
                }
                Err(error) => check_denied(error, &format!("watch IPUJob {}", self.title))?,
            }
        }
        Err(Failure::new(Code::Unavailable, "the watch of the job has ended"))
    }

    fn show(&mut self, status: &IpuJobStatus) {
        let line = format!("{}: {}", phase_of(status), status.last_message);
        if line != self.shown && !status.last_message.is_empty() {
            output::say(&output::printable(&line));
            self.shown = line;
        }
    }
}

/// Returns whether a job has finished.
pub(super) fn is_finished(status: &IpuJobStatus) -> bool {
    matches!(status.phase, Some(JobPhase::Completed | JobPhase::Failed))
}

/// Passes an error of a watch that is repeated.
///
/// # Errors
///
/// If the caller may not watch.
pub(super) fn check_denied(error: watcher::Error, action: &str) -> Result<(), Failure> {
    match error {
        watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error) if matches!(&error, kube::Error::Api(status) if matches!(status.code, 401 | 403)) => {
            Err(api_failure(action, error))
        }
        _ => Ok(()),
    }
}
