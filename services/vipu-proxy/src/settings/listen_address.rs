//! Listen address of the proxy.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// Prefix of the path of a Unix socket.
const UNIX_PREFIX: &str = "unix:";

/// Listen address: `ADDRESS:PORT`, or `unix:PATH` for a Unix socket.
///
/// The clients of a Unix socket are authenticated by the kernel: the user of the proxy and root are admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// TCP address.
    Tcp(SocketAddr),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

/// Error of a text that is not a listen address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be ADDRESS:PORT, such as 127.0.0.1:8080, or unix:PATH, such as unix:/run/vipu-proxy/socket")]
pub struct InvalidListenAddress;

impl ListenAddress {
    /// Returns whether only this host can connect.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// Returns whether a browser of this host can connect.
    pub(crate) fn is_loopback(&self) -> bool {
        matches!(self, Self::Tcp(address) if address.ip().is_loopback())
    }

    pub(crate) const fn is_unix(&self) -> bool {
        matches!(self, Self::Unix(_))
    }
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl FromStr for ListenAddress {
    type Err = InvalidListenAddress;

    fn from_str(text: &str) -> Result<Self, InvalidListenAddress> {
        match text.strip_prefix(UNIX_PREFIX) {
            Some("") => Err(InvalidListenAddress),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Tcp).map_err(|_| InvalidListenAddress),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX_PREFIX}{}", path.display()),
        }
    }
}

impl<'de> Deserialize<'de> for ListenAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse()
            .map_err(|error: InvalidListenAddress| D::Error::custom(error))
    }
}
