//! Renders facts of the ledger as text.

use std::collections::BTreeMap;

use ipu_core::hardware::IpuPlace;
use ipu_core::{PartitionId, Reason, ReasonCode};
use ipu_proxy_client::{BlockerDocument, CordonDocument, OwnerDocument, PartitionDocument, WaitingDocument};

use crate::time;

/// Maximum number of blockers that are named; the others are counted.
const MAX_BLOCKERS: usize = 3;

/// Returns the number with its noun in the singular or plural.
pub(crate) fn count(number: impl TryInto<u64>, noun: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    let suffix = match number {
        1 => "",
        _ if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{number} {noun}{suffix}")
}

/// Returns the places as runs of neighbouring IPUs: link domain, first IPU, last IPU.
fn runs(places: &[IpuPlace]) -> Vec<(u32, u32, u32)> {
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
    runs
}

fn range(first: u32, last: u32) -> String {
    if first == last {
        first.to_string()
    } else {
        format!("{first}-{last}")
    }
}

/// Returns the places as a phrase, such as `IPUs 4-11 in link domain 0`.
pub(crate) fn places(places: &[IpuPlace]) -> String {
    if places.is_empty() {
        return "IPUs".to_owned();
    }
    let runs: Vec<String> = runs(places)
        .into_iter()
        .map(|(domain, first, last)| format!("{} in link domain {domain}", range(first, last)))
        .collect();
    let noun = if places.len() == 1 { "IPU" } else { "IPUs" };
    format!("{noun} {}", runs.join(", "))
}

/// Returns the message that a partition is active, with its IPUs.
pub(crate) fn active(partition: &PartitionDocument, ipus: &[IpuPlace]) -> String {
    let controller = partition.controller.as_ref();
    format!(
        "partition {} is active: {} of {}",
        partition.id,
        places(ipus),
        controller.map_or("", |controller| controller.name.as_str())
    )
}

/// Returns the places as a table cell of the form `LINK-DOMAIN:IPUS`, such as `0:4-11`.
pub(crate) fn place_cell(places: &[IpuPlace]) -> String {
    let mut domains: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for (domain, first, last) in runs(places) {
        domains.entry(domain).or_default().push(range(first, last));
    }
    let cells: Vec<String> = domains
        .into_iter()
        .map(|(domain, ranges)| format!("{domain}:{}", ranges.join(",")))
        .collect();
    cells.join(" ")
}

/// Returns the reason of a request that does not fit, rendered from the numbers of the reason.
pub(crate) fn reason(reason: &Reason) -> String {
    let text = without_cordons(reason);
    match reason.message.split_once(CORDONS_SEPARATOR) {
        Some((_, cordons)) => format!("{text}{CORDONS_SEPARATOR}{cordons}"),
        None => text,
    }
}

/// Separates the cordons that block a request from the rest of the message of its reason.
const CORDONS_SEPARATOR: &str = "; cordons: ";

fn without_cordons(reason: &Reason) -> String {
    let number = |name: &str| reason.numbers.get(name).copied();
    let Some(size) = number("size") else {
        return message(reason).to_owned();
    };
    let requested = format!("{} requested", count(size, "IPU"));
    let free = number("free").unwrap_or_default();
    match (&reason.code, number("capacity"), number("largestBlock")) {
        (ReasonCode::TooLarge, Some(capacity), _) => {
            format!("{requested}, the largest possible partition is {capacity}")
        }
        (ReasonCode::NotEnoughFree, ..) => format!("{requested}, {free} free"),
        (ReasonCode::Fragmented, _, Some(largest)) => {
            format!("{requested}, {free} free, the largest free block is {largest}")
        }
        (ReasonCode::Cordoned, ..) => {
            let cordoned = number("cordoned").unwrap_or_default();
            let by = cordon_owners(reason).map_or_else(String::new, |owners| format!(" by {owners}"));
            format!("{requested}, {free} free, {cordoned} cordoned{by}")
        }
        _ => message(reason).to_owned(),
    }
}

fn message(reason: &Reason) -> &str {
    reason.message.split(CORDONS_SEPARATOR).next().unwrap_or_default()
}

/// Returns the owners at the end of the message of a reason with the code `Cordoned`.
fn cordon_owners(reason: &Reason) -> Option<&str> {
    let (_, owners) = message(reason).rsplit_once("by ")?;
    Some(owners.trim_end_matches(')'))
}

/// Returns the reason; one of a cordon is followed by the reasons of the cordons of its owners.
pub(crate) fn reason_with_cordons(original: &Reason, cordons: &[CordonDocument]) -> String {
    let text = reason(original);
    let owners = cordon_owners(original).filter(|_| original.code == ReasonCode::Cordoned);
    let mut texts: Vec<&str> = owners
        .into_iter()
        .flat_map(|owners| owners.split(", "))
        .flat_map(|owner| {
            cordons
                .iter()
                .filter(move |cordon| cordon.owner.as_str() == owner)
        })
        .map(|cordon| cordon.reason.as_str())
        .collect();
    texts.dedup();
    if texts.is_empty() {
        return text;
    }
    format!("{text}: {}", texts.join("; "))
}

/// Returns `namespace/name` of the owner of a partition, or its id if it has no known owner.
pub(crate) fn holder_name(id: &PartitionId, owner: Option<&OwnerDocument>) -> String {
    owner.map_or_else(|| id.to_string(), OwnerDocument::qualified_name)
}

/// Returns the clause that names the owners that block a request; empty without blockers.
pub(crate) fn blockers(blockers: &[BlockerDocument]) -> String {
    let name = |blocker: &BlockerDocument| holder_name(&blocker.id, blocker.owner.as_ref());
    blocked_by(blockers.iter().map(name).collect())
}

/// Returns the clause that names the first of the blockers and counts the others; empty without blockers.
pub(crate) fn blocked_by(mut names: Vec<String>) -> String {
    if names.is_empty() {
        return String::new();
    }
    names.dedup();
    let more = names.len().saturating_sub(MAX_BLOCKERS);
    names.truncate(MAX_BLOCKERS);
    let mut text = format!("; blocked by {}", names.join(", "));
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

/// Returns the progress of a request that waits: its state in the queue, or only the controllers that do not
/// answer. Without their answer it is unknown whether the request fits at all.
pub(crate) fn wait_status(waiting: &WaitingDocument, cordons: &[CordonDocument]) -> String {
    if waiting.reason.code == ReasonCode::ControllerUnavailable {
        return format!("Waiting: {}", reason(&waiting.reason));
    }
    queued(waiting, cordons)
}

/// Returns the state of a queued request: position, reason, blockers, and the latest start if it is known.
pub(crate) fn queued(waiting: &WaitingDocument, cordons: &[CordonDocument]) -> String {
    format!(
        "Queued at position {}: {}",
        waiting.position,
        queue_reason(waiting, cordons)
    )
}

/// Returns the reason of a queued request with the blockers, and the latest start if it is known.
pub(crate) fn queue_reason(waiting: &WaitingDocument, cordons: &[CordonDocument]) -> String {
    let mut text = reason_with_cordons(&waiting.reason, cordons);
    text.push_str(&blockers(&waiting.blockers));
    if let Some(start) = waiting.earliest_fit {
        text.push_str(&format!("; starts by {}", time::format(start)));
    }
    text
}

#[cfg(test)]
mod tests {
    use ipu_core::CordonId;

    use super::*;

    #[test]
    fn a_count_has_a_plural() {
        assert_eq!(count(1_u32, "IPU"), "1 IPU");
        assert_eq!(count(0_usize, "partition"), "0 partitions");
        assert_eq!(count(2_u64, "process"), "2 processes");
    }

    #[test]
    fn neighbouring_ipus_are_one_run() {
        let place = |link_domain, ipu| IpuPlace { link_domain, ipu };
        let some = [place(0, 5), place(0, 4), place(0, 7), place(1, 8)];
        assert_eq!(
            places(&some),
            "IPUs 4-5 in link domain 0, 7 in link domain 0, 8 in link domain 1"
        );
        assert_eq!(place_cell(&some), "0:4-5,7 1:8");
        assert_eq!(places(&[place(0, 5)]), "IPU 5 in link domain 0");
        assert_eq!(place_cell(&[]), "");
    }

    #[test]
    fn a_reason_is_rendered_from_its_numbers() {
        let sized =
            |code: &str, size: u32| Reason::new(code.into(), "as sent (by anonymous)").with("size", size);
        let too_large = sized("TooLarge", 64).with("capacity", 16_u32);
        assert_eq!(
            reason(&too_large),
            "64 IPUs requested, the largest possible partition is 16"
        );
        assert_eq!(
            reason(&sized("NotEnoughFree", 1).with("free", 0_u32)),
            "1 IPU requested, 0 free"
        );
        let fragmented = sized("Fragmented", 8)
            .with("free", 9_u32)
            .with("largestBlock", 4_u32);
        assert_eq!(
            reason(&fragmented),
            "8 IPUs requested, 9 free, the largest free block is 4"
        );
        let other = Reason::new(ReasonCode::NextInLine, "as sent");
        assert_eq!(reason(&other), "as sent");
    }

    #[test]
    fn a_reason_of_a_cordon_names_its_owner_and_its_reason() {
        let cordoned = Reason::new(ReasonCode::Cordoned, "as sent (by anonymous)")
            .with("size", 32_u32)
            .with("free", 28_u32)
            .with("cordoned", 4_u32);
        let cordons: Vec<CordonDocument> = [("fan", "anonymous"), ("disk", "another")]
            .map(|(id, owner)| {
                let document = serde_json::json!({
                    "id": id, "controller": "pod:8090", "machine": "a1", "ipu": null, "owner": owner,
                    "reason": format!("a {id} is broken"), "since": 0,
                });
                serde_json::from_value(document).unwrap()
            })
            .into();
        assert_eq!(cordons[0].id, CordonId::new("fan").unwrap());
        assert_eq!(
            reason_with_cordons(&cordoned, &cordons),
            "32 IPUs requested, 28 free, 4 cordoned by anonymous: a fan is broken"
        );
        assert!(reason_with_cordons(&cordoned, &[]).ends_with("4 cordoned by anonymous"));
    }

    #[test]
    fn a_request_is_not_called_queued_while_no_controller_answers() {
        let waiting = |code: &str| {
            let reason = Reason::new(code.into(), "controller pod:8090 has not replied within 1s");
            let document = serde_json::json!({
                "position": 1, "ticket": 1, "overtaken": 0, "reason": reason, "blockers": [], "heldBackBy": [],
                "earliestFit": null,
            });
            serde_json::from_value::<WaitingDocument>(document).unwrap()
        };
        let unknown = wait_status(&waiting("ControllerUnavailable"), &[]);
        assert_eq!(unknown, "Waiting: controller pod:8090 has not replied within 1s");
        let known = wait_status(&waiting("NotEnoughFree"), &[]);
        assert!(known.starts_with("Queued at position 1: "), "{known}");
    }

    #[test]
    fn a_queued_request_names_at_most_three_blockers() {
        let blocker = |name: &str| {
            let document = serde_json::json!({
                "id": name, "owner": {"kind": "HostRun", "namespace": "root", "name": name, "uid": "1"},
                "size": 4, "until": null,
            });
            serde_json::from_value::<BlockerDocument>(document).unwrap()
        };
        let names = ["a", "b", "c", "d", "e"];
        assert_eq!(
            blockers(&names.map(blocker)),
            "; blocked by root/a, root/b, root/c and 2 more"
        );
        assert_eq!(blockers(&[]), "");
    }
}
