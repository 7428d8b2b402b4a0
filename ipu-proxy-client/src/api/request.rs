//! What is asked for partitions.

use ipu_core::{PartitionId, Timestamp};
use serde::{Deserialize, Serialize};

use super::owner::OwnerDocument;

/// The body of `PUT /v1/partitions/{id}`. Asking again with the same values changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct PutPartition {
    /// Who asks: only the same owner may ask again.
    pub owner: OwnerDocument,
    /// Which instance of the owner, from 0.
    #[serde(default, skip_serializing_if = "is_default")]
    pub instance: u32,
    /// What the partition is to be fresh for: a newer one than recorded resets it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub attempt: u32,
    /// IPUs: a power of two.
    pub size: u32,
    /// Graph compilation domains; 1 if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gcds: Option<u32>,
    /// Model replicas over all of them; as many if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// Whether Poplar may pick devices of any aligned size.
    #[serde(default, skip_serializing_if = "is_default")]
    pub reconfigurable: bool,
    /// The V-IPU allocation to draw from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<String>,
    /// The only controller that will do, by its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<String>,
    /// Higher goes first in the line.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: i32,
    /// For how long it is held at most, in seconds: what others are told of the time that they wait rests on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_runtime_seconds: Option<u64>,
    /// Whom it is charged to: 1 to 253 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Whether it may be ended for a request of higher priority. Recorded; nothing pre-empts yet.
    #[serde(default, skip_serializing_if = "is_default")]
    pub preemptible: bool,
    /// The owner says that it is alive at least every so many seconds, 1 to 604800, by `heartbeat`; who is silent for longer is
    /// dead. Left out, a lease that it has already stays as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<u32>,
}

impl PutPartition {
    /// A request of `owner` for `size` IPUs.
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
            priority: 0,
            max_runtime_seconds: None,
            account: None,
            preemptible: false,
            lease_seconds: None,
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The body of `POST /v1/partitions/{id}/reset`; all of it may be left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ResetPartition {
    /// For which attempt: the recorded one or a newer one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The uid that the owner has to have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// The body of `POST /v1/partitions/{id}/heartbeat`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct Heartbeat {
    /// The length of the lease from now on: 1 to 604800.
    pub seconds: u32,
    /// The uid that the owner has to have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

impl Heartbeat {
    /// A lease of `seconds`.
    #[must_use]
    pub const fn new(seconds: u32) -> Self {
        Self { seconds, uid: None }
    }
}

/// The answer of `POST /v1/partitions/{id}/heartbeat`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct LeaseDocument {
    /// Which partition.
    pub id: PartitionId,
    /// Until when its owner is taken for alive without saying so again.
    pub lease_until: Timestamp,
}

impl LeaseDocument {
    /// A lease.
    #[must_use]
    pub const fn new(id: PartitionId, lease_until: Timestamp) -> Self {
        Self { id, lease_until }
    }
}
