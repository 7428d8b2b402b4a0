//! Records of finished holds.

use ipu_core::allocator::UsageRecord;
use ipu_core::{ControllerName, PartitionId, Timestamp};
use serde::{Deserialize, Serialize};

use super::owner::OwnerDocument;

/// A finished hold of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RecordDocument {
    /// Partition id.
    pub id: PartitionId,
    /// Owner; none if it is unknown.
    pub owner: Option<OwnerDocument>,
    /// Instance of the owner.
    pub instance: u32,
    /// Account that the usage is charged to.
    pub account: Option<String>,
    /// Controller of the partition.
    pub controller: Option<ControllerName>,
    /// Number of IPUs.
    pub size: u32,
    /// Number of attempts until the end.
    pub attempts: u32,
    /// Start of the hold.
    pub held_since: Timestamp,
    /// End of the hold.
    pub released_at: Timestamp,
    /// Cause of the end: `released`, `lost` (by the controller) or `unowned` (no known owner).
    pub end: String,
}

impl From<&UsageRecord> for RecordDocument {
    fn from(record: &UsageRecord) -> Self {
        Self {
            id: record.id.clone(),
            owner: record.owner.as_ref().map(OwnerDocument::from),
            instance: record.instance,
            account: record.account.clone(),
            controller: record.controller.clone(),
            size: record.size.get(),
            attempts: record.attempts,
            held_since: record.held_since,
            released_at: record.released_at,
            end: record.end.label().to_owned(),
        }
    }
}

/// Response of `GET /v1/usage`: one page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RecordList {
    /// Records in the order of their ends.
    pub records: Vec<RecordDocument>,
    /// Value of the parameter `continue` for the next page; none on the last page.
    #[serde(rename = "continue", default, skip_serializing_if = "Option::is_none")]
    pub continue_token: Option<String>,
}

impl RecordList {
    /// Creates a list that has no next page.
    #[must_use]
    pub const fn new(records: Vec<RecordDocument>) -> Self {
        Self {
            records,
            continue_token: None,
        }
    }
}
