//! Listings of the controllers against certain holds.

use std::collections::{BTreeMap, BTreeSet};

use super::holds::Hold;
use crate::crash::history::{Listing, Micros, StateLoss};

/// Time in microseconds after which the proxy has detected the loss of a controller's state, and grants
/// nothing from what it knew before.
const DETECTION_TIME: Micros = 15_000_000;

/// Returns the listings that contradict themselves or a certain hold.
pub(super) fn contradictions(listings: &[Listing], holds: &[Hold], losses: &[StateLoss]) -> Vec<String> {
    let mut violations = BTreeMap::new();
    let mut listings: Vec<&Listing> = listings.iter().collect();
    listings.sort_by_key(|listing| listing.invoked);
    let mut holds = holds.iter().peekable();
    let mut current: Vec<&Hold> = Vec::new();
    for listing in listings {
        while let Some(hold) = holds.next_if(|hold| hold.began <= listing.invoked) {
            current.push(hold);
        }
        current.retain(|hold| hold.ended > listing.invoked);
        if let Some(sentence) = shared_ipu(listing) {
            violations.entry(sentence).or_insert(listing.invoked);
        }
        for hold in &current {
            let is_certain = hold.controller == listing.controller && listing.returned <= hold.ended;
            if is_certain
                && !is_lost(hold, listing, losses)
                && let Some(fault) = fault(hold, listing)
            {
                // The first listing of many.
                violations
                    .entry(format!("{fault} while {hold}"))
                    .or_insert(listing.invoked);
            }
        }
    }
    violations
        .into_iter()
        .map(|(sentence, at)| format!("listing of {at} µs: {sentence}"))
        .collect()
}

/// Returns whether the controller may have lost the partition with its state.
fn is_lost(hold: &Hold, listing: &Listing, losses: &[StateLoss]) -> bool {
    losses.iter().any(|loss| {
        loss.controller == hold.controller
            && loss.began <= listing.returned
            && hold.began < loss.ended.saturating_add(DETECTION_TIME)
    })
}

fn fault(hold: &Hold, listing: &Listing) -> Option<String> {
    let Some(listed) = listing.partitions.iter().find(|listed| listed.id == hold.id) else {
        return Some("the partition is not listed".to_owned());
    };
    if listed.ipus != hold.ipus {
        return Some(format!("the partition is on {:?}", listed.ipus));
    }
    (listed.state != "ACTIVE").then(|| format!("the partition is {}", listed.state))
}

fn shared_ipu(listing: &Listing) -> Option<String> {
    let mut used = BTreeSet::new();
    for listed in &listing.partitions {
        if let Some(ipu) = listed.ipus.iter().find(|ipu| !used.insert(*ipu)) {
            let controller = &listing.controller;
            return Some(format!(
                "IPU {ipu} of {controller} is in two partitions, one is {}",
                listed.id
            ));
        }
    }
    None
}
