//! Slurm's host lists: `host-1,host-[2-4,7]`.

use super::error::ConfError;
use super::span::Span;
use super::values::is_name;
use crate::error::InputError;

/// Maximum number of hosts of a list and of a file: as many as Slurm's largest documented clusters.
pub(super) const MAX_HOSTS: usize = 65_536;

/// Returns the hosts of a list in their order.
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
/// If the text is not a host list.
///
/// ```
/// use ipu_slurm::conf::expand_nodes;
///
/// let nodes = expand_nodes("SLURM_JOB_NODELIST", "rack[1-2]-n[09-10],login")?;
/// assert_eq!(nodes, ["rack1-n09", "rack1-n10", "rack2-n09", "rack2-n10", "login"]);
///
/// assert_eq!(
///     expand_nodes("SLURM_JOB_NODELIST", "host-[4-1]").unwrap_err().to_string(),
///     "SLURM_JOB_NODELIST = host-[4-1]: is not a range of numbers; write host-[1-4] or host-[1,3]",
/// );
/// # Ok::<(), ipu_slurm::InputError>(())
/// ```
pub fn expand_nodes(field: &str, list: &str) -> Result<Vec<String>, InputError> {
    expand(field, Span::of_value(field, 1, 0, list))
        .map_err(|error| InputError::new(field, Some(list), error.violation.rule, error.violation.fix))
}

/// Splits at commas outside brackets.
fn split_items(list: Span<'_>) -> Vec<Span<'_>> {
    let mut depth = 0_i32;
    let mut items = Vec::new();
    let mut start = 0;
    for (offset, c) in list.text().char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth <= 0 => {
                items.push(list.until(offset).from(start));
                start = offset + 1;
            }
            _ => {}
        }
    }
    items.push(list.from(start));
    items
}

/// Expands `rack[1-2]-host[01-10]`: the numbers of the last list in brackets change fastest.
fn expand_item(field: &str, item: Span<'_>, hosts: &mut Vec<String>) -> Result<(), ConfError> {
    let mut names = vec![String::new()];
    let mut rest = item;
    while let Some((prefix, after)) = rest.split_once('[') {
        let Some((ranges, suffix)) = after.split_once(']') else {
            return Err(item.error(field, "a bracket is not closed", "write host-[1-4]"));
        };
        let numbers = expand_ranges(field, ranges)?;
        if names.len().saturating_mul(numbers.len()) + hosts.len() > MAX_HOSTS {
            return Err(too_many(field, item));
        }
        let prefix = prefix.text();
        let with_number = |name: String| {
            let numbers = numbers.iter();
            numbers.map(move |number| format!("{name}{prefix}{number}"))
        };
        names = names.into_iter().flat_map(with_number).collect();
        rest = suffix;
    }
    for name in names {
        hosts.push(check_host(field, item, name + rest.text())?);
    }
    Ok(())
}

/// Returns the numbers of `1-4,7`. Leading zeros are part of them.
fn expand_ranges(field: &str, ranges: Span<'_>) -> Result<Vec<String>, ConfError> {
    let mut numbers = Vec::new();
    for range in ranges.split(|c| c == ',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let width = first.text().len();
        let (first, last) = match (number(first), number(last)) {
            (Some(low), Some(high)) if low <= high => (low, high),
            _ => {
                let fix = "write host-[1-4] or host-[1,3]";
                return Err(range.error(field, "is not a range of numbers", fix));
            }
        };
        if last - first >= MAX_HOSTS || numbers.len() > MAX_HOSTS {
            return Err(too_many(field, ranges));
        }
        numbers.extend((first..=last).map(|index| format!("{index:0width$}")));
    }
    Ok(numbers)
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
        "a node name has letters, digits, '-', '_' and '.'",
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
