//! The URL of the proxy, by the rules of the proxy's client.

use super::error::ConfError;
use super::span::Span;
use super::values::is_host;

/// Parses `http://host[:port][/path]`, the same with `https`, or `unix:/path`.
pub(super) fn parse(field: &str, value: Span<'_>) -> Result<String, ConfError> {
    const FORM: &str = "write unix:/path, http://host:port or https://host:port";
    let text = value.text();
    let error = |rule: &str| Err(value.error(field, rule, FORM));
    if text.contains('@') {
        return Err(value.error(
            field,
            "a URL has no user and no password",
            "use ProxyTokenFile instead",
        ));
    }
    if let Some(path) = text.strip_prefix("unix:") {
        return match path.starts_with('/') && path.len() > 1 {
            true => Ok(text.to_owned()),
            false => error("the path of a Unix socket is absolute"),
        };
    }
    let rest = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"));
    let Some(rest) = rest else {
        return error("must be a Unix socket, or a URL with the scheme http or https");
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let is_path = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'-' | b'.' | b'_' | b'~');
    if !path.bytes().all(is_path) {
        return error("the path of a URL has letters, digits, '/', '-', '.', '_' and '~' only");
    }
    let (host_is_valid, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => (address.parse::<core::net::Ipv6Addr>().is_ok(), port),
        None => {
            let (host, port) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
            (is_host(host), port)
        }
    };
    if !host_is_valid {
        return error("a URL has a host name or an IP address");
    }
    if !is_port(port) {
        return error("the port of a URL is a number from 1 to 65535");
    }
    Ok(text.to_owned())
}

/// Returns whether a text is empty or `:port`.
fn is_port(text: &str) -> bool {
    let Some(digits) = text.strip_prefix(':') else {
        return text.is_empty();
    };
    digits.bytes().all(|b| b.is_ascii_digit()) && digits.parse::<u16>().is_ok_and(|port| port > 0)
}
