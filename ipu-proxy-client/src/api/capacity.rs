//! Used and free IPUs, and dry runs.

use std::collections::BTreeMap;

use ipu_core::hardware::IpuPlace;
use ipu_core::{ControllerName, PartitionId, Reason, ReasonCode};
use serde::{Deserialize, Serialize};

/// IPUs of one namespace, or of the whole system (V-IPU guide §6.9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Usage {
    /// IPUs that the ledger has allocated.
    pub used: u32,
    /// Free IPUs of the whole system, the same for all namespaces.
    pub available: u32,
}

impl Usage {
    /// Creates the document.
    #[must_use]
    pub const fn new(used: u32, available: u32) -> Self {
        Self { used, available }
    }
}

/// Response of `GET /stats`: usage by namespace, and of the whole system as [`TOTAL`](Self::TOTAL). A
/// namespace of that name is only part of the total.
///
/// ```
/// use ipu_proxy_client::{Stats, Usage};
///
/// let text = r#"{"default":{"used":4,"available":12},"total":{"used":4,"available":12}}"#;
/// let stats: Stats = serde_json::from_str(text)?;
/// assert_eq!(stats.total(), Some(Usage::new(4, 12)));
/// // A namespace without partitions is absent.
/// assert_eq!(stats.0.get("research"), None);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stats(pub BTreeMap<String, Usage>);

impl Stats {
    /// Key of the whole system.
    pub const TOTAL: &'static str = "total";

    /// Returns the usage of the whole system; none if the response does not contain it.
    #[must_use]
    pub fn total(&self) -> Option<Usage> {
        self.0.get(Self::TOTAL).copied()
    }
}

/// Body of `POST /query`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CapacityQuery {
    /// Number of IPUs of each partition, a power of two.
    pub size: u32,
    /// V-IPU allocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<String>,
}

impl CapacityQuery {
    /// Creates a query for partitions of `size` IPUs.
    #[must_use]
    pub const fn new(size: u32) -> Self {
        Self {
            size,
            allocation: None,
        }
    }
}

/// Response of `POST /query` (V-IPU guide §6.9).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Fit {
    /// True if at least one controller answered.
    pub available: bool,
    /// Number of partitions of the size that fit now, over all controllers.
    pub num_of_partitions: u64,
    /// Reason that the number is incomplete; empty if it is complete.
    pub message: String,
}

/// Body of `POST /v1/plan`: a dry run of partitions side by side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct DryRunRequest {
    /// Sizes in IPUs, powers of two: 1 to 256 entries.
    pub sizes: Vec<u32>,
    /// Partitions that are treated as released: at most 256.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub if_these_ended: Vec<String>,
    /// V-IPU allocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<String>,
}

impl DryRunRequest {
    /// Creates a dry run of partitions of `sizes`.
    #[must_use]
    pub const fn new(sizes: Vec<u32>) -> Self {
        Self {
            sizes,
            if_these_ended: Vec::new(),
            allocation: None,
        }
    }
}

/// Result of a dry run for one size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DryRunResult {
    /// Size in IPUs.
    pub size: u32,
    /// True if it would fit in addition to the previous ones.
    pub fits: bool,
    /// Controller where it would fit.
    pub controller: Option<ControllerName>,
    /// IPUs that it would get; empty if it does not fit, or if the controller chooses them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ipus: Vec<IpuPlace>,
    /// Partitions that would have to end for it to fit, as far as they are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<PartitionId>,
    /// Reasons of the controllers without capacity.
    pub reasons: Vec<ControllerReason>,
}

impl DryRunResult {
    /// Creates the result: it fits if there is a controller.
    #[must_use]
    pub fn new(
        size: u32,
        controller: Option<ControllerName>,
        reasons: Vec<(ControllerName, Reason)>,
    ) -> Self {
        let reason = |(controller, reason)| ControllerReason { controller, reason };
        Self {
            size,
            fits: controller.is_some(),
            controller,
            ipus: Vec::new(),
            blockers: Vec::new(),
            reasons: reasons.into_iter().map(reason).collect(),
        }
    }
}

/// Reason that a controller has no capacity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ControllerReason {
    /// Name of the controller.
    pub controller: ControllerName,
    /// Reason.
    #[serde(flatten)]
    pub reason: Reason,
}

// Implemented by hand: `Reason` denies unknown fields, so that it cannot be flattened by the derive.
impl<'de> Deserialize<'de> for ControllerReason {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Flat {
            controller: ControllerName,
            code: ReasonCode,
            #[serde(default)]
            numbers: BTreeMap<String, u64>,
            message: String,
        }
        Flat::deserialize(deserializer).map(|flat| Self {
            controller: flat.controller,
            reason: Reason {
                code: flat.code,
                numbers: flat.numbers,
                message: flat.message,
            },
        })
    }
}

/// Response of `POST /v1/plan`.
///
/// ```
/// use ipu_proxy_client::DryRunResponse;
///
/// // Response to the sizes 1 and 16 on a free IPU-POD16.
/// let response: DryRunResponse = serde_json::from_str(
///     r#"{"planned":[
///         {"size":1,"fits":true,"controller":"pod1:8090","ipus":[{"linkDomain":0,"ipu":0}],"reasons":[]},
///         {"size":16,"fits":false,"controller":null,"reasons":[
///             {"controller":"pod1:8090","code":"NotEnoughFree",
///              "numbers":{"free":15,"largestBlock":8,"size":16},
///              "message":"cannot fit 16 IPUs: 15 are free"}]}
///     ]}"#,
/// )?;
/// let [first, second] = response.results.as_slice() else { panic!("one result for each size") };
/// assert_eq!((first.fits, first.ipus[0].ipu), (true, 0));
/// assert_eq!(second.reasons[0].reason.code, "NotEnoughFree");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DryRunResponse {
    /// One result for each size, in the order of the request.
    #[serde(rename = "planned")]
    pub results: Vec<DryRunResult>,
}

impl DryRunResponse {
    /// Creates the response.
    #[must_use]
    pub const fn new(results: Vec<DryRunResult>) -> Self {
        Self { results }
    }
}
