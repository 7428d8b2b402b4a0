//! Labels of the operator's objects.

/// Name of the job.
pub(crate) const JOB_NAME: &str = "graphcore.ai/ipujob-name";
/// Uid of the job.
pub(crate) const JOB_UID: &str = crate::crd::IpuJob::UID_LABEL;
/// Role of the Pod: `worker` or `launcher`.
pub(crate) const ROLE: &str = "graphcore.ai/role";
/// Index of the instance, from 0.
pub(crate) const INSTANCE: &str = "graphcore.ai/instance";
/// Index of the worker within its instance, from 0.
pub(crate) const WORKER: &str = "graphcore.ai/worker";
/// Attempt of the instance, from 0.
pub(crate) const ATTEMPT: &str = "graphcore.ai/attempt";

/// Role of a Pod in its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodRole {
    /// Runs on the partition.
    Worker,
    /// Starts processes on the workers.
    Launcher,
}

impl PodRole {
    /// Returns the value of the label.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Launcher => "launcher",
        }
    }
}

/// Returns the label selector of a job's workers.
pub(crate) fn selector(job: &str) -> String {
    format!("{JOB_NAME}={job},{ROLE}={}", PodRole::Worker.label())
}
