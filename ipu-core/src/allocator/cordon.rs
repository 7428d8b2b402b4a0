//! A cordon: hardware that takes no new partitions, with an owner and a reason.

use alloc::string::String;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::allocator::capacity::CordonTarget;
use crate::ids::{ControllerName, CordonId, CordonOwner};
use crate::units::Timestamp;

/// Hardware that takes no new partitions until the owner of the cordon removes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct Cordon {
    /// The cordon id.
    pub id: CordonId,
    /// Name of the controller.
    pub controller: ControllerName,
    /// The cordoned hardware.
    pub target: CordonTarget,
    /// Owner of the cordon, and the only one that may remove it.
    pub owner: CordonOwner,
    /// Reason, shown to users.
    pub reason: String,
    /// Time of the record.
    pub since: Timestamp,
}

impl Cordon {
    /// Maximum length of a reason in bytes: two sentences. The store has to keep space for releases in
    /// addition to all cordons.
    pub const MAX_REASON_LEN: usize = 256;

    /// Creates a cordon to be recorded, which sets `since`.
    #[must_use]
    pub fn new(
        id: CordonId,
        controller: ControllerName,
        what: CordonTarget,
        owner: CordonOwner,
        reason: impl Into<String>,
    ) -> Self {
        Self {
            id,
            controller,
            target: what,
            owner,
            reason: reason.into(),
            since: Timestamp::from_millis(0),
        }
    }
}

impl fmt::Display for Cordon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id,
            target,
            owner,
            reason,
            ..
        } = self;
        write!(f, "{id} ({target}) by {owner}: {reason}")
    }
}
