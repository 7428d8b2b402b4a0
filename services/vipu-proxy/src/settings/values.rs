//! Values of single settings.

use serde::Deserialize;

/// Order of the controllers with enough capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Selection {
    /// The order of the list.
    Serial,
    /// The smallest largest free block first.
    Tightest,
    /// The most free IPUs first.
    MostFree,
}

/// Read access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ReadAccess {
    /// Every client.
    Open,
    /// Authenticated clients only.
    Closed,
}

/// Authentication without tokens and certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Auth {
    /// Admits every client.
    None,
}

/// Quota of a namespace or an account.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub struct QuotaSetting {
    /// Namespace of the quota.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Account of the quota, instead of a namespace.
    #[serde(default)]
    pub account: Option<String>,
    /// Namespaces that may charge the account, `*` for all of them. Required for an account.
    #[serde(default)]
    pub namespaces: Vec<String>,
    /// Maximum number of IPUs; unlimited if unset.
    #[serde(default)]
    pub max_ipus: Option<u32>,
    /// Maximum number of partitions; unlimited if unset.
    #[serde(default)]
    pub max_partitions: Option<u32>,
}

/// Highest priority of requests.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub struct PrioritySetting {
    /// Namespace of the owners; none stands for every namespace without an entry of its own.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Highest priority.
    pub max_priority: i32,
}
