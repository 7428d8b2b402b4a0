//! Controllers.

use ipu_core::ControllerName;
use serde::{Deserialize, Serialize};

/// Where a controller is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ControllerDocument {
    /// Its name in the ledger: `host:port` as it was configured.
    pub name: ControllerName,
    /// Its host; none if it is not on the list any more.
    pub host: Option<String>,
    /// Its port; none if it is not on the list any more.
    pub port: Option<u16>,
    /// `key=value`: the label of the nodes that reach its IPUs.
    pub node_label: Option<String>,
}

impl ControllerDocument {
    /// A controller of which no more than the name is known.
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

/// A controller and how it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ControllerStatus {
    /// Which.
    #[serde(flatten)]
    pub controller: ControllerDocument,
    /// Whether it answered just now.
    pub available: bool,
    /// It was taken off the list and only gives back what it has.
    pub draining: bool,
    /// The version of its software.
    pub version: Option<String>,
    /// Free IPUs.
    pub free: Option<u32>,
    /// The IPUs of the largest partition that fits.
    pub largest_block: Option<u32>,
    /// How often it failed since it last answered.
    pub failures_in_a_row: u32,
    /// What went wrong last, if it does not answer.
    pub error: Option<String>,
    /// Seconds since it last answered.
    pub last_success_seconds_ago: Option<u64>,
}

impl ControllerStatus {
    /// A controller of which nothing was heard.
    #[must_use]
    pub const fn new(controller: ControllerDocument) -> Self {
        Self {
            controller,
            available: false,
            draining: false,
            version: None,
            free: None,
            largest_block: None,
            failures_in_a_row: 0,
            error: None,
            last_success_seconds_ago: None,
        }
    }
}

/// The answer of `GET /v1/controllers`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ControllerList {
    /// In the order in which they are tried, those that are drained behind.
    pub controllers: Vec<ControllerStatus>,
}

impl ControllerList {
    /// A list of these.
    #[must_use]
    pub const fn new(controllers: Vec<ControllerStatus>) -> Self {
        Self { controllers }
    }
}
