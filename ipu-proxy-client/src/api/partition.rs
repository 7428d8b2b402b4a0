//! Partitions and requests of the ledger.

use std::collections::BTreeMap;
use std::fmt;

use ipu_core::allocator::{Blocker, Entry, Phase, Preemption, QueueStatus};
use ipu_core::hardware::IpuPlace;
use ipu_core::{IpuCount, PartitionId, Reason, Timestamp};
use serde::{Deserialize, Serialize};

use super::controller::ControllerDocument;
use super::owner::OwnerDocument;

/// State of a partition in the ledger.
///
/// ```
/// use ipu_proxy_client::HoldState;
///
/// let state: HoldState = serde_json::from_str(r#""failed""#)?;
/// assert_eq!((state, state.holds()), (HoldState::Failed, true));
/// assert!(!HoldState::Waiting.holds());
/// // A newer proxy may have more states.
/// assert_eq!(serde_json::from_str::<HoldState>(r#""migrating""#)?, HoldState::Other);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HoldState {
    /// Queued: no IPU is held.
    Waiting,
    /// Being created.
    Creating,
    /// Being reset.
    Resetting,
    /// Ready for its owner.
    Active,
    /// Failed; its IPUs are still held.
    Failed,
    /// Being released; the proxy completes the release.
    Releasing,
    /// The partition has no known owner; it is removed only on request.
    Quarantined,
    /// The ledger has no such partition any more.
    Gone,
    /// A state that this version does not know.
    #[serde(other)]
    Other,
}

impl HoldState {
    /// Returns the name of the state, as on the wire.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Creating => "creating",
            Self::Resetting => "resetting",
            Self::Active => "active",
            Self::Failed => "failed",
            Self::Releasing => "releasing",
            Self::Quarantined => "quarantined",
            Self::Gone => "gone",
            Self::Other => "other",
        }
    }

    /// Returns whether the controller is creating or resetting it.
    #[must_use]
    pub const fn is_in_progress(self) -> bool {
        matches!(self, Self::Creating | Self::Resetting)
    }

    /// Returns whether IPUs are or may be held.
    #[must_use]
    pub const fn holds(self) -> bool {
        !matches!(self, Self::Waiting | Self::Gone)
    }
}

impl From<&Phase> for HoldState {
    fn from(phase: &Phase) -> Self {
        match phase {
            Phase::Queued => Self::Waiting,
            Phase::Creating => Self::Creating,
            Phase::Resetting => Self::Resetting,
            Phase::Active => Self::Active,
            Phase::Failed { .. } => Self::Failed,
            Phase::Releasing { .. } => Self::Releasing,
            Phase::Quarantined => Self::Quarantined,
        }
    }
}

impl fmt::Display for HoldState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.label())
    }
}

