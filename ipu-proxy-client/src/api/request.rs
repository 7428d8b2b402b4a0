//! Requests for partitions.

use ipu_core::{PartitionId, Timestamp};
use serde::{Deserialize, Serialize};

use super::owner::OwnerDocument;

/// Body of `PUT /v1/partitions/{id}`. Idempotent.
///
/// ```
/// use ipu_proxy_client::{OwnerDocument, PutPartition};
/// use serde_json::json;
///
/// let mut request = PutPartition::new(OwnerDocument::new("IPUJob", "default", "mnist", "1"), 4);
/// request.lease_seconds = Some(300);
/// let owner = json!({"kind": "IPUJob", "namespace": "default", "name": "mnist", "uid": "1"});
/// let body = json!({"owner": owner, "size": 4, "leaseSeconds": 300});
/// assert_eq!(serde_json::to_value(&request)?, body);
///
/// let misspelled = json!({"owner": owner, "sise": 4});
/// let error = serde_json::from_value::<PutPartition>(misspelled).unwrap_err();
/// assert!(error.to_string().starts_with("unknown field `sise`, expected one of `owner`"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct PutPartition {
    /// Owner of the request; only the same owner may repeat it.
    pub owner: OwnerDocument,
    /// Instance of the owner, from 0.
    #[serde(default, skip_serializing_if = "is_default")]
    pub instance: u32,
    /// Attempt; an attempt that is newer than the recorded one resets the partition.
    #[serde(default, skip_serializing_if = "is_default")]
    pub attempt: u32,
    /// Number of IPUs, a power of two.
    pub size: u32,
    /// Number of graph compilation domains (GCDs), by default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gcds: Option<u32>,
    /// Number of model replicas over all GCDs, by default the number of GCDs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// True if Poplar may select devices of any aligned size.
    #[serde(default, skip_serializing_if = "is_default")]
    pub reconfigurable: bool,
    /// V-IPU allocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<String>,
    /// Name of the only permitted controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<String>,
    /// Names of the machines (V-IPU agents) that the partition lies on; it may use every IPU of them. All of
    /// them belong to one controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machines: Option<Vec<String>>,
    /// Queue priority; higher values are served first.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: i32,
    /// Maximum duration of the hold in seconds. The expected start of queued requests is derived from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_runtime_seconds: Option<u64>,
    /// Account that usage is charged to, 1 to 253 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// True if a request of higher priority may preempt it, and it never preempts others.
    #[serde(default, skip_serializing_if = "is_default")]
    pub preemptible: bool,
    /// Duration of the lease in seconds, 1 to 604800. The owner renews it by `heartbeat`, and counts as dead
    /// once the lease has expired. Without this field an existing lease is not changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<u32>,
    /// Process on the host of the proxy that holds the partition, on a Unix socket only: the owner counts as
    /// dead once this process has ended, and with it all processes with the id of the partition in the
    /// environment variable `IPUCTL_PARTITION`. Zero ends the observation: the partition outlives the
    /// process. Without this field a recorded process is not changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_id: Option<u32>,
}

impl PutPartition {
    /// Creates a request of `owner` for `size` IPUs.
    #[must_use]
    pub const fn new(owner: OwnerDocument, size: u32) -> Self {
        Self {
            owner,
            instance: 0,
            attempt: 0,
            size,
            gcds: None,
            replicas: None,
            reconfigurable: false,
            allocation: None,
            controller: None,
            machines: None,
            priority: 0,
            max_runtime_seconds: None,
            account: None,
            preemptible: false,
            lease_seconds: None,
            process_id: None,
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Body of `POST /v1/partitions/{id}/reset`; all fields are optional.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ResetPartition {
    /// Attempt: the recorded one or a newer one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Required uid of the owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// Body of `POST /v1/partitions/{id}/heartbeat`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct Heartbeat {
    /// Duration of the lease from now on in seconds, 1 to 604800.
    pub seconds: u32,
    /// Required uid of the owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

impl Heartbeat {
    /// Creates a heartbeat that renews the lease for `seconds`.
    #[must_use]
    pub const fn new(seconds: u32) -> Self {
        Self { seconds, uid: None }
    }
}

/// Response of `POST /v1/partitions/{id}/heartbeat`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct LeaseDocument {
    /// Partition id.
    pub id: PartitionId,
    /// End of the lease.
    pub lease_until: Timestamp,
}

impl LeaseDocument {
    /// Creates the response.
    #[must_use]
    pub const fn new(id: PartitionId, lease_until: Timestamp) -> Self {
        Self { id, lease_until }
    }
}
