//! Cordons: hardware that takes no new partitions until the owner of the cordon lifts it.

use ipu_core::allocator::{Cordon, CordonEffect, CordonTarget};
use ipu_core::{AgentId, ControllerName, CordonId, CordonOwner, Timestamp};
use serde::{Deserialize, Serialize};

use super::partition::BlockerDocument;

/// Body of `POST /v1/cordons`. Idempotent.
///
/// ```
/// use ipu_proxy_client::CordonRequest;
/// use serde_json::json;
///
/// let mut request = CordonRequest::new("fan", "pod1:8090", "a fan is broken");
/// request.machine = Some("a4".into());
/// assert_eq!(
///     serde_json::to_value(&request)?,
///     json!({"id": "fan", "controller": "pod1:8090", "machine": "a4", "reason": "a fan is broken"}),
/// );
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct CordonRequest {
    /// Name of the cordon, by which it is lifted.
    pub id: String,
    /// Name of the controller.
    pub controller: String,
    /// Agent of the machine; without it the whole controller is cordoned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// IPU of the machine, 0 to 3; without it the whole machine is cordoned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipu: Option<u32>,
    /// Reason for people, 1 to 256 bytes.
    pub reason: String,
}

impl CordonRequest {
    /// Creates a cordon of the whole controller; [`machine`](Self::machine) and [`ipu`](Self::ipu) restrict
    /// it.
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

/// A cordon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CordonDocument {
    /// Name of the cordon.
    pub id: CordonId,
    /// Name of the controller.
    pub controller: ControllerName,
    /// Machine; none for the whole controller.
    pub machine: Option<AgentId>,
    /// IPU of the machine; none for the whole machine.
    pub ipu: Option<u32>,
    /// Owner, the only one that may lift the cordon.
    pub owner: CordonOwner,
    /// Reason for people.
    pub reason: String,
    /// Start of the cordon.
    pub since: Timestamp,
}

impl From<&Cordon> for CordonDocument {
    fn from(cordon: &Cordon) -> Self {
        let (machine, ipu) = match &cordon.target {
            CordonTarget::Machine(agent) => (Some(agent.clone()), None),
            CordonTarget::Ipu(agent, ipu) => (Some(agent.clone()), Some(*ipu)),
            CordonTarget::Controller => (None, None),
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

/// Response of `POST /v1/cordons`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CordonedDocument {
    /// The cordon.
    pub cordon: CordonDocument,
    /// Partitions that use the cordoned hardware; they are kept.
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

/// Response of `GET /v1/cordons`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CordonList {
    /// All cordons, ordered by name.
    pub cordons: Vec<CordonDocument>,
}

impl CordonList {
    /// Creates a list.
    #[must_use]
    pub const fn new(cordons: Vec<CordonDocument>) -> Self {
        Self { cordons }
    }
}

/// Response of `DELETE /v1/cordons/{id}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UncordonedDocument {
    /// Lifted cordon; none if there was no cordon of that name.
    pub lifted: Option<CordonDocument>,
}

impl UncordonedDocument {
    /// Creates the response.
    #[must_use]
    pub const fn new(lifted: Option<CordonDocument>) -> Self {
        Self { lifted }
    }
}
