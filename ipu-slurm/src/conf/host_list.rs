//! Slurm's host lists: `host-1,host-[2-4,7]`.

use super::error::{ConfError, absent};
use super::span::{Span, lines};
use super::values::is_name;

/// Maximum number of hosts of a list and of a file: as many as Slurm's largest documented clusters.
pub(super) const MAX_HOSTS: usize = 65_536;

/// Returns the hosts of a list in their order. Each item has at most one list in brackets, as node names of
/// one dimension do.
pub(super) fn expand(field: &str, list: Span<'_>) -> Result<Vec<String>, ConfError> {
    let mut hosts = Vec::new();
    for item in split_items(list) {
        expand_item(field, item, &mut hosts)?;
        if hosts.len() > MAX_HOSTS {
            return Err(too_many(field, list));
        }
    }
    Ok(hosts)
}

/// Returns the nodes of a host list that Slurm printed, in their order. `field` names its source in errors.
///
/// # Errors
///
/// If the text is no host list.
pub fn expand_nodes(field: &str, list: &str) -> Result<Vec<String>, ConfError> {
    let mut errors = Vec::new();
    let spans = lines(field, list, &mut errors);
    match (errors.pop(), spans.first()) {
        (Some(error), _) => Err(error),
        (None, Some(span)) if spans.len() == 1 => expand(field, *span),
        (None, _) => Err(absent(
            field,
            "node",
            "a host list has one line",
            "let Slurm set it",
        )),
    }
}

/// Splits at commas outside brackets.
fn split_items(list: Span<'_>) -> Vec<Span<'_>> {
    let mut depth = 0_i32;
    let mut items = Vec::new();
    let mut start = 0;
    for (at, c) in list.text().char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth <= 0 => {
                items.push(list.until(at).from(start));
                start = at + 1;
            }
            _ => {}
        }
    }
    items.push(list.from(start));
    items
}

fn expand_item(field: &str, item: Span<'_>, hosts: &mut Vec<String>) -> Result<(), ConfError> {
    let Some((prefix, rest)) = item.split_once('[') else {
        hosts.push(check_host(field, item, item.text().to_owned())?);
        return Ok(());
    };
    let Some((ranges, suffix)) = rest.split_once(']') else {
        return Err(item.error(field, "a bracket is not closed", "write host-[1-4]"));
    };
    for range in ranges.split(|c| c == ',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = match (number(first), number(last)) {
            (Some(low), Some(high)) if low <= high => (low, high),
            _ => {
                return Err(range.error(
                    field,
                    "is not a range of numbers",
                    "write host-[1-4] or host-[1,3]",
                ));
            }
        };
        if last - first >= MAX_HOSTS || hosts.len() > MAX_HOSTS {
            return Err(too_many(field, item));
        }
        // Leading zeros are part of the names: [001-010].
        let width = range.text().split('-').next().unwrap_or_default().len();
        for index in first..=last {
            let host = format!("{}{index:0width$}{}", prefix.text(), suffix.text());
            hosts.push(check_host(field, item, host)?);
        }
    }
    Ok(())
}

fn number(span: Span<'_>) -> Option<usize> {
    let is_number = span.text().bytes().all(|b| b.is_ascii_digit()) && span.text().len() <= 9;
    span.text().parse().ok().filter(|_| is_number)
}

fn check_host(field: &str, item: Span<'_>, host: String) -> Result<String, ConfError> {
    if is_name(&host) {
        return Ok(host);
    }
    Err(item.error(
        field,
        "a node name has letters, digits, '-', '_' and '.', and one list in brackets at most",
        "write host-1 or host-[1-4]",
    ))
}

fn too_many(field: &str, span: Span<'_>) -> ConfError {
    span.error(
        field,
        format!("has over {MAX_HOSTS} nodes"),
        "write a shorter range",
    )
}
