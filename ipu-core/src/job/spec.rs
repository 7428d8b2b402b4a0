//! A parsed job: complete, and always able to run.
//!
//! `RawJob::parse` is the only way to create a [`JobSpec`].

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::hardware::partition::PartitionSpec;
use crate::ids::{JobKey, PartitionId};
use crate::job::exit::ExitCodeSet;
use crate::job::raw::EnvVar;
use crate::units::IpuCount;

/// A valid job.
///
/// Source of the fields: the IPUJob custom resource 1.2.0 and the V-IPU guide §6.6–6.7.
///
/// ```
/// use ipu_core::job::{Limits, RawJob};
///
/// let raw: RawJob = serde_json::from_str(
///     r#"{"metadata": {"name": "mnist", "uid": "1"}, "spec": {"ipusPerJobInstance": "4", "jobInstances": 2}}"#,
/// )?;
/// let job = raw.parse(&Limits::default())?.spec;
/// assert_eq!((job.instances(), job.ipus_per_instance().get()), (2, 4));
/// assert_eq!(job.worker_name(1, 0), "mnist-worker-1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub(crate) back_off: Duration,
    pub(crate) suspend: bool,
    pub(crate) priority: i32,
    pub(crate) preemptible: bool,
    pub(crate) account: Option<String>,
    #[serde(with = "crate::units::millis::option")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<u64>"))]
    pub(crate) max_runtime: Option<Duration>,
    #[serde(with = "crate::units::millis::option")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<u64>"))]
    pub(crate) ttl_after_finished: Option<Duration>,
    #[serde(with = "crate::units::millis")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub(crate) start_deadline: Duration,
    /// Set by the installation; the owner of the job cannot change it.
    #[serde(skip)]
    pub(crate) max_requested: u32,
}

/// The processes of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum JobKind {
    /// No launcher: the workers of each instance run their own command; the job succeeds when all have (V-IPU
    /// guide §6.7).
    Workers,
    /// One launcher per instance starts the work on the instance's workers, as `mpirun` does (V-IPU guide
    /// §6.6).
    Launcher {
        /// The launcher's command and its arguments.
        command: Vec<String>,
    },
    /// A launcher without a command: users work in it until its time to live expires (V-IPU guide §6.6.1).
    Interactive {
        /// Time to live, from the start of the launcher.
        #[serde(with = "crate::units::millis")]
        #[cfg_attr(feature = "schema", schemars(with = "u64"))]
        ttl: Duration,
    },
}

/// Restart policy for an ended attempt of an instance (V-IPU guide §6.7.2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum RestartPolicy {
    /// Never restarts.
    Never,
    /// Restarts after success without limit, and after failure up to the limit.
    Always {
        /// Maximum number of restarts after failure.
        back_off_limit: u32,
    },
    /// Restarts after any failure.
    OnFailure {
        /// Maximum number of restarts.
        back_off_limit: u32,
    },
    /// Restarts after a failure with a listed exit code.
    ExitCode {
        /// The retryable exit codes; all others are permanent failures.
        retryable: ExitCodeSet,
        /// Maximum number of restarts.
        back_off_limit: u32,
    },
}

/// Cleanup of a finished job (V-IPU guide §6.7.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum CleanPodPolicy {
    /// Removes nothing: running processes and partitions are kept until the job is deleted.
    #[default]
    None,
    /// Removes the workers. Launcher and partitions are kept until the job is deleted.
    Workers,
    /// Removes launcher, workers and partitions. Acts as if the restart policy were Never.
    All,
}

impl JobSpec {
    /// Returns the key of the job.
    #[must_use]
    pub const fn key(&self) -> &JobKey {
        &self.key
    }

    /// Returns the number of instances, with one partition each.
    #[must_use]
    pub const fn instances(&self) -> u32 {
        self.instances
    }

    /// Returns the IPUs of one instance.
    #[must_use]
    pub const fn ipus_per_instance(&self) -> IpuCount {
        self.partition.size
    }

    /// Returns the properties of the partition of an instance.
    #[must_use]
    pub const fn partition(&self) -> &PartitionSpec {
        &self.partition
    }

