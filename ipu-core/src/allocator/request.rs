//! A request for a partition.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::allocator::capacity::PlacementConstraint;
use crate::hardware::partition::PartitionSpec;
use crate::ids::{Namespace, Owner, PartitionId};
use crate::units::Timestamp;

/// Handling of a request that does not fit now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum OnNoCapacity {
    /// The request joins the queue.
    #[default]
    Queue,
    /// The request joins the queue, unless its reason is
    /// [permanent](crate::ReasonCode::is_permanent): then it is rejected at once and leaves no record.
    QueueUnlessImpossible,
    /// The request is rejected at once and leaves no record.
    Reject,
}

/// A request for one partition. Repeating it with the same values is always safe.
///
/// While it is queued, the owner may repeat it with another priority, runtime, account or consent to
/// preemption, and it keeps its ticket. Once it has started, the values of that moment are kept.
///
/// ```
/// use core::time::Duration;
///
/// use ipu_core::allocator::{OnNoCapacity, Request};
/// use ipu_core::hardware::PartitionSpec;
/// use ipu_core::{IpuCount, JobKey, Owner};
///
/// let owner = Owner::new("Example", JobKey::new("default", "mnist", "1")?);
/// let request = Request::of_instance(owner, 0, PartitionSpec::of_size(IpuCount::try_from(4)?))
///     .with_priority(10)
///     .with_max_runtime(Duration::from_secs(3_600))
///     .when_full(OnNoCapacity::QueueUnlessImpossible);
/// assert!(request.is_derived());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct Request {
    /// The partition's id.
    pub id: PartitionId,
    /// The requesting owner; only the same owner may repeat the request, reset or release.
    pub owner: Owner,
    /// Instance of the owner, from 0.
    #[serde(default)]
    pub instance: u32,
    /// The attempt that the partition must be fresh for; a newer one than recorded resets it.
    #[serde(default)]
    pub attempt: u32,
    /// Properties of the partition.
    pub spec: PartitionSpec,
    /// Queue priority; higher starts first.
    #[serde(default)]
    pub priority: i32,
    /// Longest time that the owner declares to hold the partition. Expected start times are computed from it.
    #[serde(
        default,
        rename = "maxRuntimeMillis",
        with = "crate::units::millis::option",
        skip_serializing_if = "Option::is_none"
    )]
    #[cfg_attr(feature = "schema", schemars(with = "Option<u64>"))]
    pub max_runtime: Option<Duration>,
    /// The account that is charged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Set if a request of higher priority may preempt the owner, if [`Policy::preemption`] is on. A
    /// preemptible request never preempts others.
    ///
    /// [`Policy::preemption`]: crate::allocator::Policy::preemption
    #[serde(default)]
    pub preemptible: bool,
    /// Evidence by which the adapter checks later that the owner is alive, such as a process id with its
    /// start time. Opaque here. Empty keeps the recorded value.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub holder: String,
    /// Handling of the request if it does not fit.
    #[serde(default)]
    pub on_no_capacity: OnNoCapacity,
    /// Required placement.
    #[serde(default, skip_serializing_if = "PlacementConstraint::is_open")]
    pub pin: PlacementConstraint,
    /// Time at which the client gives up. A request that is read later is rejected: its client may have
    /// repeated it, used the partition and released it since. Without this time, a request that is read late
    /// counts as a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Timestamp>,
    /// Namespaces that the sending client may act for, if it is restricted to some: their queued requests
    /// count together. Never recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub client_namespaces: Vec<Namespace>,
}

impl Request {
    /// The [`holder`](Self::holder) of a partition that outlives the process that requested it. A repeated
    /// request does not replace it, because its process may end at any time. A newer attempt ends it.
    pub const UNOBSERVED: &'static str = "unobserved";

    /// Creates a request for the partition of instance `instance` of `owner`, under the id derived from the
    /// two.
    #[must_use]
    pub fn of_instance(owner: Owner, instance: u32, spec: PartitionSpec) -> Self {
        let id = owner.job.partition_id(instance);
        let mut request = Self::with_id(id, owner, spec);
        request.instance = instance;
        request
    }

    /// Creates a request for a partition under an id that the client chooses. Such a partition cannot be
    /// adopted if the ledger is lost, because its id does not identify an owner.
    #[must_use]
    pub const fn with_id(id: PartitionId, owner: Owner, spec: PartitionSpec) -> Self {
        Self {
            id,
            owner,
            instance: 0,
            attempt: 0,
            spec,
            priority: 0,
            max_runtime: None,
            account: None,
            preemptible: false,
            holder: String::new(),
            on_no_capacity: OnNoCapacity::Queue,
            pin: PlacementConstraint {
                controller: None,
                ipus: Vec::new(),
            },
            not_after: None,
            client_namespaces: Vec::new(),
        }
    }

    /// Sets [`attempt`](Self::attempt).
    #[must_use]
    pub const fn with_attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt;
        self
    }

    /// Sets [`priority`](Self::priority).
    #[must_use]
    pub const fn with_priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Sets [`max_runtime`](Self::max_runtime).
    #[must_use]
    pub const fn with_max_runtime(mut self, max_runtime: Duration) -> Self {
        self.max_runtime = Some(max_runtime);
        self
    }

    /// Sets [`holder`](Self::holder).
    #[must_use]
    pub fn with_holder(mut self, holder: impl Into<String>) -> Self {
        self.holder = holder.into();
        self
    }

    /// Sets [`on_no_capacity`](Self::on_no_capacity).
    #[must_use]
    pub const fn when_full(mut self, on_no_capacity: OnNoCapacity) -> Self {
        self.on_no_capacity = on_no_capacity;
        self
    }

    /// Returns whether the id is derived from owner and instance.
    #[must_use]
    pub fn is_derived(&self) -> bool {
        self.id == self.owner.job.partition_id(self.instance)
    }
}
