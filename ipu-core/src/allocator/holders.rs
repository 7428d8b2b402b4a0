//! Capacity of each controller during a scan of the queue: its listing, and the holders that only the state
//! records.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::allocator::capacity::{Capacity, Hardware, ServiceState};
use crate::allocator::cordon::Cordon;
use crate::allocator::entry::{Entry, Phase, Refusal};
use crate::allocator::policy::Policy;
use crate::allocator::state::State;
use crate::hardware::partition::IpuPlace;
use crate::ids::{ControllerName, Namespace, PartitionId};
use crate::reason::{Reason, ReasonCode};
use crate::units::Timestamp;

/// An odd number without a pattern (2^64 divided by the golden ratio), so that a product with it uses all
/// bits.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Capacity of one controller during a scan.
pub(crate) struct ControllerCapacity<'a> {
    pub(crate) name: ControllerName,
    /// Capacity less the holders and the queued entries that start.
    pub(crate) current: Box<dyn Capacity>,
    /// Queued entries that start here.
    pub(crate) starting: Vec<PartitionId>,
    /// Ledger entries that hold IPUs of this controller.
    holders: Vec<&'a Entry>,
    fingerprint: u64,
    /// Entries in use whose IPUs neither the controller nor the ledger can name. While there are any, nothing
    /// is placed here.
    unplaced: Vec<&'a Entry>,
    /// Whether the state keeps IPUs that the controller may count as free: cordoned ones, those of partitions
    /// that it does not list, and those kept for a preempting request.
    keeps_ipus: bool,
    /// The preempting request ahead for which IPUs are kept.
    pub(crate) kept_for: Option<&'a Entry>,
    /// Refused entries of the queue so far: the first of each size that no smaller one ahead of it covers.
    refusals: Vec<(&'a Entry, &'a Refusal)>,
}

