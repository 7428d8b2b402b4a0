//! Several names of one controller. Its IPUs count once: one name, the primary, takes new partitions, and the
//! holders of all names count there.
//!
//! The ids of agents do not identify a controller: each controller may call its own `a1`, `a2`, …. There are
//! two kinds of evidence: an address that two names share, which the caller provides
//! ([`ControllersSnapshot::aliases`]), or two names that list the same partitions on the same IPUs.
//!
//! The ledger records the latter in the entries, because a controller that restarts without its partitions
//! removes the evidence. It counts as long as one of these partitions is held: without holders no IPU can be
//! used twice.

use alloc::borrow::Cow;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::ids::{ControllerName, PartitionId};
use crate::ledger::LedgerState;
use crate::ledger::capacity::{ControllerView, ControllersSnapshot, Listing, ServiceState};
use crate::ledger::change::Change;
use crate::ledger::entry::{Entry, EntryState};
use crate::reason::Reason;

/// Reason code of a name that takes no new partitions because its controller has another name.
const SAME_CONTROLLER: &str = "SameController";

impl ControllersSnapshot {
    /// Returns the primary name of the controller `name`.
    pub(crate) fn primary<'a>(&'a self, name: &'a ControllerName) -> &'a ControllerName {
        self.primaries.get(name).unwrap_or(name)
    }

    /// Returns whether both names belong to one controller.
    pub(crate) fn is_same(&self, one: &ControllerName, other: &ControllerName) -> bool {
        self.primary(one) == self.primary(other)
    }

    /// Returns the secondary names, each with the primary name of its controller. Complete only in the result
    /// of [`LedgerState::by_controller`].
    #[must_use]
    pub const fn primaries(&self) -> &BTreeMap<ControllerName, ControllerName> {
        &self.primaries
    }
}

impl Entry {
    /// Returns whether its controller has the primary name `primary`.
    pub(crate) fn is_at(&self, snapshot: &ControllersSnapshot, primary: &ControllerName) -> bool {
        self.controller
            .as_ref()
            .is_some_and(|name| snapshot.primary(name) == primary)
    }
}

impl LedgerState {
    /// Returns `snapshot` with one open view for each controller: the reason `SameController` replaces the
    /// listing of every secondary name. Borrows `snapshot` if no controller has two names.
    #[must_use]
    pub fn by_controller<'w>(&self, snapshot: &'w ControllersSnapshot) -> Cow<'w, ControllersSnapshot> {
        let mut snapshot = self.with_primaries(snapshot);
        if !snapshot.primaries.is_empty() {
            let ControllersSnapshot {
                controllers,
                primaries,
                ..
            } = snapshot.to_mut();
            for view in controllers {
                if let Some(primary) = primaries.get(&view.name) {
                    view.listing = Err(same_controller_reason(&view.name, primary));
                }
            }
        }
        snapshot
    }

    /// Returns `snapshot` with the primary name of each secondary one. Listings are kept.
    pub(crate) fn with_primaries<'w>(
        &self,
        snapshot: &'w ControllersSnapshot,
    ) -> Cow<'w, ControllersSnapshot> {
        let groups = AliasGroups::new(self, snapshot);
        if groups.leaders.is_empty() {
            return Cow::Borrowed(snapshot);
        }
        let mut snapshot = snapshot.clone();
        let mut primaries: BTreeMap<ControllerName, ControllerName> = BTreeMap::new();
        let is_usable = |view: &&ControllerView| view.service == ServiceState::Open && view.listing.is_ok();
        let (first, rest): (Vec<_>, Vec<_>) = snapshot.controllers.iter().partition(is_usable);
        for view in first.into_iter().chain(rest) {
            let leader = groups.leader(&view.name).clone();
            primaries.entry(leader).or_insert_with(|| view.name.clone());
        }
        for name in groups.leaders.keys() {
            if let Some(primary) = primaries.get(groups.leader(name))
                && primary != name
            {
                snapshot.primaries.insert(name.clone(), primary.clone());
            }
        }
        Cow::Owned(snapshot)
    }

    /// Records both names in every partition that two names list. Returns no changes if all is recorded, or
    /// if there is no evidence that two names belong to one controller.
    #[must_use]
    pub fn record_aliases(&self, snapshot: &ControllersSnapshot) -> Vec<Change> {
        let entry_of = |id: &PartitionId| self.get_shared(id).cloned();
        let mut changed: BTreeMap<PartitionId, Entry> = BTreeMap::new();
        for (one, other) in snapshot.new_aliases(entry_of) {
            for entry in self.entries().filter(|entry| entry.state.holds()) {
                let alias = match &entry.controller {
                    Some(controller) if *controller == one => &other,
                    Some(controller) if *controller == other => &one,
                    _ => continue,
                };
                let changed = changed.entry(entry.id.clone()).or_insert_with(|| entry.clone());
                changed.aliases.insert(alias.clone());
            }
        }
        changed
            .into_values()
            .map(|entry| Change::Put(Arc::new(entry)))
            .collect()
    }
}

