//! The types of values: hosts, ports, paths, numbers and switches.

use core::fmt::Display;
use core::net::IpAddr;
use core::ops::RangeInclusive;
use core::str::FromStr;

use super::error::ConfError;
use super::span::Span;

/// Maximum length of a host name in characters (RFC 1035).
const MAX_HOST: usize = 253;
/// Maximum length of a path in bytes (`PATH_MAX` of Linux, with its final NUL).
const MAX_PATH: usize = 4_095;

/// Parses a host name or an IP address.
pub(super) fn host(field: &str, value: Span<'_>) -> Result<String, ConfError> {
    let text = value.text();
    let error = |rule: &str, fix: &str| Err(value.error(field, rule, fix));
    if text.contains("://") || text.contains('/') {
        return error(
            "must be a host name or an IP address",
            "remove the scheme and the path",
        );
    }
    if text.starts_with('[') {
        return error(
            "an IPv6 address has no brackets here",
            "remove them; the port is ApiPort",
        );
    }
    if text.contains(':') {
        return match text.parse::<IpAddr>() {
            Ok(_) => Ok(text.to_owned()),
            Err(_) => error(
                "must be a host name or an IP address",
                "write the port as ApiPort",
            ),
        };
    }
    if !is_host(text) {
        return error(
            "must be a host name or an IP address",
            "use letters, digits, '-', '_' and '.', for example ipu-pod64-001",
        );
    }
    Ok(text.to_owned())
}

/// Returns whether a text is a host name or an IPv4 address.
pub(super) fn is_host(text: &str) -> bool {
    let is_numeric = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if is_numeric {
        return matches!(text.parse(), Ok(IpAddr::V4(_)));
    }
    text.len() <= MAX_HOST && text.split('.').all(is_label)
}

fn is_label(label: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    !label.is_empty()
        && label.len() <= 63
        && label.bytes().all(is_plain)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// Returns whether a text is the name of a node, a machine, a model or a license: a letter or digit first,
/// so that no program takes it for an option.
pub(super) fn is_name(text: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    text.len() <= MAX_HOST
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(is_plain)
}

/// Parses a Feature of nodes.
pub(super) fn feature(field: &str, value: Span<'_>) -> Result<String, ConfError> {
    let text = value.text();
    if !is_name(text) {
        return Err(value.error(
            field,
            "must be one Feature of nodes in slurm.conf",
            "use letters, digits, '-', '_' and '.', for example pod64",
        ));
    }
    Ok(text.to_owned())
}

/// Parses an absolute path.
pub(super) fn absolute_path(field: &str, value: Span<'_>) -> Result<String, ConfError> {
    let text = value.text();
    if !text.starts_with('/') {
        return Err(value.error(field, "must be an absolute path", "write the path from / on"));
    }
    if text.split('/').any(|part| part == "." || part == "..") {
        return Err(value.error(field, "a path has no '.' or '..'", "write the path without them"));
    }
    if text.len() > MAX_PATH {
        return Err(value.error(
            field,
            format!("has at most {MAX_PATH} bytes"),
            "use a shorter path",
        ));
    }
    Ok(text.to_owned())
}

/// Returns a parser of decimal numbers in `range`. Its errors suggest `example`.
pub(super) fn number<T>(
    range: RangeInclusive<T>,
    example: T,
) -> impl FnOnce(&str, Span<'_>) -> Result<T, ConfError>
where
    T: FromStr + PartialOrd + Display,
{
    move |field, value| {
        let digits = value.text();
        let is_number = digits.bytes().all(|b| b.is_ascii_digit());
        let number = digits
            .parse()
            .ok()
            .filter(|number| is_number && range.contains(number));
        number.ok_or_else(|| {
            let rule = format!("must be a whole number from {} to {}", range.start(), range.end());
            value.error(field, rule, format!("use {example}, for example"))
        })
    }
}

/// Parses 0 or 1.
pub(super) fn switch(field: &str, value: Span<'_>) -> Result<bool, ConfError> {
    match value.text() {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(value.error(field, "must be 0 or 1", "use 1 for yes and 0 for no")),
    }
}
