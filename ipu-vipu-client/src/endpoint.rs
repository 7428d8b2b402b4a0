//! Addresses of controllers: parses the text `host:port:key=value[,…]` of the operator's
//! `global.vipuControllers`.

use core::fmt;
use core::str::FromStr;
use std::net::{Ipv6Addr, SocketAddr};

use ipu_core::ControllerName;

/// The default port of a controller: the one on which the V-IPU server listens unless configured otherwise.
pub const DEFAULT_PORT: u16 = 8090;

/// The address of a V-IPU controller, with the node label that selects the hosts of its IPU-POD.
///
/// Parses from `host:port:key=value`, as in the operator's `global.vipuControllers`. Port and label are
/// optional. A missing port is [`DEFAULT_PORT`], for the documented form `<address>:ipunode=true`. An IPv6
/// address is in brackets. Host names are stored and compared in lower case.
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

/// The error for a text that is not the address of a controller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The host is missing.
    #[error("{text:?} has no host: write host:port:key=value, such as pod001:8090:ipunode=node1")]
    NoHost {
        /// The rejected text.
        text: String,
    },
    /// The host is neither a name nor an address.
    #[error(
        "{host:?} is not a host: give a DNS name of at most 240 characters, an IPv4 address, or an IPv6 address in brackets"
    )]
    BadHost {
        /// The rejected host.
        host: String,
    },
    /// The port is invalid.
    #[error("{port:?} is not a port: give a number from 1 to 65535")]
    BadPort {
        /// The rejected port.
        port: String,
    },
    /// The label is not a valid Kubernetes label.
    #[error(
        "{label:?} is not a node label: give key=value by the rules of Kubernetes labels, such as ipunode=node1"
    )]
    BadLabel {
        /// The rejected label.
        label: String,
    },
    /// The text continues after the label.
    #[error("{rest:?} is an excess part: write host:port:key=value")]
    TooManyParts {
        /// The excess part.
        rest: String,
    },
}

impl ControllerEndpoint {
    /// Creates the endpoint at `host` and `port`, without a label. An IPv6 address may be in brackets.
    ///
    /// # Errors
    ///
    /// [`EndpointError::BadHost`] and [`EndpointError::BadPort`].
    pub fn new(host: &str, port: u16) -> Result<Self, EndpointError> {
        let unbracketed = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        let bad_host = || EndpointError::BadHost { host: host.into() };
        let is_ipv6 = unbracketed.parse::<Ipv6Addr>().is_ok();
        if !(is_ipv6 || (unbracketed == host && is_host_name(unbracketed))) {
            return Err(bad_host());
        }
        if port == 0 {
            return Err(EndpointError::BadPort { port: "0".into() });
        }
        let host = unbracketed.to_ascii_lowercase();
        let name = ControllerName::new(authority(&host, port)).map_err(|_| bad_host())?;
        Ok(Self {
            host,
            port,
            label: None,
            name,
        })
    }

    /// Returns the endpoint with a node label.
    #[must_use]
    pub fn with_label(mut self, label: NodeLabel) -> Self {
        self.label = Some(label);
        self
    }

    /// Returns the endpoint with another name in the ledger than `host:port`, for a controller whose port
    /// changes.
    #[must_use]
    pub fn with_name(mut self, name: ControllerName) -> Self {
        self.name = name;
        self
    }

    /// Returns the host: a name or an address, an IPv6 address without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the TCP port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Returns the label of the nodes that reach this controller's IPUs.
    #[must_use]
    pub const fn label(&self) -> Option<&NodeLabel> {
        self.label.as_ref()
    }

    /// Returns the name of the controller in the ledger, `host:port` unless it has another one.
    #[must_use]
    pub const fn name(&self) -> &ControllerName {
        &self.name
    }
}

impl NodeLabel {
    /// Creates the label `key`=`value`.
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

    /// Returns the label's key, with its prefix.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the label's value, which may be empty.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }
}

fn is_label_word(text: &str) -> bool {
    text.len() <= 63 && is_label_part(text)
}

fn is_label_part(text: &str) -> bool {
    let is_valid_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.chars().all(is_valid_char)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

/// Checks for a DNS name or an IPv4 address; a trailing dot makes a name absolute. Container names may
/// contain underscores.
fn is_host_name(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    let is_dns_label = |word: &str| {
        (1..=63).contains(&word.len())
            && word
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
            && !word.starts_with('-')
            && !word.ends_with('-')
    };
    text.len() <= 240 && text.split('.').all(is_dns_label)
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
        // An empty rest has no parts; otherwise `rest` starts after the host's colon.
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

/// Splits into the host, brackets included, and the text after the following colon.
fn split_host(text: &str) -> Result<(&str, &str), EndpointError> {
    let end = if text.starts_with('[') {
        text.find(']').map_or(text.len(), |end| end + 1)
    } else if text.parse::<Ipv6Addr>().is_ok() || text.contains("://") {
        // Without brackets the port is ambiguous. A URL is not a host either.
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

/// The error for a text that is not a list of controllers. Positions count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControllerListError {
    /// The list is empty.
    #[error("the list of V-IPU controllers is empty: write host:port:key=value[,...]")]
    Empty,
    /// An entry is not the address of a controller.
    #[error("entry {position} of the list of V-IPU controllers")]
    Entry {
        /// The position of the entry.
        position: usize,
        /// The error of the entry.
        source: EndpointError,
    },
    /// A controller is listed twice; its IPUs would count twice.
    #[error("entry {position} of the list of V-IPU controllers repeats {name} of entry {first}; remove one")]
    Duplicate {
        /// The position of the entry.
        position: usize,
        /// The position of the first entry with this controller.
        first: usize,
        /// The controller.
        name: ControllerName,
    },
}

/// Parses a list of controllers in the order of preference: entries of
/// [`ControllerEndpoint`], separated by `,` or by `\,`, the escaped comma of Helm's `--set`.
///
/// ```
/// use ipu_vipu_client::parse_controllers;
///
/// let controllers = parse_controllers("pod001:8090:ipunode=node1,pod002")?;
/// assert_eq!(controllers[1].name().as_str(), "pod002:8090");
/// # Ok::<(), ipu_vipu_client::ControllerListError>(())
/// ```
///
/// # Errors
///
/// [`ControllerListError`] with the position of the invalid entry.
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
        if let Some(first) = list.iter().position(|listed| listed.name == endpoint.name) {
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