impl ControllersSnapshot {
    /// Returns the pairs of names that list the same partitions, unless each partition of the pair records it
    /// already. `entry_of` returns the entry of an id.
    #[must_use]
    pub fn new_aliases(
        &self,
        entry_of: impl Fn(&PartitionId) -> Option<Arc<Entry>>,
    ) -> Vec<(ControllerName, ControllerName)> {
        let mut pairs = Vec::new();
        for (index, one) in self.controllers.iter().enumerate() {
            for other in &self.controllers[index + 1..] {
                if list_same_partitions(one, other, &entry_of) {
                    pairs.push((one.name.clone(), other.name.clone()));
                }
            }
        }
        pairs
    }
}

/// Returns whether two names list the same partitions on the same IPUs. At least one of these partitions must
/// be held at one of the names and not record the other name.
///
/// Partitions that are being created, reset or removed are no evidence. Neither is one with a call without a
/// response: it may exist at two controllers.
fn list_same_partitions(
    one: &ControllerView,
    other: &ControllerView,
    entry_of: impl Fn(&PartitionId) -> Option<Arc<Entry>>,
) -> bool {
    let (Ok(listed), Ok(other_listed)) = (&one.listing, &other.listing) else {
        return false;
    };
    let requested = listed.requested().min(other_listed.requested());
    let mut found = false;
    for id in listed.partitions().keys().chain(other_listed.partitions().keys()) {
        let entry = entry_of(id);
        if !listed.lists_as(id, other_listed) {
            match entry {
                Some(entry) if !is_stable(&entry) || Some(entry.since) >= requested => continue,
                _ => return false,
            }
        }
        found |= entry.is_some_and(|entry| {
            let names = [&one.name, &other.name];
            let recorded = |name: &&ControllerName| {
                entry.controller.as_ref() == Some(*name) || entry.aliases.contains(*name)
            };
            let at_one = names.iter().any(|name| entry.controller.as_ref() == Some(*name));
            at_one && is_stable(&entry) && !names.iter().all(recorded)
        });
    }
    found
}

fn is_stable(entry: &Entry) -> bool {
    let is_there = matches!(
        entry.state,
        EntryState::Active | EntryState::Failed { .. } | EntryState::Orphaned
    );
    is_there && entry.unsettled.is_none()
}

impl Listing {
    /// Returns whether both listings show the partition `id`, with the same properties and IPUs.
    fn lists_as(&self, id: &PartitionId, other: &Self) -> bool {
        let (Some(one), Some(other)) = (self.partitions().get(id), other.partitions().get(id)) else {
            return false;
        };
        (&one.spec, &one.ipus) == (&other.spec, &other.ipus)
    }
}

/// Groups of names that belong to one controller, as far as there is evidence.
pub(crate) struct AliasGroups {
    /// Every name that has aliases, with the lowest name of its controller.
    leaders: BTreeMap<ControllerName, ControllerName>,
}

impl AliasGroups {
    /// Groups the names that entries of `state` record, and those that `snapshot` is given.
    pub(crate) fn new(state: &LedgerState, snapshot: &ControllersSnapshot) -> Self {
        let recorded = state
            .entries()
            .filter(|entry| entry.state.holds())
            .flat_map(|entry| {
                let controller = entry.controller.as_ref();
                controller
                    .into_iter()
                    .flat_map(|name| entry.aliases.iter().map(move |alias| (name, alias)))
            });
        let given = snapshot.aliases.iter().map(|(one, other)| (one, other));
        let mut groups: Vec<BTreeSet<&ControllerName>> = Vec::new();
        for (one, other) in recorded.chain(given) {
            let joined = |group: &BTreeSet<&ControllerName>| group.contains(one) || group.contains(other);
            let (together, apart): (Vec<_>, Vec<_>) = groups.into_iter().partition(joined);
            groups = apart;
            groups.push(together.into_iter().flatten().chain([one, other]).collect());
        }
        let mut leaders = BTreeMap::new();
        for group in groups.iter().filter(|group| group.len() > 1) {
            for name in group {
                if let Some(leader) = group.first() {
                    leaders.insert(ControllerName::clone(name), ControllerName::clone(leader));
                }
            }
        }
        Self { leaders }
    }

    /// Returns the lowest name of the controller `name`.
    pub(crate) fn leader<'a>(&'a self, name: &'a ControllerName) -> &'a ControllerName {
        self.leaders.get(name).unwrap_or(name)
    }
}

fn same_controller_reason(name: &ControllerName, primary: &ControllerName) -> Reason {
    Reason::new(
        SAME_CONTROLLER,
        format!(
            "controller {name} is {primary} under a second name: remove one of them from the list of controllers"
        ),
    )
}
