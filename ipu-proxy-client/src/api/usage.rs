//! Who held what for how long.

use ipu_core::{ControllerName, PartitionId, Timestamp, UsageRecord};
use serde::{Deserialize, Serialize};

use super::owner::OwnerDocument;

/// A hold that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RecordDocument {
    /// Which partition.
    pub id: PartitionId,
    /// Who held it; none if nobody is known to have owned it.
    pub owner: Option<OwnerDocument>,
    /// Which instance of the owner.
    pub instance: u32,
    /// Whom it is charged to.
    pub account: Option<String>,
    /// Where it was.
    pub controller: Option<ControllerName>,
    /// How many IPUs.
    pub size: u32,
    /// How many attempts there had been by its end.
    pub attempts: u32,
    /// From when on.
    pub held_since: Timestamp,
    /// Until when.
    pub released_at: Timestamp,
    /// How it ended: `released`, `lost` (the controller had lost it) or `unowned` (nobody owned it).
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

/// The answer of `GET /v1/usage`: a page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RecordList {
    /// In the order of their ends.
    pub records: Vec<RecordDocument>,
    /// The `continue` parameter of the next page; none on the last page.
    #[serde(rename = "continue", default, skip_serializing_if = "Option::is_none")]
    pub continue_token: Option<String>,
}

impl RecordList {
    /// A list of these.
    #[must_use]
    pub const fn new(records: Vec<RecordDocument>) -> Self {
        Self {
            records,
            continue_token: None,
        }
    }
}
