//! Controllers.

use ipu_core::allocator::SizeFit;
use ipu_core::{AgentId, ControllerName, PartitionId};
use serde::{Deserialize, Serialize};

use super::allocation::UnrecordedPartition;

/// Name and address of a controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ControllerDocument {
    /// Name in the ledger: `host:port` as configured.
    pub name: ControllerName,
    /// Host; none if the controller is not configured any more.
    pub host: Option<String>,
    /// Port; none if the controller is not configured any more.
    pub port: Option<u16>,
    /// Label of the nodes that reach its IPUs, as `key=value`.
    pub node_label: Option<String>,
}

impl ControllerDocument {
    /// Creates a document with the name only.
    #[must_use]
    pub const fn new(name: ControllerName) -> Self {
        Self {
            name,
            host: None,
            port: None,
            node_label: None,
        }
    }
}

/// State of a controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ControllerStatus {
    /// The controller.
    #[serde(flatten)]
    pub controller: ControllerDocument,
    /// True if the controller answered the last request.
    pub available: bool,
    /// True if it was removed from the configuration and only releases its partitions.
    pub draining: bool,
    /// Version of its software.
    pub version: Option<String>,
    /// Number of free IPUs.
    pub free: Option<u32>,
    /// Number of IPUs of the largest partition that fits.
    pub largest_block: Option<u32>,
    /// Number of partitions of each power of two that fit now, in ascending order of the size; empty if the
    /// controller does not answer or does not report its hardware.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fits: Vec<FitDocument>,
    /// Machines, ordered by name; empty if the controller does not answer or does not report its hardware.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub machines: Vec<MachineDocument>,
    /// Partitions that the controller lists and the ledger does not record, such as those of a user of the
    /// `vipu` tool. Their IPUs are used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub foreign: Vec<UnrecordedPartition>,
    /// Placement of new partitions: the name of the placement policy, or `delegated` for the
    /// controller itself; none if the proxy does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<String>,
    /// Number of consecutive failures.
    pub failures_in_a_row: u32,
    /// Last error, if the controller does not answer.
    pub error: Option<String>,
    /// Seconds since the last answer.
    pub last_success_seconds_ago: Option<u64>,
}

impl ControllerStatus {
    /// Creates the state of a controller that has not answered yet.
    #[must_use]
    pub const fn new(controller: ControllerDocument) -> Self {
        Self {
            controller,
            available: false,
            draining: false,
            version: None,
            free: None,
            largest_block: None,
            fits: Vec::new(),
            machines: Vec::new(),
            foreign: Vec::new(),
            placement: None,
            failures_in_a_row: 0,
            error: None,
            last_success_seconds_ago: None,
        }
    }
}

/// Number of partitions of one size that fit side by side now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FitDocument {
    /// Number of IPUs of each partition, a power of two.
    pub size: u32,
    /// Number of partitions; 0 if none fits now.
    pub count: u32,
}

impl From<&SizeFit> for FitDocument {
    fn from(fit: &SizeFit) -> Self {
        Self {
            size: fit.size.get(),
            count: fit.count,
        }
    }
}

/// A machine of a controller, with four IPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MachineDocument {
    /// Name of its agent, by which it is cordoned.
    pub name: AgentId,
    /// Number of IPUs that the controller reports healthy and unused, including cordoned ones: 0 to 4.
    pub free: u32,
    /// Partitions on its IPUs, as the controller lists them.
    pub partitions: Vec<PartitionId>,
}

impl MachineDocument {
    /// Creates the document.
    #[must_use]
    pub const fn new(name: AgentId, free: u32, partitions: Vec<PartitionId>) -> Self {
        Self {
            name,
            free,
            partitions,
        }
    }
}

/// Response of `GET /v1/controllers`.
///
/// ```
/// use ipu_proxy_client::ControllerList;
///
/// let list: ControllerList = serde_json::from_str(
///     r#"{"controllers":[{
///         "name":"pod1:8090","host":"pod1","port":8090,"nodeLabel":null,"available":true,"draining":false,
///         "version":"1.18.0","free":8,"largestBlock":8,
///         "fits":[{"size":4,"count":2},{"size":8,"count":1},{"size":16,"count":0}],
///         "placement":"first-fit","failuresInARow":0,"error":null,"lastSuccessSecondsAgo":0
///     }]}"#,
/// )?;
/// let fits = list.controllers.iter().flat_map(|status| &status.fits);
/// let count = |size| fits.clone().filter(|fit| fit.size == size).map(|fit| fit.count).sum::<u32>();
/// assert_eq!((count(4), count(8), count(16)), (2, 1, 0));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ControllerList {
    /// Controllers in the order of placement; draining ones last.
    pub controllers: Vec<ControllerStatus>,
}

impl ControllerList {
    /// Creates a list.
    #[must_use]
    pub const fn new(controllers: Vec<ControllerStatus>) -> Self {
        Self { controllers }
    }
}
