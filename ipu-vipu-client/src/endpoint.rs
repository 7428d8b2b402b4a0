//! Where controllers are: the text `host:port:key=value[,…]` of the operator's `global.vipuControllers`, parsed.

use core::fmt;
use core::str::FromStr;
use std::net::{Ipv6Addr, SocketAddr};

use ipu_core::ControllerName;

/// The port of a controller when none is given: what the V-IPU server listens on unless told otherwise (seed 004 §8.5.2).
pub const DEFAULT_PORT: u16 = 8090;

/// The address of a V-IPU controller, with the node label that selects the hosts of its Pod.
///
/// Parses from `host:port:key=value` (seed 000 §6.4, `vipuControllers`). Either of port and label may be missing; a
/// missing port is [`DEFAULT_PORT`], an extension that seed 002's listing 8.5 (`<address>:ipunode=true`) needs. An IPv6
/// address stands in brackets. Host names are compared and kept in lower case.
///
/// ```
/// use ipu_vipu_client::ControllerEndpoint;
///
/// let pod: ControllerEndpoint = "pod001:8090:ipunode=node1".parse()?;
/// assert_eq!((pod.host(), pod.port()), ("pod001", 8090));
/// assert_eq!(pod.label().map(|label| label.value()), Some("node1"));
/// # Ok::<(), ipu_vipu_client::EndpointError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ControllerEndpoint {
    host: String,
    port: u16,
    label: Option<NodeLabel>,
    name: ControllerName,
}

/// A Kubernetes node label: its key and its value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeLabel {
    key: String,
    value: String,
}

/// Why a text is not the address of a controller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// There is no host.
    #[error("{text:?} names no host: write host:port:key=value, such as pod001:8090:ipunode=node1")]
    NoHost {
        /// What was given.
        text: String,
    },
    /// The host is neither a name nor an address.
    #[error(
        "{host:?} is not a host: give a DNS name of at most 240 characters, an IPv4 address, or an IPv6 address in brackets"
    )]
    BadHost {
        /// What was given.
        host: String,
    },
    /// The port is no port.
    #[error("{port:?} is not a port: give a number from 1 to 65535")]
    BadPort {
        /// What was given.
        port: String,
    },
    /// The label is no Kubernetes label.
    #[error(
        "{label:?} is not a node label: give key=value by the rules of Kubernetes labels, such as ipunode=node1"
    )]
    BadLabel {
        /// What was given.
        label: String,
    },
    /// There is more behind the label.
    #[error("{rest:?} is one part too many: write host:port:key=value")]
    TooManyParts {
        /// What is too much.
        rest: String,
    },
}

impl ControllerEndpoint {
    /// The controller at `host` and `port`, without a label. An IPv6 address may stand in brackets or not.
    ///
    /// # Errors
    ///
    /// [`EndpointError::BadHost`] and [`EndpointError::BadPort`].
    pub fn new(host: &str, port: u16) -> Result<Self, EndpointError> {
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        let bad = || EndpointError::BadHost { host: host.into() };
        let is_ipv6 = bare.parse::<Ipv6Addr>().is_ok();
        if !(is_ipv6 || (bare == host && is_host_name(bare))) {
            return Err(bad());
        }
        if port == 0 {
            return Err(EndpointError::BadPort { port: "0".into() });
        }
        let host = bare.to_ascii_lowercase();
        let name = ControllerName::new(authority(&host, port)).map_err(|_| bad())?;
        Ok(Self {
            host,
            port,
            label: None,
            name,
        })
    }

    /// The same controller with a node label.
    #[must_use]
    pub fn with_label(mut self, label: NodeLabel) -> Self {
        self.label = Some(label);
        self
    }

    /// The host: a name or an address, an IPv6 address without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The TCP port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The label of the nodes that reach this controller's IPUs.
    #[must_use]
    pub const fn label(&self) -> Option<&NodeLabel> {
        self.label.as_ref()
    }

    /// `host:port`, by which the ledger remembers the controller.
    #[must_use]
    pub const fn name(&self) -> &ControllerName {
        &self.name
    }
}

impl NodeLabel {
    /// The label `key`=`value`.
    ///
    /// # Errors
    ///
    /// [`EndpointError::BadLabel`] if either breaks the rules of Kubernetes labels.
    pub fn new(key: &str, value: &str) -> Result<Self, EndpointError> {
        let (prefix, name) = key
            .split_once('/')
            .map_or((None, key), |(prefix, name)| (Some(prefix), name));
        let is_prefix = |prefix: &str| prefix.len() <= 253 && is_label_part(prefix);
        if !is_label_word(name)
            || !prefix.is_none_or(is_prefix)
            || !(value.is_empty() || is_label_word(value))
        {
            return Err(EndpointError::BadLabel {
                label: format!("{key}={value}"),
            });
        }
        Ok(Self {
            key: key.into(),
            value: value.into(),
        })
    }

    /// The label's key, with its prefix.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The label's value, which may be empty.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }
}

fn is_label_word(text: &str) -> bool {
    text.len() <= 63 && is_label_part(text)
}

