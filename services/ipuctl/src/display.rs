//! Facts of the ledger in words.

use ipu_core::{IpuCount, IpuPlace, QueueStatus};

/// The most blockers that are named; the others are counted.
const NAMED: usize = 3;

/// `8 IPUs (4-11 of link domain 0)`.
pub(crate) fn places(places: &[IpuPlace]) -> String {
    if places.is_empty() {
        return "IPUs".to_owned();
    }
    let mut runs: Vec<(u32, u32, u32)> = Vec::new();
    let mut sorted = places.to_vec();
    sorted.sort();
    for place in &sorted {
        match runs.last_mut() {
            Some((domain, _, last)) if *domain == place.link_domain && *last + 1 == place.ipu => {
                *last = place.ipu
            }
            _ => runs.push((place.link_domain, place.ipu, place.ipu)),
        }
    }
    let runs: Vec<String> = runs
        .into_iter()
        .map(|(domain, first, last)| {
            if first == last {
                format!("{first} in link domain {domain}")
            } else {
                format!("{first}-{last} in link domain {domain}")
            }
        })
        .collect();
    let noun = if places.len() == 1 { "IPU" } else { "IPUs" };
    format!("{noun} {}", runs.join(", "))
}

/// Why something waits, where in the line, and for whom.
pub(crate) fn waiting(size: IpuCount, waiting: &QueueStatus) -> String {
    let blockers: Vec<String> = waiting
        .blockers
        .iter()
        .take(NAMED)
        .map(|blocker| {
            blocker.owner.as_ref().map_or_else(
                || blocker.id.to_string(),
                |owner| format!("{owner} ({})", blocker.id),
            )
        })
        .collect();
    let more = waiting.blockers.len().saturating_sub(NAMED);
    let mut text = format!(
        "waiting for {size} IPUs, position {}: {}",
        waiting.position, waiting.reason.message
    );
    if !blockers.is_empty() {
        text.push_str("; held up by ");
        text.push_str(&blockers.join(", "));
        if more > 0 {
            text.push_str(&format!(" and {more} more"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_ipus_are_one_run() {
        let place = |link_domain, ipu| IpuPlace { link_domain, ipu };
        assert_eq!(
            places(&[place(0, 5), place(0, 4), place(0, 7), place(1, 8)]),
            "IPUs 4-5 in link domain 0, 7 in link domain 0, 8 in link domain 1"
        );
        assert_eq!(places(&[place(0, 5)]), "IPU 5 in link domain 0");
    }
}
