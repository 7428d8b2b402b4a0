//! Labels by which the operator knows its objects.

/// The job's name.
pub const JOB_NAME: &str = "graphcore.ai/ipujob-name";
/// The job's uid.
pub const JOB_UID: &str = crate::crd::IpuJob::UID_LABEL;
/// `worker` or `launcher`.
pub const ROLE: &str = "graphcore.ai/role";
/// Which instance, from 0.
pub const INSTANCE: &str = "graphcore.ai/instance";
/// Which worker of the instance, from 0.
pub const WORKER: &str = "graphcore.ai/worker";
/// Which attempt of the instance, from 0.
pub const ATTEMPT: &str = "graphcore.ai/attempt";

/// What a Kubernetes Pod is to its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodRole {
    /// It runs on the partition.
    Worker,
    /// It starts the work on the workers.
    Launcher,
}

impl PodRole {
    /// The value of the label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Launcher => "launcher",
        }
    }
}

/// The label selector of a job's workers.
#[must_use]
pub fn selector(job: &str) -> String {
    format!("{JOB_NAME}={job},{ROLE}={}", PodRole::Worker.label())
}
