//! Several names of one controller. Its IPUs count once: one name, the primary, takes new partitions, and the holders of
//! all names count there.
//!
//! The ids of agents do not identify a controller: each controller may call its own `a1`, `a2`, …. Evidence is an address
//! that two names share, which the shell knows ([`World::aliases`]), or a partition of the ledger that two names list on the
//! same IPUs. The latter is recorded in the entry, because a controller that restarts without its partitions takes the
//! evidence away.

use alloc::borrow::Cow;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::ids::{ControllerName, PartitionId};
use crate::ledger::LedgerState;
use crate::ledger::capacity::{ControllerView, Listing, Service, World};
use crate::ledger::entry::{Entry, EntryState};
use crate::reason::Reason;

/// The code of the reason that a name takes no new partitions because its controller has another one.
const SAME_CONTROLLER: &str = "SameController";

impl World {
    /// Returns the primary name of the controller `name`.
    pub(crate) fn primary<'a>(&'a self, name: &'a ControllerName) -> &'a ControllerName {
        self.primaries.get(name).unwrap_or(name)
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
    pub(crate) fn is_at(&self, world: &World, primary: &ControllerName) -> bool {
        self.controller
            .as_ref()
            .is_some_and(|name| world.primary(name) == primary)
    }
}

impl LedgerState {
    /// Returns `world` with one open view for each controller: the listing of every secondary name is replaced by the
    /// reason `SameController`. Borrows `world` if no controller has two names.
    #[must_use]
    pub fn by_controller<'w>(&self, world: &'w World) -> Cow<'w, World> {
        let groups = Groups::new(self, world);
        if groups.leaders.is_empty() {
            return Cow::Borrowed(world);
        }
        let mut world = world.clone();
        let mut primaries: BTreeMap<ControllerName, ControllerName> = BTreeMap::new();
        let leads = |view: &&ControllerView| view.service == Service::Open && view.listing.is_ok();
        let (first, rest): (Vec<_>, Vec<_>) = world.controllers.iter().partition(leads);
        for view in first.into_iter().chain(rest) {
            let leader = groups.leader(&view.name).clone();
            primaries.entry(leader).or_insert_with(|| view.name.clone());
        }
        for name in groups.leaders.keys().chain(groups.leaders.values()) {
            if let Some(primary) = primaries.get(groups.leader(name))
                && primary != name
            {
                world.primaries.insert(name.clone(), primary.clone());
            }
        }
        for view in &mut world.controllers {
            if let Some(primary) = world.primaries.get(&view.name) {
                view.listing = Err(reason(&view.name, primary));
            }
        }
        Cow::Owned(world)
    }

    /// Returns another name in `world` under which the controller of `entry` lists it and which the entry does not
    /// record yet.
    pub(crate) fn new_alias(entry: &Entry, world: &World) -> Option<ControllerName> {
        let controller = entry.controller.as_ref()?;
        let listing = world.listing(controller)?;
        let lists_it = |view: &&ControllerView| {
            view.name != *controller
                && !entry.aliases.contains(&view.name)
                && matches!(&view.listing, Ok(other) if both_list(entry, listing, other))
        };
        let found = world.controllers.iter().find(lists_it)?;
        Some(found.name.clone())
    }
}

/// Whether two listings show the partition of `entry` on the same IPUs, so that they are of one controller. A call whose
/// answer is unknown may have made the partition at two controllers: then it is no evidence.
fn both_list(entry: &Entry, one: &Listing, other: &Listing) -> bool {
    let is_there = matches!(
        entry.state,
        EntryState::Active | EntryState::Failed { .. } | EntryState::Orphaned
    );
    is_there && entry.unsettled.is_none() && one.lists_as(&entry.id, other)
}

impl Listing {
    /// Whether both listings show the partition `id`, of the same properties and on the same IPUs.
    fn lists_as(&self, id: &PartitionId, other: &Self) -> bool {
        let (Some(one), Some(other)) = (self.partitions().get(id), other.partitions().get(id)) else {
            return false;
        };
        (&one.spec, &one.ipus) == (&other.spec, &other.ipus)
    }

    /// Whether both listings are of one controller: they show one partition on the same IPUs, which the ledger has in
    /// use, or which has an id derived from a job. `known` returns the entry of an id.
    #[must_use]
    pub fn is_of_the_controller_of(
        &self,
        other: &Self,
        known: impl Fn(&PartitionId) -> Option<Arc<Entry>>,
    ) -> bool {
        self.partitions().keys().any(|id| {
            self.lists_as(id, other)
                && match known(id) {
                    Some(entry) => both_list(&entry, self, other),
                    None => id.is_derived(),
                }
        })
    }
}

/// Names by controller, as far as there is evidence.
struct Groups {
    /// Every name that has another one, with the lowest name of its controller.
    leaders: BTreeMap<ControllerName, ControllerName>,
}

impl Groups {
    fn new(state: &LedgerState, world: &World) -> Self {
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