fn is_label_part(text: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.chars().all(inside)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

/// A DNS name or an IPv4 address; a trailing dot makes a name absolute. Underscores occur in the names of containers.
fn is_host_name(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    let is_word = |word: &str| {
        (1..=63).contains(&word.len())
            && word
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
            && !word.starts_with('-')
            && !word.ends_with('-')
    };
    text.len() <= 240 && text.split('.').all(is_word)
}

fn authority(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

impl FromStr for ControllerEndpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let text = text.trim();
        let (host, rest) = split_host(text)?;
        if host.is_empty() {
            return Err(EndpointError::NoHost { text: text.into() });
        }
        let mut parts: Vec<&str> = rest.split(':').collect();
        // An empty rest is no part at all; otherwise `rest` begins behind the host's colon.
        if rest.is_empty() {
            parts.clear();
        }
        let (port, label) = match parts.as_slice() {
            [] => (None, None),
            [one] if one.contains('=') => (None, Some(*one)),
            [port] => (Some(*port), None),
            [port, label] => (Some(*port), Some(*label)),
            [_, _, rest @ ..] => {
                return Err(EndpointError::TooManyParts { rest: rest.join(":") });
            }
        };
        let endpoint = Self::new(host, port.map_or(Ok(DEFAULT_PORT), parse_port)?)?;
        label.map_or(Ok(endpoint.clone()), |label| {
            Ok(endpoint.with_label(label.parse()?))
        })
    }
}

/// The host, brackets included, and what stands behind the colon after it.
fn split_host(text: &str) -> Result<(&str, &str), EndpointError> {
    let end = if text.starts_with('[') {
        text.find(']').map_or(text.len(), |end| end + 1)
    } else if text.parse::<Ipv6Addr>().is_ok() || text.contains("://") {
        // Without brackets nobody can tell the port from the address; and a URL is no host either.
        return Err(EndpointError::BadHost { host: text.into() });
    } else {
        text.find(':').unwrap_or(text.len())
    };
    let (host, rest) = text.split_at(end);
    match rest.strip_prefix(':') {
        Some("") => Err(EndpointError::BadPort { port: String::new() }),
        Some(rest) => Ok((host, rest)),
        None if rest.is_empty() => Ok((host, "")),
        None => Err(EndpointError::BadHost { host: text.into() }),
    }
}

fn parse_port(text: &str) -> Result<u16, EndpointError> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse() {
        Ok(port) if digits && port != 0 => Ok(port),
        Ok(_) | Err(_) => Err(EndpointError::BadPort { port: text.into() }),
    }
}

impl FromStr for NodeLabel {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        match text.split_once('=') {
            Some((key, value)) => Self::new(key, value),
            None => Err(EndpointError::BadLabel { label: text.into() }),
        }
    }
}

impl TryFrom<SocketAddr> for ControllerEndpoint {
    type Error = EndpointError;

    fn try_from(address: SocketAddr) -> Result<Self, EndpointError> {
        Self::new(&address.ip().to_string(), address.port())
    }
}

impl fmt::Display for ControllerEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.label {
            Some(label) => write!(f, "{}:{label}", self.name),
            None => self.name.fmt(f),
        }
    }
}

impl fmt::Display for NodeLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

/// Why a text is not a list of controllers. Positions count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControllerListError {
    /// There is no controller in it.
    #[error("the list of V-IPU controllers is empty: write host:port:key=value[,...]")]
    Empty,
    /// One entry is not the address of a controller.
    #[error("entry {position} of the list of V-IPU controllers")]
    Entry {
        /// Which entry.
        position: usize,
        /// What is wrong with it.
        source: EndpointError,
    },
    /// A controller stands in the list twice; it would be asked twice for the same IPUs.
    #[error("entry {position} of the list of V-IPU controllers repeats {name} of entry {first}; remove one")]
    Duplicate {
        /// Which entry.
        position: usize,
        /// Which entry names it first.
        first: usize,
        /// The controller.
        name: ControllerName,
    },
}

/// Parses a list of controllers, in the order in which they are to be tried (seed 000 §6.4): entries of
/// [`ControllerEndpoint`], separated by `,` or by `\,`, which is how a comma has to be written for Helm's `--set`.
///
/// # Errors
///
/// [`ControllerListError`] with the position of the entry that is wrong.
///
/// ```
/// let pods = ipu_vipu_client::parse_controllers(r"pod1:8090:ipunode=pod1\,pod2:8090:ipunode=pod2")?;
/// assert_eq!(pods[1].to_string(), "pod2:8090:ipunode=pod2");
/// # Ok::<(), ipu_vipu_client::ControllerListError>(())
/// ```
pub fn parse_controllers(text: &str) -> Result<Vec<ControllerEndpoint>, ControllerListError> {
    if text.trim().is_empty() {
        return Err(ControllerListError::Empty);
    }
    let mut list: Vec<ControllerEndpoint> = Vec::new();
    for (index, entry) in text.replace("\\,", ",").split(',').enumerate() {
        let position = index + 1;
        let endpoint: ControllerEndpoint = entry
            .parse()
            .map_err(|source| ControllerListError::Entry { position, source })?;
        if let Some(first) = list.iter().position(|known| known.name == endpoint.name) {
            return Err(ControllerListError::Duplicate {
                position,
                first: first + 1,
                name: endpoint.name,
            });
        }
        list.push(endpoint);
    }
    Ok(list)
}

#[cfg(test)]
mod tests;