impl<'a> ControllerCapacity<'a> {
    /// Returns the reason that no new partition is placed here; none if the controller takes new partitions.
    pub(crate) fn closed_reason(&self) -> Option<Reason> {
        let first = self.unplaced.first()?;
        let owner = first.owner.as_ref().map_or_else(
            || String::from("an unknown owner"),
            alloc::string::ToString::to_string,
        );
        let more = match self.unplaced.len() {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        Some(Reason::new(
            ReasonCode::LostPartition,
            format!(
                "controller {} does not list partition {} of {owner}{more}, which may still use its IPUs; \
                 release or reset it",
                self.name, first.id
            ),
        ))
    }

    /// Returns the number that a refusal records: see [`Refusal::fingerprint`].
    pub(crate) const fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Returns the partitions that would have to end for the controller to take new ones again.
    pub(crate) fn closed_by(&self) -> Vec<PartitionId> {
        self.unplaced.iter().map(|entry| entry.id.clone()).collect()
    }

    /// Returns whether only the partitions of `ended` keep the controller closed.
    pub(crate) fn opens_without(&self, ended: &[PartitionId]) -> bool {
        self.unplaced.iter().all(|entry| ended.contains(&entry.id))
    }

    /// Returns the reason to skip this controller for `entry`: the controller refused it, or one ahead that
    /// needs no more, and nothing has changed since.
    pub(crate) fn refusal_of(&self, entry: &Entry, policy: &Policy, now: Timestamp) -> Option<Reason> {
        let refused = self.refused(entry, policy, now)?;
        Some(Reason::new(
            ReasonCode::ControllerRefused,
            format!("controller {} refused it: {}", self.name, refused.message),
        ))
    }

    /// Returns the refusal that applies to `entry` here.
    fn refused<'e>(&'e self, entry: &'e Entry, policy: &Policy, now: Timestamp) -> Option<&'e Refusal> {
        let ahead = self.refusals.iter().find(|(ahead, _)| covers(ahead, entry));
        self.own_refusal(entry, policy, now)
            .or(ahead.map(|(_, refusal)| *refusal))
    }

    /// Returns the refusal of `entry` itself, if it still applies here.
    pub(crate) fn own_refusal<'e>(
        &self,
        entry: &'e Entry,
        policy: &Policy,
        now: Timestamp,
    ) -> Option<&'e Refusal> {
        entry.refusals.iter().find(|refused| {
            refused.controller == self.name
                && refused.fingerprint == self.fingerprint
                && now.is_near(refused.at, policy.retry_rejected_after)
        })
    }

    /// Applies the refusal of `entry`, if it is still valid, to later entries. Returns whether that changes
    /// anything.
    pub(crate) fn add_refusal(&mut self, entry: &'a Entry, policy: &Policy, now: Timestamp) -> bool {
        let is_covered = self.refusals.iter().any(|(ahead, _)| covers(ahead, entry));
        let own = self.own_refusal(entry, policy, now).filter(|_| !is_covered);
        self.refusals.extend(own.map(|refusal| (entry, refusal)));
        own.is_some()
    }

    /// Reserves capacity for `entry`. Returns the IPUs that the create call names; empty if the controller
    /// chooses.
    ///
    /// # Errors
    ///
    /// The reason that it does not fit.
    pub(crate) fn place(&mut self, entry: &Entry) -> Result<Vec<IpuPlace>, Reason> {
        let places = self.current.reserve(&entry.id, &entry.spec, &entry.pin.ipus)?;
        let controller_chooses = self.current.is_delegated()
            && entry.pin.ipus.is_empty()
            && !self.keeps_ipus
            && self.starting.is_empty();
        Ok(if controller_chooses { Vec::new() } else { places })
    }

    /// Lets every later [`place`](Self::place) return the IPUs, even where the controller chooses them.
    pub(crate) const fn name_ipus(&mut self) {
        self.keeps_ipus = true;
    }

    /// Keeps the free ones of `places` for the preempting request `entry`.
    pub(crate) fn keep(&mut self, entry: &'a Entry, places: &[IpuPlace]) {
        self.current.withhold(places);
        self.kept_for = Some(entry);
        self.keeps_ipus = true;
    }

    /// Returns whether `entry` would fit here without the queued entries that start; false if none starts.
    pub(crate) fn would_fit_without_starting(&self, entry: &Entry) -> bool {
        self.would_fit(entry, self.starting.iter())
    }

    /// Returns whether `entry` would fit here without the partitions of `without`; false if there are none.
    fn would_fit<'i>(&self, entry: &Entry, without: impl Iterator<Item = &'i PartitionId>) -> bool {
        let mut without = without.peekable();
        if !allows(entry, &self.name) || without.peek().is_none() {
            return false;
        }
        let mut capacity = self.current.boxed_clone();
        without.for_each(|id| capacity.release(id));
        capacity.reserve(&entry.id, &entry.spec, &entry.pin.ipus).is_ok()
    }

    /// Returns whether `entry` would fit here after the end of all partitions in the ledger. Foreign and
    /// quarantined partitions may exist forever. A partition that came after the refusal of `entry` was not
    /// its cause.
    pub(crate) fn can_help(&self, entry: &Entry, policy: &Policy, now: Timestamp) -> bool {
        self.fits_after(entry, policy, now, |_| true)
    }

    /// Like [`can_help`](Self::can_help), but the partitions of `namespace` do not end.
    pub(crate) fn can_help_without(
        &self,
        namespace: &Namespace,
        entry: &Entry,
        policy: &Policy,
        now: Timestamp,
    ) -> bool {
        self.fits_after(entry, policy, now, |holder| !is_held_by(namespace, holder))
    }

    /// Returns whether `namespace` holds a partition here that is not being released.
    pub(crate) fn has_holder_of(&self, namespace: &Namespace) -> bool {
        self.holders.iter().any(|holder| is_held_by(namespace, holder))
    }

    fn fits_after(
        &self,
        entry: &Entry,
        policy: &Policy,
        now: Timestamp,
        ends: impl Fn(&Entry) -> bool,
    ) -> bool {
        let refused = self.refused(entry, policy, now).map(|refused| refused.at);
        let helps = |holder: &&&Entry| {
            let came_before = refused.is_none_or(|at| holder.held_since.is_none_or(|since| since < at));
            came_before && !matches!(holder.phase, Phase::Quarantined) && ends(holder)
        };
        let ending = self.holders.iter().filter(helps).map(|holder| &holder.id);
        let starting = self.starting.iter().filter(|_| refused.is_none());
        self.would_fit(entry, starting.chain(ending))
    }
}

fn is_held_by(namespace: &Namespace, holder: &Entry) -> bool {
    let owner = holder.owner.as_ref();
    let is_releasing = matches!(holder.phase, Phase::Releasing { .. });
    !is_releasing && owner.is_some_and(|owner| owner.job.namespace == *namespace)
}

/// Returns whether a refusal of `ahead` also applies to `entry`, which needs no less.
fn covers(ahead: &Entry, entry: &Entry) -> bool {
    ahead.spec.size <= entry.spec.size && ahead.spec.allocation == entry.spec.allocation
}