/// A partition, or a queued request for one.
///
/// ```
/// use ipu_proxy_client::{HoldState, PartitionDocument};
///
/// let partition: PartitionDocument = serde_json::from_str(
///     r#"{"id":"solo","state":"active",
///         "owner":{"kind":"IPUJob","namespace":"default","name":"mnist","uid":"1"},
///         "instance":0,"attempt":0,"size":1,"gcds":1,"replicas":1,"reconfigurable":false,
///         "controller":{"name":"pod1:8090","host":"pod1","port":8090,"nodeLabel":null},
///         "ipus":[{"linkDomain":0,"ipu":0}],"since":1795982568200,"heldSince":1795982567868,"priority":0,
///         "account":"vision","preemptible":false,"maxRuntimeSeconds":null,"leaseUntil":null,"reason":null,
///         "waiting":null,"errors":[],
///         "env":{"IPUOF_VIPU_API_GCD_ID":"0","IPUOF_VIPU_API_HOST":"pod1",
///                "IPUOF_VIPU_API_PARTITION_ID":"solo","IPUOF_VIPU_API_PORT":"8090",
///                "IPUOF_VIPU_API_TIMEOUT":"120"}}"#,
/// )?;
/// assert_eq!(partition.state, HoldState::Active);
/// // With these variables a Poplar program uses the partition.
/// assert_eq!(partition.env["IPUOF_VIPU_API_PARTITION_ID"], "solo");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PartitionDocument {
    /// Partition id.
    pub id: PartitionId,
    /// State in the ledger.
    pub state: HoldState,
    /// Owner; none if it is unknown.
    pub owner: Option<OwnerDocument>,
    /// Instance of the owner.
    pub instance: u32,
    /// Attempt for which the partition is, or will be, created or reset.
    pub attempt: u32,
    /// Number of IPUs.
    pub size: u32,
    /// Number of graph compilation domains (GCDs).
    pub gcds: u32,
    /// Number of model replicas over all GCDs.
    pub replicas: u32,
    /// True if Poplar may select devices of any aligned size.
    pub reconfigurable: bool,
    /// V-IPU allocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<String>,
    /// Controller; none while the request is queued.
    pub controller: Option<ControllerDocument>,
    /// IPUs; empty until the controller has reported them. A request for this single partition queries the
    /// controller.
    pub ipus: Vec<IpuPlace>,
    /// Time of the last change of the state.
    pub since: Timestamp,
    /// Start of the hold; none while the request is queued.
    pub held_since: Option<Timestamp>,
    /// Queue priority; higher values are served first.
    pub priority: i32,
    /// Account that usage is charged to.
    pub account: Option<String>,
    /// True if a request of higher priority may preempt it.
    pub preemptible: bool,
    /// Demand of a queued request of higher priority that the owner releases the partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption: Option<PreemptionDocument>,
    /// Maximum duration of the hold in seconds.
    pub max_runtime_seconds: Option<u64>,
    /// End of the lease of the owner; none without a lease.
    pub lease_until: Option<Timestamp>,
    /// Process on the host of the proxy that holds the partition; none if no process is observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_id: Option<u32>,
    /// Reason that the partition is not active, if known.
    #[serde(default)]
    pub reason: Option<Reason>,
    /// Place in the queue, if the request is queued and the queue was evaluated.
    pub waiting: Option<WaitingDocument>,
    /// Errors that the controller reports for the partition.
    pub errors: Vec<String>,
    /// Environment variables that select the partition for a Poplar program; empty unless it is active.
    pub env: BTreeMap<String, String>,
}

impl From<&Entry> for PartitionDocument {
    /// Converts the entry. The controller has its name only; queue status, lease and variables are empty.
    fn from(entry: &Entry) -> Self {
        let errors = match &entry.phase {
            Phase::Failed { errors } => errors.clone(),
            _ => Vec::new(),
        };
        Self {
            id: entry.id.clone(),
            state: HoldState::from(&entry.phase),
            owner: entry.owner.as_ref().map(OwnerDocument::from),
            instance: entry.instance,
            attempt: entry.attempt,
            size: entry.spec.size.get(),
            gcds: entry.spec.gcds,
            replicas: entry.spec.replicas,
            reconfigurable: entry.spec.reconfigurable,
            allocation: entry.spec.allocation.as_ref().map(ToString::to_string),
            controller: entry.controller.clone().map(ControllerDocument::new),
            ipus: entry.places.clone(),
            since: entry.since,
            held_since: entry.held_since,
            priority: entry.priority,
            account: entry.account.clone(),
            preemptible: entry.preemptible,
            preemption: entry.preemption.as_ref().map(PreemptionDocument::from),
            max_runtime_seconds: entry.max_runtime.map(|runtime| runtime.as_secs()),
            lease_until: None,
            process_id: None,
            reason: None,
            waiting: None,
            errors,
            env: BTreeMap::new(),
        }
    }
}

/// Demand of a queued request of higher priority that the owner of a partition releases it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PreemptionDocument {
    /// Id of the queued request.
    pub by: PartitionId,
    /// Owner of the queued request; none if it is unknown.
    pub owner: Option<OwnerDocument>,
    /// Priority of the queued request.
    pub priority: i32,
    /// Time of the demand.
    pub at: Timestamp,
    /// Reason for the owner of the partition, which names the request.
    pub reason: Reason,
}

impl From<&Preemption> for PreemptionDocument {
    fn from(preemption: &Preemption) -> Self {
        Self {
            by: preemption.by.clone(),
            owner: preemption.owner.as_ref().map(OwnerDocument::from),
            priority: preemption.priority,
            at: preemption.at,
            reason: preemption.reason(),
        }
    }
}

