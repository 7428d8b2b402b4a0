//! Record of the IPUs that each owner may use, independent of the ledger and the controllers.
//!
//! An owner has the IPUs that the hardware gave to its partition, from the commit that activates the entry
//! until the commit that resets or releases it. A worker has the IPUs of its partition from its start to its
//! end. An empty restart of a controller does not end either.

use std::collections::{BTreeMap, BTreeSet};

use ipu_core::{ControllerName, Entry, EntryState, IpuPlace, PartitionId};

use super::invariants::{BrokenInvariant, broken};
use super::processes::Processes;
use super::profile::primary;
use super::store::Entries;
use crate::fake::{HeldPartition, Masks};

/// Partitions that the ledger has granted.
#[derive(Default)]
pub(super) struct Grants(BTreeMap<PartitionId, Grant>);

struct Grant {
    attempt: u32,
    controller: ControllerName,
    ipus: Masks,
}

impl Grants {
    /// Follows a commit. `ipus_on` returns the IPUs that a controller has for the partition now.
    pub(super) fn follow(
        &mut self,
        id: &PartitionId,
        before: Option<&Entry>,
        after: Option<&Entry>,
        ipus_on: impl Fn(&ControllerName) -> Option<Masks>,
    ) {
        let keeps = after.filter(|entry| {
            matches!(
                entry.state,
                EntryState::Active | EntryState::Failed { .. } | EntryState::Orphaned
            )
        });
        let Some(entry) = keeps else {
            self.0.remove(id);
            return;
        };
        let newly = entry.state == EntryState::Active
            && before
                .is_none_or(|before| before.state != EntryState::Active || before.attempt != entry.attempt);
        if newly
            && let Some(controller) = &entry.controller
            && let Some(ipus) = ipus_on(controller)
        {
            let grant = Grant {
                attempt: entry.attempt,
                controller: primary(controller),
                ipus,
            };
            self.0.insert(id.clone(), grant);
        }
    }

    /// Removes all grants: an old copy of the ledger does not contain them.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Returns whether a partition is recorded at `controller`.
pub(super) fn is_held_at(entries: &Entries, id: &PartitionId, controller: &ControllerName) -> bool {
    entries
        .get(id)
        .is_some_and(|entry| entry.state.holds() && entry.controller.as_ref() == Some(controller))
}

/// Returns whether the ledger contains a partition without a known owner.
pub(super) fn is_quarantined(entries: &Entries, id: &PartitionId) -> bool {
    entries
        .get(id)
        .is_some_and(|entry| entry.state == EntryState::Quarantined)
}

/// IPUs that an owner was granted, or that a worker uses.
pub(super) struct IpuUse<'a> {
    pub(super) id: &'a PartitionId,
    pub(super) attempt: u32,
    pub(super) controller: &'a ControllerName,
    pub(super) ipus: &'a Masks,
    pub(super) by: &'static str,
}

/// Checks that no IPU belongs to two owners, neither by grants nor by running workers.
pub(super) fn invariant_no_ipu_has_two_owners(
    grants: &Grants,
    processes: &Processes,
    now: u64,
) -> Result<(), BrokenInvariant> {
    let granted = grants.0.iter().map(|(id, grant)| IpuUse {
        id,
        attempt: grant.attempt,
        controller: &grant.controller,
        ipus: &grant.ipus,
        by: "the owner",
    });
    let all: Vec<IpuUse<'_>> = granted.chain(processes.using(now)).collect();
    for (number, one) in all.iter().enumerate() {
        for other in &all[..number] {
            let apart =
                one.controller != other.controller || (one.id, one.attempt) == (other.id, other.attempt);
            if !apart && let Some((domain, mask)) = in_both(one.ipus, other.ipus) {
                let of = |one: &IpuUse<'_>| format!("{} of {}, attempt {}", one.by, one.id, one.attempt);
                let users = format!("{} and {}", of(other), of(one));
                return broken(
                    "no_ipu_has_two_owners",
                    format!(
                        "IPUs {mask:#x} of link domain {domain} at {} belong to {users}",
                        one.controller
                    ),
                );
            }
        }
    }
    Ok(())
}

/// Checks that the IPUs that the ledger records of an active partition are its actual ones. Exception: a late
/// call may create a partition that its controller has lost on other IPUs, until the ledger observes it.
pub(super) fn invariant_recorded_ipus_are_correct(
    entries: &Entries,
    held: &[(&ControllerName, Vec<HeldPartition>)],
    lost: &BTreeSet<(ControllerName, PartitionId)>,
) -> Result<(), BrokenInvariant> {
    for (controller, partitions) in held {
        for partition in partitions {
            let active = entries.get(&partition.id).filter(|entry| {
                entry.state == EntryState::Active && entry.controller.as_ref() == Some(*controller)
            });
            if let Some(entry) = active
                && !lost.contains(&(ControllerName::clone(controller), entry.id.clone()))
                && !entry.places.is_empty()
                && masks_of(&entry.places) != partition.masks
            {
                let (is, recorded) = (&partition.masks, masks_of(&entry.places));
                return broken(
                    "recorded_ipus_are_correct",
                    format!(
                        "{} at {controller} is on {is:x?}, but recorded on {recorded:x?}",
                        entry.id
                    ),
                );
            }
        }
    }
    Ok(())
}

/// Returns the masks of IPUs of the only cluster, in the order of link domains.
fn masks_of(places: &[IpuPlace]) -> Masks {
    let mut masks: BTreeMap<u32, u64> = BTreeMap::new();
    for place in places {
        *masks.entry(place.link_domain).or_default() |= 1 << place.ipu;
    }
    masks.into_iter().collect()
}

fn in_both(one: &Masks, other: &Masks) -> Option<(u32, u64)> {
    one.iter().find_map(|(domain, mask)| {
        let (_, theirs) = other.iter().find(|(theirs, _)| theirs == domain)?;
        (mask & theirs != 0).then_some((*domain, mask & theirs))
    })
}
