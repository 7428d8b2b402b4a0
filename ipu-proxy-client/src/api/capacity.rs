//! How many IPUs are used and free, and what would fit.

use std::collections::BTreeMap;

use ipu_core::{ControllerName, Reason};
use serde::{Deserialize, Serialize};

/// The IPUs of one namespace, or of all (seed 000 §6.9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Usage {
    /// IPUs that the ledger holds.
    pub used: u32,
    /// Free IPUs of the whole system, the same number everywhere.
    pub available: u32,
}

impl Usage {
    /// These numbers.
    #[must_use]
    pub const fn new(used: u32, available: u32) -> Self {
        Self { used, available }
    }
}

/// The answer of `GET /stats`: by namespace, and under [`TOTAL`](Self::TOTAL) the whole system. A namespace of that name is
/// only counted in the total.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stats(pub BTreeMap<String, Usage>);

impl Stats {
    /// The key of the whole system.
    pub const TOTAL: &'static str = "total";

    /// The numbers of the whole system; none only if the answer does not have them.
    #[must_use]
    pub fn total(&self) -> Option<Usage> {
        self.0.get(Self::TOTAL).copied()
    }
}

/// The body of `POST /query`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CapacityQuery {
    /// IPUs of each partition. What is no power of two is answered with the rule.
    pub size: u32,
}

impl CapacityQuery {
    /// How many partitions of `size` IPUs fit?
    #[must_use]
    pub const fn new(size: u32) -> Self {
        Self { size }
    }
}

/// The answer of `POST /query` (seed 000 §6.9).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Fit {
    /// Whether at least one controller answered.
    pub available: bool,
    /// How many partitions of the size fit now, over all controllers.
    pub num_of_partitions: u64,
    /// Why the number is not the whole truth; empty if it is.
    pub message: String,
}

/// The body of `POST /v1/plan`: what would fit, side by side?
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct DryRunRequest {
    /// The sizes in IPUs: 1 to 256 of them, powers of two.
    pub sizes: Vec<u32>,
    /// Partitions that are thought away: at most 256.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub if_these_ended: Vec<String>,
}

impl DryRunRequest {
    /// Would partitions of `sizes` fit side by side?
    #[must_use]
    pub const fn new(sizes: Vec<u32>) -> Self {
        Self {
            sizes,
            if_these_ended: Vec::new(),
        }
    }
}

/// What would become of one size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Planned {
    /// The size in IPUs.
    pub size: u32,
    /// Whether it would fit beside those before it.
    pub fits: bool,
    /// Where.
    pub controller: Option<ControllerName>,
    /// What each controller says that has no room.
    pub reasons: Vec<ControllerReason>,
}

impl Planned {
    /// A size, where it would fit, and who has no room for it.
    #[must_use]
    pub fn new(size: u32, controller: Option<ControllerName>, why: Vec<(ControllerName, Reason)>) -> Self {
        let reason = |(controller, reason)| ControllerReason { controller, reason };
        Self {
            size,
            fits: controller.is_some(),
            controller,
            reasons: why.into_iter().map(reason).collect(),
        }
    }
}

/// Why a controller has no room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ControllerReason {
    /// Which controller.
    pub controller: ControllerName,
    /// Why.
    #[serde(flatten)]
    pub reason: Reason,
}

// By hand: a flattened value that refuses fields that it does not know would refuse those beside it.
impl<'de> Deserialize<'de> for ControllerReason {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Flat {
            controller: ControllerName,
            code: String,
            #[serde(default)]
            numbers: BTreeMap<String, u64>,
            message: String,
        }
        Flat::deserialize(from).map(|flat| Self {
            controller: flat.controller,
            reason: Reason {
                code: flat.code,
                numbers: flat.numbers,
                message: flat.message,
            },
        })
    }
}

/// The answer of `POST /v1/plan`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DryRunResponse {
    /// One for each size, in the order of the question.
    pub planned: Vec<Planned>,
}

impl DryRunResponse {
    /// These.
    #[must_use]
    pub const fn new(planned: Vec<Planned>) -> Self {
        Self { planned }
    }
}
