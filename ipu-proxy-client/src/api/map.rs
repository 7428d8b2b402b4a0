//! The map of the hardware.

use ipu_core::allocator::{IpuRun, LinkDomainMap, MachineMap, QuotaSubject, QuotaUsage};
use ipu_core::{AgentId, ClusterId, ControllerName, CordonId, PartitionId, Timestamp};
use serde::{Deserialize, Serialize};

use super::partition::HoldState;

/// Response of `GET /v1/map`. It has an `ETag`, which changes with its content.
///
/// ```
/// use ipu_proxy_client::{MapDocument, RunDocument};
///
/// let map: MapDocument = serde_json::from_str(
///     r#"{"controllers":[{"name":"pod1:8090","health":"available","version":"1.18.0","linkDomains":[
///         {"cluster":"cl1","number":0,"machines":[
///             {"name":"a1","runs":[{"ipus":1,"holder":"training","phase":"active"},{"ipus":3}]},
///             {"name":"a2","runs":[{"ipus":4,"cordons":["fan"]}]}]}
///     ]}],"quotas":[]}"#,
/// )?;
/// let machines = map.controllers.iter().flat_map(|one| &one.link_domains).flat_map(|one| &one.machines);
/// let is_free = |run: &&RunDocument| run.holder.is_none() && run.cordons.is_empty() && !run.unhealthy;
/// let free = machines.flat_map(|machine| &machine.runs).filter(is_free);
/// assert_eq!(free.map(|run| run.ipus).sum::<u32>(), 3);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MapDocument {
    /// Controllers in the order of placement; draining ones last.
    pub controllers: Vec<ControllerMapDocument>,
    /// Quotas, by subject.
    pub quotas: Vec<QuotaDocument>,
}

impl MapDocument {
    /// Creates the response.
    #[must_use]
    pub const fn new(controllers: Vec<ControllerMapDocument>, quotas: Vec<QuotaDocument>) -> Self {
        Self { controllers, quotas }
    }
}

/// State of a controller on the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ControllerHealth {
    /// It answers and takes new partitions.
    Available,
    /// It was removed from the configuration and only releases its partitions.
    Draining,
    /// It does not answer.
    Silent,
    /// It is a second name of another controller.
    Alias,
    /// A state that this version does not know.
    #[serde(other)]
    Other,
}

impl ControllerHealth {
    /// Returns the name of the state, as on the wire.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Draining => "draining",
            Self::Silent => "silent",
            Self::Alias => "alias",
            Self::Other => "other",
        }
    }
}

/// A controller with its hardware.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ControllerMapDocument {
    /// Name of the controller.
    pub name: ControllerName,
    /// State of the controller.
    pub health: ControllerHealth,
    /// Version of its software; none if it does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Last answer of a silent controller; the start of the proxy if it has not answered since then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_since: Option<Timestamp>,
    /// Error of a silent controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Link domains in the order of the hardware. Empty if the controller is silent, or does not report its
    /// hardware.
    pub link_domains: Vec<LinkDomainDocument>,
    /// Partitions that hold IPUs of the controller, and are on none of `linkDomains`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unplaced: Vec<PartitionId>,
}

impl ControllerMapDocument {
    /// Creates a controller without hardware.
    #[must_use]
    pub const fn new(name: ControllerName, health: ControllerHealth) -> Self {
        Self {
            name,
            health,
            version: None,
            silent_since: None,
            error: None,
            link_domains: Vec::new(),
            unplaced: Vec::new(),
        }
    }
}

/// A link domain: one rack of an IPU-POD64.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LinkDomainDocument {
    /// V-IPU cluster of the link domain.
    pub cluster: ClusterId,
    /// Number of the link domain in the cluster, from 0.
    pub number: u32,
    /// Machines in the order of their IPUs.
    pub machines: Vec<MachineMapDocument>,
}

impl From<LinkDomainMap> for LinkDomainDocument {
    fn from(map: LinkDomainMap) -> Self {
        Self {
            cluster: map.cluster,
            number: map.number,
            machines: map.machines.into_iter().map(MachineMapDocument::from).collect(),
        }
    }
}

/// A machine with four IPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MachineMapDocument {
    /// Name of its agent, by which it is cordoned.
    pub name: AgentId,
    /// Its IPUs, in order.
    pub runs: Vec<RunDocument>,
}

impl From<MachineMap> for MachineMapDocument {
    fn from(map: MachineMap) -> Self {
        Self {
            name: map.name,
            runs: map.runs.into_iter().map(RunDocument::from).collect(),
        }
    }
}

/// Consecutive IPUs of a machine with the same use. IPUs without holder, cordons and fault are free.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunDocument {
    /// Number of IPUs, 1 to 4.
    pub ipus: u32,
    /// Partition that holds the IPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<PartitionId>,
    /// State of the holder in the ledger; none if there is no holder, or if the holder is foreign.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<HoldState>,
    /// True if the ledger does not record the holder, such as the partition of a user of the `vipu` tool.
    #[serde(default, skip_serializing_if = "is_false")]
    pub foreign: bool,
    /// Cordons of the IPUs, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cordons: Vec<CordonId>,
    /// True if the controller reports the IPUs unhealthy.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unhealthy: bool,
}

impl From<IpuRun> for RunDocument {
    fn from(run: IpuRun) -> Self {
        Self {
            ipus: run.ipus,
            foreign: run.holder.is_some() && run.phase.is_none(),
            phase: run.phase.as_ref().map(HoldState::from),
            holder: run.holder,
            cordons: run.cordons,
            unhealthy: run.is_unhealthy,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// Use of a quota. It has a namespace or an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct QuotaDocument {
    /// Namespace of the quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Account of the quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Number of IPUs held.
    pub ipus: u32,
    /// Maximum number of IPUs; unlimited if it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_ipus: Option<u32>,
    /// Number of partitions held.
    pub partitions: u32,
    /// Maximum number of partitions; unlimited if it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_partitions: Option<u32>,
}

impl From<QuotaUsage> for QuotaDocument {
    fn from(usage: QuotaUsage) -> Self {
        let (namespace, account) = match usage.subject {
            QuotaSubject::Namespace(name) => (Some(name.to_string()), None),
            QuotaSubject::Account(name) => (None, Some(name)),
        };
        Self {
            namespace,
            account,
            ipus: usage.ipus,
            max_ipus: usage.quota.max_ipus,
            partitions: usage.partitions,
            max_partitions: usage.quota.max_partitions,
        }
    }
}
