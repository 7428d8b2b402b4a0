//! Readiness of a proxy.

use serde::{Deserialize, Serialize};

/// Response of `GET /readyz`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReadyDocument {
    /// Role of the proxy.
    pub status: Readiness,
}

impl ReadyDocument {
    /// Creates the response.
    #[must_use]
    pub const fn new(status: Readiness) -> Self {
        Self { status }
    }
}

/// Role of a ready proxy among its replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Readiness {
    /// The proxy serves requests (`ok`).
    #[serde(rename = "ok")]
    Leads,
    /// The proxy takes over when the leading one ends, and refuses requests until then (`standby`).
    #[serde(rename = "standby")]
    StandsBy,
}
