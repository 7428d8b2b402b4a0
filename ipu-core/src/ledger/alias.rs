//! Several names of one controller. Its IPUs count once: one name, the primary, takes new partitions, and the holders of
//! all names count there.
//!
//! The ids of agents do not identify a controller: each controller may call its own `a1`, `a2`, …. Evidence is an address
//! that two names share, which the shell knows ([`World::aliases`]), or that both names list the same partitions on the same
//! IPUs. The latter is recorded in the entries, because a controller that restarts without its partitions takes the evidence
//! away. It counts as long as one of these partitions is held: without holders no IPU can be used twice.

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

/// The code of the reason that a name takes no new partitions because its controller has another one.
const SAME_CONTROLLER: &str = "SameController";

impl ControllersSnapshot {
    /// Returns the primary name of the controller `name`.
    pub(crate) fn primary<'a>(&'a self, name: &'a ControllerName) -> &'a ControllerName {
        self.primaries.get(name).unwrap_or(name)
    }

    /// Whether both names are of one controller.
    pub(crate) fn is_same(&self, one: &ControllerName, other: &ControllerName) -> bool {
        self.primary(one) == self.primary(other)
    }

    /// The secondary names, each with the primary name of its controller. Complete only in the answer of
    /// [`LedgerState::by_controller`].
    #[must_use]
    pub const fn primaries(&self) -> &BTreeMap<ControllerName, ControllerName> {
        &self.primaries
    }
}

impl Entry {
    /// Whether its controller has the primary name `primary`.
    pub(crate) fn is_at(&self, world: &ControllersSnapshot, primary: &ControllerName) -> bool {
        self.controller
            .as_ref()
            .is_some_and(|name| world.primary(name) == primary)
    }
}

impl LedgerState {
    /// Returns `world` with one open view for each controller: the listing of every secondary name is replaced by the
    /// reason `SameController`. Borrows `world` if no controller has two names.
    #[must_use]
    pub fn by_controller<'w>(&self, world: &'w ControllersSnapshot) -> Cow<'w, ControllersSnapshot> {
        let mut world = self.with_primaries(world);
        if !world.primaries.is_empty() {
            let ControllersSnapshot {
                controllers,
                primaries,
                ..
            } = world.to_mut();
            for view in controllers {
                if let Some(primary) = primaries.get(&view.name) {
                    view.listing = Err(reason(&view.name, primary));
                }
            }
        }
        world
    }

    /// Returns `world` with the primary name of each secondary one. Listings stay.
    pub(crate) fn with_primaries<'w>(&self, world: &'w ControllersSnapshot) -> Cow<'w, ControllersSnapshot> {
        let groups = Groups::new(self, world);
        if groups.leaders.is_empty() {
            return Cow::Borrowed(world);
        }
        let mut world = world.clone();
        let mut primaries: BTreeMap<ControllerName, ControllerName> = BTreeMap::new();
        let leads = |view: &&ControllerView| view.service == ServiceState::Open && view.listing.is_ok();
        let (first, rest): (Vec<_>, Vec<_>) = world.controllers.iter().partition(leads);
        for view in first.into_iter().chain(rest) {
            let leader = groups.leader(&view.name).clone();
            primaries.entry(leader).or_insert_with(|| view.name.clone());
        }
        for name in groups.leaders.keys() {
            if let Some(primary) = primaries.get(groups.leader(name))
                && primary != name
            {
                world.primaries.insert(name.clone(), primary.clone());
            }
        }
        Cow::Owned(world)
    }

    /// Records in every partition that two names list which other name its controller has. No changes if all is recorded,
    /// or if there is no evidence that two names belong to one controller.
    #[must_use]
    pub fn record_aliases(&self, world: &ControllersSnapshot) -> Vec<Change> {
        let known = |id: &PartitionId| self.get_shared(id).cloned();
        let mut changed: BTreeMap<PartitionId, Entry> = BTreeMap::new();
        for (one, other) in world.new_aliases(known) {
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
    /// Returns the pairs of names that list the same partitions, unless each partition of the pair records it already.
    /// `known` returns the entry of an id.
    #[must_use]
    pub fn new_aliases(
        &self,
        known: impl Fn(&PartitionId) -> Option<Arc<Entry>>,
    ) -> Vec<(ControllerName, ControllerName)> {
        let mut pairs = Vec::new();
        for (index, one) in self.controllers.iter().enumerate() {
            for other in &self.controllers[index + 1..] {
                if list_the_same(one, other, &known) {
                    pairs.push((one.name.clone(), other.name.clone()));
                }
            }
        }
        pairs
    }
}

/// Whether two names list the same partitions on the same IPUs, at least one of them a holder at one of the names that does
/// not record the other name. Partitions that are being created, reset or removed are no evidence, and neither is one whose
/// call has no known answer: it may exist at two controllers.
fn list_the_same(
    one: &ControllerView,
    other: &ControllerView,
    known: impl Fn(&PartitionId) -> Option<Arc<Entry>>,
) -> bool {
    let (Ok(shown), Ok(shown_too)) = (&one.listing, &other.listing) else {
        return false;
    };
    let asked = shown.requested().min(shown_too.requested());
    let mut found = false;
    for id in shown.partitions().keys().chain(shown_too.partitions().keys()) {
        let entry = known(id);
        if !shown.lists_as(id, shown_too) {
            match entry {
                Some(entry) if !is_stable(&entry) || Some(entry.since) >= asked => continue,
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
    /// Whether both listings show the partition `id`, of the same properties and on the same IPUs.
    fn lists_as(&self, id: &PartitionId, other: &Self) -> bool {
        let (Some(one), Some(other)) = (self.partitions().get(id), other.partitions().get(id)) else {
            return false;
        };
        (&one.spec, &one.ipus) == (&other.spec, &other.ipus)
    }
}

/// Names by controller, as far as there is evidence.
struct Groups {
    /// Every name that has another one, with the lowest name of its controller.
    leaders: BTreeMap<ControllerName, ControllerName>,
}

impl Groups {
    fn new(state: &LedgerState, world: &ControllersSnapshot) -> Self {
        let recorded = state
            .entries()
            .filter(|entry| entry.state.holds())
            .flat_map(|entry| {
                let controller = entry.controller.as_ref();
                controller
                    .into_iter()
                    .flat_map(|name| entry.aliases.iter().map(move |alias| (name, alias)))
            });
        let known = world.aliases.iter().map(|(one, other)| (one, other));
        let mut groups: Vec<BTreeSet<&ControllerName>> = Vec::new();
        for (one, other) in recorded.chain(known) {
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

    fn leader<'a>(&'a self, name: &'a ControllerName) -> &'a ControllerName {
        self.leaders.get(name).unwrap_or(name)
    }
}

fn reason(name: &ControllerName, primary: &ControllerName) -> Reason {
    Reason::new(
        SAME_CONTROLLER,
        format!(
            "controller {name} is {primary} under a second name: take one of them off the list of controllers"
        ),
    )
}
