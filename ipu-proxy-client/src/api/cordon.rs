//! Cordons: hardware that gets nothing new until whoever said so lifts it.

use ipu_core::{
    AgentId, ControllerName, Cordon, CordonEffect, CordonId, CordonOwner, CordonTarget, Timestamp,
};
use serde::{Deserialize, Serialize};

use super::partition::BlockerDocument;

/// The body of `POST /v1/exclusions`. Safe to repeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct CordonRequest {
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

impl CordonRequest {
    /// Cordons all of `controller`; [`machine`](Self::machine) and [`ipu`](Self::ipu) narrow that down.
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

/// An cordon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CordonDocument {
    /// Its name.
    pub id: CordonId,
    /// At which controller.
    pub controller: ControllerName,
    /// Which machine; none if it is the whole controller.
    pub machine: Option<AgentId>,
    /// Which IPU of it; none if it is the whole machine.
    pub ipu: Option<u32>,
    /// Who said so, and alone lifts it.
    pub owner: CordonOwner,
    /// Why.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
}

impl From<&Cordon> for CordonDocument {
    fn from(cordon: &Cordon) -> Self {
        let (machine, ipu) = match &cordon.what {
            CordonTarget::Machine(agent) => (Some(agent.clone()), None),
            CordonTarget::Ipu(agent, ipu) => (Some(agent.clone()), Some(*ipu)),
            _ => (None, None),
        };
        Self {
            id: cordon.id.clone(),
            controller: cordon.controller.clone(),
            machine,
            ipu,
            owner: cordon.owner.clone(),
            reason: cordon.reason.clone(),
            since: cordon.since,
        }
    }
}

/// The answer of `POST /v1/exclusions`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CordonedDocument {
    /// The cordon.
    #[serde(rename = "exclusion")]
    pub cordon: CordonDocument,
    /// Who holds something there now, and keeps it.
    pub holders: Vec<BlockerDocument>,
}

impl From<&CordonEffect> for CordonedDocument {
    fn from(cordoned: &CordonEffect) -> Self {
        Self {
            cordon: CordonDocument::from(&cordoned.cordon),
            holders: cordoned.holders.iter().map(BlockerDocument::from).collect(),
        }
    }
}

/// The answer of `GET /v1/exclusions`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CordonList {
    /// All of them, by their names.
    #[serde(rename = "exclusions")]
    pub cordons: Vec<CordonDocument>,
}

impl CordonList {
    /// A list of these.
    #[must_use]
    pub const fn new(cordons: Vec<CordonDocument>) -> Self {
        Self { cordons }
    }
}

/// The answer of `DELETE /v1/exclusions/{id}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Uncordoned {
    /// What was lifted; none if there was nothing of that name.
    pub lifted: Option<CordonDocument>,
}

impl Uncordoned {
    /// This was lifted.
    #[must_use]
    pub const fn new(lifted: Option<CordonDocument>) -> Self {
        Self { lifted }
    }
}
