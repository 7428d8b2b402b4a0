//! Cordons: hardware that gets nothing new until whoever said so lifts it.

use ipu_core::{
    AgentId, ControllerName, Excluded, Exclusion, ExclusionId, ExclusionOwner, ExclusionTarget, Timestamp,
};
use serde::{Deserialize, Serialize};

use super::partition::BlockerDocument;

/// The body of `POST /v1/exclusions`. Safe to repeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct Exclude {
    /// Under which name: that is how it is lifted again.
    pub id: String,
    /// At which controller, by its name.
    pub controller: String,
    /// The machine, by its agent; without it the whole controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// One IPU of the machine, 0 to 3; without it the whole machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipu: Option<u32>,
    /// Why, for people: 1 to 256 bytes.
    pub reason: String,
}

impl Exclude {
    /// Excludes all of `controller`; [`machine`](Self::machine) and [`ipu`](Self::ipu) narrow that down.
    #[must_use]
    pub fn new(id: impl Into<String>, controller: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            controller: controller.into(),
            machine: None,
            ipu: None,
            reason: reason.into(),
        }
    }
}

/// An exclusion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExclusionDocument {
    /// Its name.
    pub id: ExclusionId,
    /// At which controller.
    pub controller: ControllerName,
    /// Which machine; none if it is the whole controller.
    pub machine: Option<AgentId>,
    /// Which IPU of it; none if it is the whole machine.
    pub ipu: Option<u32>,
    /// Who said so, and alone lifts it.
    pub owner: ExclusionOwner,
    /// Why.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
}

impl From<&Exclusion> for ExclusionDocument {
    fn from(exclusion: &Exclusion) -> Self {
        let (machine, ipu) = match &exclusion.what {
            ExclusionTarget::Machine(agent) => (Some(agent.clone()), None),
            ExclusionTarget::Ipu(agent, ipu) => (Some(agent.clone()), Some(*ipu)),
            _ => (None, None),
        };
        Self {
            id: exclusion.id.clone(),
            controller: exclusion.controller.clone(),
            machine,
            ipu,
            owner: exclusion.owner.clone(),
            reason: exclusion.reason.clone(),
            since: exclusion.since,
        }
    }
}

/// The answer of `POST /v1/exclusions`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExcludedDocument {
    /// The exclusion.
    pub exclusion: ExclusionDocument,
    /// Who holds something there now, and keeps it.
    pub holders: Vec<BlockerDocument>,
}

impl From<&Excluded> for ExcludedDocument {
    fn from(excluded: &Excluded) -> Self {
        Self {
            exclusion: ExclusionDocument::from(&excluded.exclusion),
            holders: excluded.holders.iter().map(BlockerDocument::from).collect(),
        }
    }
}

/// The answer of `GET /v1/exclusions`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExclusionList {
    /// All of them, by their names.
    pub exclusions: Vec<ExclusionDocument>,
}

impl ExclusionList {
    /// A list of these.
    #[must_use]
    pub const fn new(exclusions: Vec<ExclusionDocument>) -> Self {
        Self { exclusions }
    }
}

/// The answer of `DELETE /v1/exclusions/{id}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Lifted {
    /// What was lifted; none if there was nothing of that name.
    pub lifted: Option<ExclusionDocument>,
}

impl Lifted {
    /// This was lifted.
    #[must_use]
    pub const fn new(lifted: Option<ExclusionDocument>) -> Self {
        Self { lifted }
    }
}