/// Queue status of a request.
///
/// ```
/// use ipu_proxy_client::WaitingDocument;
///
/// let waiting: WaitingDocument = serde_json::from_str(
///     r#"{"position":1,
///         "reason":{"code":"NotEnoughFree",
///                   "numbers":{"free":8,"largestBlock":8,"position":1,"size":16},
///                   "message":"cannot fit 16 IPUs: 8 are free"},
///         "blockers":[{"id":"training",
///                      "owner":{"kind":"IPUJob","namespace":"default","name":"mnist","uid":"1"},
///                      "size":8,"until":1795986042520}],
///         "earliestFit":1795986042520}"#,
/// )?;
/// assert_eq!(waiting.reason.to_string(), "NotEnoughFree: cannot fit 16 IPUs: 8 are free");
/// assert_eq!(waiting.reason.numbers["free"], 8);
/// // The request starts when the only blocker ends.
/// assert_eq!(waiting.earliest_fit, waiting.blockers[0].until);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct WaitingDocument {
    /// Position in the queue, from 1.
    pub position: u32,
    /// Reason that the request is queued.
    pub reason: Reason,
    /// Partitions that would have to be released.
    pub blockers: Vec<BlockerDocument>,
    /// Latest expected start; none if it does not follow from the declared run times.
    pub earliest_fit: Option<Timestamp>,
}

impl From<&QueueStatus> for WaitingDocument {
    fn from(waiting: &QueueStatus) -> Self {
        Self {
            position: waiting.position,
            reason: waiting.reason.clone(),
            blockers: waiting.blockers.iter().map(BlockerDocument::from).collect(),
            earliest_fit: waiting.earliest_fit,
        }
    }
}

/// A partition that blocks a request or uses cordoned hardware.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BlockerDocument {
    /// Partition id.
    pub id: PartitionId,
    /// Owner; none if it is unknown.
    pub owner: Option<OwnerDocument>,
    /// Number of IPUs; none if it is unknown.
    pub size: Option<IpuCount>,
    /// Latest end of the hold, as declared by the owner.
    pub until: Option<Timestamp>,
}

impl From<&Blocker> for BlockerDocument {
    fn from(blocker: &Blocker) -> Self {
        Self {
            id: blocker.id.clone(),
            owner: blocker.owner.as_ref().map(OwnerDocument::from),
            size: blocker.size,
            until: blocker.until,
        }
    }
}

/// Response of `GET /v1/partitions`, and data of an event `snapshot`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PartitionList {
    /// Partitions, ordered by id.
    pub partitions: Vec<PartitionDocument>,
}

impl PartitionList {
    /// Creates a list.
    #[must_use]
    pub const fn new(partitions: Vec<PartitionDocument>) -> Self {
        Self { partitions }
    }
}

/// Response of `GET /v1/waiting`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WaitingList {
    /// Queued requests in queue order.
    pub waiting: Vec<PartitionDocument>,
}

impl WaitingList {
    /// Creates a list.
    #[must_use]
    pub const fn new(waiting: Vec<PartitionDocument>) -> Self {
        Self { waiting }
    }
}

/// Response of `DELETE /v1/partitions/{id}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DeletedDocument {
    /// Partition id.
    pub id: PartitionId,
    /// [`HoldState::Gone`], or [`HoldState::Releasing`]: the proxy completes the release.
    pub state: HoldState,
    /// Reason that the partition is not removed yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Refusal of the controller to remove the partition without force, in a release that must not use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Reason>,
}

impl DeletedDocument {
    /// Creates the response for a partition that was removed.
    #[must_use]
    pub const fn deleted(id: PartitionId) -> Self {
        Self {
            id,
            state: HoldState::Gone,
            detail: None,
            refusal: None,
        }
    }

    /// Creates the response for a partition that is being released.
    #[must_use]
    pub const fn releasing(id: PartitionId, detail: String) -> Self {
        Self {
            id,
            state: HoldState::Releasing,
            detail: Some(detail),
            refusal: None,
        }
    }
}
