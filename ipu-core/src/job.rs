//! A job as the rules see it: parsed, complete, impossible to hold in a state that cannot run.
//!
//! The way in is `RawJob::parse`: nothing else makes a [`JobSpec`].

pub(crate) mod limits;
pub(crate) mod parse;
pub(crate) mod raw;
pub(crate) mod violation;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::exit_status::ExitCodeSet;
use crate::ids::{JobKey, PartitionId};
use crate::job::raw::EnvVar;
use crate::partition::PartitionSpec;
use crate::units::IpuCount;

/// A job that can run.
///
/// Source of the fields: the IPUJob custom resource 1.2.0 and seed 000 §6.6–6.7.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobSpec {
    pub(crate) key: JobKey,
    pub(crate) instances: u32,
    pub(crate) partition: PartitionSpec,
    pub(crate) workers_per_instance: u32,
    pub(crate) shape: JobKind,
    pub(crate) launcher_env: Vec<EnvVar>,
    pub(crate) tcp_interface: Option<String>,
    pub(crate) restart: RestartPolicy,
    pub(crate) clean_pod_policy: CleanPodPolicy,
    #[serde(with = "crate::units::millis")]
    pub(crate) back_off: Duration,
    pub(crate) suspend: bool,
    pub(crate) priority: i32,
    pub(crate) preemptible: bool,
    pub(crate) account: Option<String>,
    #[serde(with = "crate::units::millis::option")]
    pub(crate) max_runtime: Option<Duration>,
    #[serde(with = "crate::units::millis::option")]
    pub(crate) ttl_after_finished: Option<Duration>,
    #[serde(with = "crate::units::millis")]
    pub(crate) start_deadline: Duration,
    /// The installation's, which its owner cannot choose.
    #[serde(skip)]
    pub(crate) max_requested: u32,
}

/// Which processes a job is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
#[non_exhaustive]
pub enum JobKind {
    /// No launcher: the workers of each instance run their own command; the job is done when all are (seed 000 §6.7).
    Workers,
    /// One launcher an instance starts the work on the instance's workers, as `mpirun` does (seed 000 §6.6).
    Launcher {
        /// The launcher's command and its arguments.
        command: Vec<String>,
    },
    /// A launcher that runs nothing by itself: people work in it until its time is over (seed 000 §6.6.1).
    Interactive {
        /// How long, from the launcher running.
        #[serde(with = "crate::units::millis")]
        ttl: Duration,
    },
}

/// What happens when an attempt of an instance has ended (seed 000 §6.7.2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "type")]
#[non_exhaustive]
pub enum RestartPolicy {
    /// Never restarted, whatever the end.
    Never,
    /// Restarted after success without limit, and after failure up to the limit.
    Always {
        /// The most restarts after failure.
        back_off_limit: u32,
    },
    /// Restarted after failure, whatever its cause.
    OnFailure {
        /// The most restarts.
        back_off_limit: u32,
    },
    /// Restarted after a failure whose exit code is listed.
    ExitCode {
        /// The codes that are worth another try; everything else is permanent.
        retryable: ExitCodeSet,
        /// The most restarts.
        back_off_limit: u32,
    },
}

/// What is removed when a job has finished (seed 000 §6.7.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum CleanPodPolicy {
    /// Nothing: processes, if any still run, and partitions stay until the job is deleted.
    #[default]
    None,
    /// The workers. Launcher and partitions stay until the job is deleted.
    Workers,
    /// Launcher, workers and partitions. Acts as if the restart policy were Never.
    All,
}

impl JobSpec {
    /// Which job.
    #[must_use]
    pub const fn key(&self) -> &JobKey {
        &self.key
    }

    /// How many instances: one partition each.
    #[must_use]
    pub const fn instances(&self) -> u32 {
        self.instances
    }

    /// The IPUs of one instance.
    #[must_use]
    pub const fn ipus_per_instance(&self) -> IpuCount {
        self.partition.size
    }

    /// What the partition of an instance is made of.
    #[must_use]
    pub const fn partition(&self) -> &PartitionSpec {
        &self.partition
    }