/// Returns the capacity of each open controller that was queried, with the holders that only the state
/// records.
pub(crate) fn capacities<'a>(state: &'a State, hardware: &Hardware) -> Vec<ControllerCapacity<'a>> {
    let mut held: BTreeMap<&ControllerName, Vec<&Entry>> = BTreeMap::new();
    for entry in state.entries().filter(|entry| entry.phase.holds()) {
        if let Some(controller) = &entry.controller {
            held.entry(hardware.canonical(controller))
                .or_default()
                .push(entry);
        }
    }
    let mut capacities = Vec::new();
    for view in &hardware.controllers {
        let (Ok(listing), ServiceState::Open) = (&view.listing, view.service) else {
            continue;
        };
        let mut capacity = listing.capacity().boxed_clone();
        let holders = held.remove(&view.name).unwrap_or_default();
        // A controller of unknown hardware chooses IPUs by itself: the recorded IPUs of a lost partition are
        // of no use.
        let controller_chooses = capacity.counts().is_none();
        let mut unplaced = Vec::new();
        // Entries with recorded IPUs first, so that the others are not assumed there.
        let unlisted = holders.iter().filter(|entry| !capacity.has(&entry.id));
        let (recorded, unrecorded): (Vec<&Entry>, Vec<&Entry>) =
            unlisted.copied().partition(|entry| !entry.places.is_empty());
        let keeps_unlisted = !recorded.is_empty();
        for entry in recorded {
            if entry.phase.may_be_in_use() && controller_chooses {
                unplaced.push(entry);
            } else if capacity.reserve(&entry.id, &entry.spec, &entry.places).is_err() {
                capacity.withhold(&entry.places);
            }
        }
        for entry in unrecorded {
            if entry.phase.may_be_in_use() {
                unplaced.push(entry);
            } else {
                // A call is under way: the controller chooses free IPUs or refuses, so that any block counts.
                let _ = capacity.reserve(&entry.id, &entry.spec, &[]);
            }
        }
        let cordons: Vec<_> = cordons_of(state, hardware, &view.name).collect();
        let fingerprint = fingerprint(&cordons, &holders, capacity.free());
        // Last, so that holders keep their IPUs.
        for cordon in &cordons {
            // Hardware that does not exist subtracts nothing. Capacity that cannot cordon a part of itself is
            // closed then.
            let _ = capacity.cordon(&cordon.owner, &cordon.target);
        }
        capacities.push(ControllerCapacity {
            name: view.name.clone(),
            current: capacity,
            starting: Vec::new(),
            holders,
            fingerprint,
            unplaced,
            keeps_ipus: !cordons.is_empty() || keeps_unlisted,
            kept_for: None,
            refusals: Vec::new(),
        });
    }
    capacities
}

/// Returns the cordons of a controller, also those under a second name of it.
pub(crate) fn cordons_of<'s>(
    state: &'s State,
    hardware: &Hardware,
    name: &ControllerName,
) -> impl Iterator<Item = &'s Arc<Cordon>> {
    state
        .cordons()
        .filter(move |cordon| hardware.canonical(&cordon.controller) == name)
}

/// Returns a number that changes with the holders, the free IPUs and the cordons of a controller.
fn fingerprint(cordons: &[&Arc<Cordon>], holders: &[&Entry], free: u32) -> u64 {
    let add = |all: u64, word: u64| all.wrapping_mul(ODD).wrapping_add(word);
    // A cordon never changes, but another one may have its id later.
    let cordons = cordons
        .iter()
        .map(|cordon| (cordon.id.as_str(), cordon.since.as_millis()));
    let holders = holders.iter().map(|entry| (entry.id.as_str(), 0));
    cordons.chain(holders).fold(u64::from(free), |all, (id, since)| {
        id.bytes()
            .fold(add(all, since), |all, byte| add(all, byte.into()))
    })
}

/// Reserves the recorded IPUs of the holders that `capacity` does not show. Returns the holders without a
/// reservation: a call for them is under way, or another partition has their IPUs.
pub(crate) fn reserve_recorded(
    state: &State,
    controller: &ControllerName,
    capacity: &mut dyn Capacity,
) -> Vec<PartitionId> {
    let held = state.entries().filter(|entry| entry.phase.holds());
    let here = held.filter(|entry| entry.controller.as_ref() == Some(controller));
    let mut unplaced = Vec::new();
    for entry in here {
        if !capacity.has(&entry.id)
            && (entry.places.is_empty() || capacity.reserve(&entry.id, &entry.spec, &entry.places).is_err())
        {
            unplaced.push(entry.id.clone());
        }
    }
    unplaced
}

/// Returns `measure` of the capacity of each controller that takes new partitions, without regard to the
/// queue, and the reason of each other one.
pub(crate) fn measure_capacities<T>(
    state: &State,
    hardware: &Hardware,
    measure: impl Fn(&dyn Capacity) -> T,
) -> Vec<(ControllerName, Result<T, Reason>)> {
    let queried = capacities(state, hardware).into_iter().map(|capacity| {
        let measured = match capacity.closed_reason() {
            Some(reason) => Err(reason),
            None => Ok(measure(&*capacity.current)),
        };
        (capacity.name, measured)
    });
    let unavailable = hardware.controllers.iter().filter_map(|view| {
        let reason = view.listing.as_ref().err()?;
        Some((view.name.clone(), Err(reason.clone())))
    });
    queried.chain(unavailable).collect()
}

/// Returns whether `entry` may use the controller `name`.
pub(crate) fn allows(entry: &Entry, name: &ControllerName) -> bool {
    entry.pin.controller.as_ref().is_none_or(|pinned| pinned == name)
}