    /// Returns the maximum number of instances that are in the queue, or have their partition made ready, at
    /// once ([`Limits::with_max_requested`](crate::job::Limits::with_max_requested)).
    #[must_use]
    pub const fn max_requested(&self) -> u32 {
        self.max_requested
    }

    /// Returns the id of the partition of instance `instance`.
    #[must_use]
    pub fn partition_id(&self, instance: u32) -> PartitionId {
        self.key.partition_id(instance)
    }

    /// Returns the number of workers of one instance, with one GCD each.
    #[must_use]
    pub const fn workers_per_instance(&self) -> u32 {
        self.workers_per_instance
    }

    /// Returns the index of worker `worker` of instance `instance` within the whole job, which is the suffix
    /// of its name.
    #[must_use]
    pub const fn worker_index(&self, instance: u32, worker: u32) -> u32 {
        // Saturating, because an observation may name any instance; those of the job are far below.
        instance
            .saturating_mul(self.workers_per_instance)
            .saturating_add(worker)
    }

    /// Returns the name of worker `worker` of instance `instance`: `<job>-worker-<n>` (V-IPU guide §6.6).
    #[must_use]
    pub fn worker_name(&self, instance: u32, worker: u32) -> String {
        format!("{}-worker-{}", self.key.name, self.worker_index(instance, worker))
    }

    /// Returns the name of the launcher of instance `instance`: `<job>-launcher` for the first (V-IPU guide
    /// §6.6), followed by the instance's number for the others.
    #[must_use]
    pub fn launcher_name(&self, instance: u32) -> String {
        format!(
            "{}{}",
            self.key.name,
            crate::job::parse::launcher_suffix(instance)
        )
    }

    /// Returns the environment variables of the launcher, in the given order.
    #[must_use]
    pub fn launcher_env(&self) -> &[EnvVar] {
        &self.launcher_env
    }

    /// Returns the network interfaces or subnets for MPI between the workers, if the job names them.
    #[must_use]
    pub fn tcp_interface(&self) -> Option<&str> {
        self.tcp_interface.as_deref()
    }

    /// Returns the processes of the job.
    #[must_use]
    pub const fn shape(&self) -> &JobKind {
        &self.shape
    }

    /// Returns the restart policy for an ended attempt. Never, if the cleanup policy is All (V-IPU guide
    /// §6.7.3).
    #[must_use]
    pub const fn restart(&self) -> &RestartPolicy {
        match self.clean_pod_policy {
            CleanPodPolicy::All => &RestartPolicy::Never,
            CleanPodPolicy::None | CleanPodPolicy::Workers => &self.restart,
        }
    }

    /// Returns the cleanup policy of the finished job.
    #[must_use]
    pub const fn clean_pod_policy(&self) -> CleanPodPolicy {
        self.clean_pod_policy
    }

    /// Returns the delay before the first restart; it doubles with each further one.
    #[must_use]
    pub const fn back_off(&self) -> Duration {
        self.back_off
    }

    /// Returns whether the job is suspended, so that it holds nothing.
    #[must_use]
    pub const fn suspend(&self) -> bool {
        self.suspend
    }

    /// Returns the queue priority; higher starts first.
    #[must_use]
    pub const fn priority(&self) -> i32 {
        self.priority
    }

    /// Returns whether a job of higher priority may preempt the job.
    #[must_use]
    pub const fn preemptible(&self) -> bool {
        self.preemptible
    }

    /// Returns the account that is charged; none if only the namespace is charged.
    #[must_use]
    pub fn account(&self) -> Option<&str> {
        self.account.as_deref()
    }

    /// Returns the maximum run time of the job (`activeDeadlineSeconds`), if set; the job fails after it.
    #[must_use]
    pub const fn max_runtime(&self) -> Option<Duration> {
        self.max_runtime
    }

    /// Returns the time for which a finished job keeps the resources that its cleanup policy leaves, if set.
    #[must_use]
    pub const fn ttl_after_finished(&self) -> Option<Duration> {
        self.ttl_after_finished
    }

    /// Returns the time for which a partition waits for all workers to be ready before it is released.
    #[must_use]
    pub const fn start_deadline(&self) -> Duration {
        self.start_deadline
    }
}