    /// The most instances that are in the queue, or have their partition made ready, at once
    /// ([`Limits::with_max_requested`](crate::Limits::with_max_requested)).
    #[must_use]
    pub const fn max_requested(&self) -> u32 {
        self.max_requested
    }

    /// The id of the partition of instance `instance`.
    #[must_use]
    pub fn partition_id(&self, instance: u32) -> PartitionId {
        self.key.partition_id(instance)
    }

    /// The workers of one instance: one GCD each.
    #[must_use]
    pub const fn workers_per_instance(&self) -> u32 {
        self.workers_per_instance
    }

    /// The number of worker `worker` of instance `instance` within the whole job: what its name ends in.
    #[must_use]
    pub const fn worker_index(&self, instance: u32, worker: u32) -> u32 {
        // Saturating, because an observation may name any instance; those of the job stay far below.
        instance
            .saturating_mul(self.workers_per_instance)
            .saturating_add(worker)
    }

    /// The name of worker `worker` of instance `instance`: `<job>-worker-<n>` (seed 000 §6.6).
    #[must_use]
    pub fn worker_name(&self, instance: u32, worker: u32) -> String {
        format!("{}-worker-{}", self.key.name, self.worker_index(instance, worker))
    }

    /// The name of the launcher of instance `instance`: `<job>-launcher` for the first (seed 000 §6.6), with the
    /// instance's number behind it for the others.
    #[must_use]
    pub fn launcher_name(&self, instance: u32) -> String {
        format!("{}{}", self.key.name, parse::launcher_suffix(instance))
    }

    /// Variables of the launcher's environment, in the order in which they were given.
    #[must_use]
    pub fn launcher_env(&self) -> &[EnvVar] {
        &self.launcher_env
    }

    /// The network interfaces or subnets for MPI between the workers, if the job names them.
    #[must_use]
    pub fn tcp_interface(&self) -> Option<&str> {
        self.tcp_interface.as_deref()
    }

    /// Which processes the job is made of.
    #[must_use]
    pub const fn shape(&self) -> &JobKind {
        &self.shape
    }

    /// What happens when an attempt has ended. Never, if the clean-up policy is All (seed 000 §6.7.3).
    #[must_use]
    pub const fn restart(&self) -> &RestartPolicy {
        match self.clean_pod_policy {
            CleanPodPolicy::All => &RestartPolicy::Never,
            CleanPodPolicy::None | CleanPodPolicy::Workers => &self.restart,
        }
    }

    /// What is removed when the job has finished.
    #[must_use]
    pub const fn clean_pod_policy(&self) -> CleanPodPolicy {
        self.clean_pod_policy
    }

    /// The pause before the first restart; it doubles with each further one.
    #[must_use]
    pub const fn back_off(&self) -> Duration {
        self.back_off
    }

    /// Whether the job is to hold nothing for now.
    #[must_use]
    pub const fn suspend(&self) -> bool {
        self.suspend
    }

    /// Larger is served earlier.
    #[must_use]
    pub const fn priority(&self) -> i32 {
        self.priority
    }

    /// Whether a scheduler may end the job for a more urgent one.
    #[must_use]
    pub const fn preemptible(&self) -> bool {
        self.preemptible
    }

    /// Who is charged, if that is not the namespace.
    #[must_use]
    pub fn account(&self) -> Option<&str> {
        self.account.as_deref()
    }

    /// How long the job may run (`activeDeadlineSeconds`), if it says so; then it is ended as failed.
    #[must_use]
    pub const fn max_runtime(&self) -> Option<Duration> {
        self.max_runtime
    }

    /// How long a finished job keeps what its clean-up policy leaves, if it says so.
    #[must_use]
    pub const fn ttl_after_finished(&self) -> Option<Duration> {
        self.ttl_after_finished
    }

    /// How long a partition waits for all workers to be ready before it is given back.
    #[must_use]
    pub const fn start_deadline(&self) -> Duration {
        self.start_deadline
    }
}
