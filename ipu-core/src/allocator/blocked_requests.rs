//! Queued entries without capacity during a scan, grouped by the capacity that they compete for.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::allocator::capacity::Hardware;
use crate::allocator::entry::Entry;
use crate::hardware::partition::IpuPlace;
use crate::ids::{AllocationId, ControllerName, Namespace};

/// The properties of an entry that decide whether it fits: entries of one shape fit or fail alike.
pub(crate) type RequestShape<'a> = (
    u32,
    Option<&'a AllocationId>,
    Option<&'a ControllerName>,
    &'a [IpuPlace],
);

/// Returns the shape of `entry`.
pub(crate) fn shape_of(entry: &Entry) -> RequestShape<'_> {
    let (allocation, controller) = (entry.spec.allocation.as_ref(), entry.pin.controller.as_ref());
    (entry.size(), allocation, controller, &entry.pin.ipus)
}

/// The allocation, the controller and the namespace that contention for IPUs is limited to.
type ContentionScope<'a> = (
    Option<&'a AllocationId>,
    Option<&'a ControllerName>,
    Option<&'a Namespace>,
);

/// Returns the scope in which `entry` competes.
fn scope_of(entry: &Entry) -> ContentionScope<'_> {
    let namespace = entry.owner.as_ref().map(|owner| &owner.job.namespace);
    let (allocation, controller) = (entry.spec.allocation.as_ref(), entry.pin.controller.as_ref());
    (allocation, controller, namespace)
}

/// Returns whether two values can be equal; an open one can be any.
fn can_be_equal<T: PartialEq>(one: Option<T>, other: Option<T>) -> bool {
    one.zip(other).is_none_or(|(one, other)| one == other)
}

/// The entries of the queue so far that lack capacity, and those of them that hold back later ones.
///
/// An entry that partitions of its own namespace block competes with entries of that namespace only.
/// Otherwise it would keep IPUs free that it cannot use, and a namespace could stop all others with one
/// partition and one large request.
///
/// An entry that starts overtakes all entries that it competes with. Overtakings are counted per group, so
/// that the cost depends on the number of groups (allocations times controllers), not on the length of the
/// queue.
pub(crate) struct BlockedRequests<'a> {
    /// Maximum number of later entries that may overtake one.
    limit: u32,
    entries: Vec<&'a Entry>,
    /// The scope of each of `entries`.
    scopes: Vec<ContentionScope<'a>>,
    groups: BTreeMap<ContentionScope<'a>, Group>,
    /// Index of the first barrier of each group, in the order in which they became one.
    barriers: Vec<usize>,
    hardware: &'a Hardware,
}

/// The blocked entries of one scope.
#[derive(Default)]
struct Group {
    overtakings: u32,
    has_barrier: bool,
    /// Index of the first entry that becomes a barrier at each count of overtakings.
    due: BTreeMap<u32, usize>,
}

impl<'a> BlockedRequests<'a> {
    pub(crate) const fn new(limit: u32, hardware: &'a Hardware) -> Self {
        Self {
            limit,
            entries: Vec::new(),
            scopes: Vec::new(),
            groups: BTreeMap::new(),
            barriers: Vec::new(),
            hardware,
        }
    }

    /// Returns whether entries of two scopes can need the same IPUs.
    fn compete(&self, one: ContentionScope<'_>, other: ContentionScope<'_>) -> bool {
        let in_common = |(one, other): (&AllocationId, &AllocationId)| {
            let views = self.hardware.controllers.iter();
            let mut inventories = views.filter_map(|view| view.listing.as_ref().ok()?.capacity().inventory());
            one == other || inventories.any(|inventory| inventory.topology().share_agents(one, other))
        };
        one.0.zip(other.0).is_none_or(in_common)
            && can_be_equal(one.1, other.1)
            && can_be_equal(one.2, other.2)
    }

    /// Returns the blocked entries in queue order.
    pub(crate) fn entries(&self) -> &[&'a Entry] {
        &self.entries
    }

    /// Adds the next entry of the queue. An entry that was overtaken too often already holds back later ones;
    /// `own_namespace` limits that to its namespace.
    pub(crate) fn push(&mut self, entry: &'a Entry, own_namespace: bool) {
        let index = self.entries.len();
        let (allocation, controller, namespace) = scope_of(entry);
        let scope = (allocation, controller, namespace.filter(|_| own_namespace));
        self.entries.push(entry);
        self.scopes.push(scope);
        let group = self.groups.entry(scope).or_default();
        if group.has_barrier {
            return;
        }
        match self.limit.saturating_sub(entry.overtaken) {
            0 => {
                group.has_barrier = true;
                self.barriers.push(index);
            }
            left => {
                group
                    .due
                    .entry(group.overtakings.saturating_add(left))
                    .or_insert(index);
            }
        }
    }

    /// Counts that `entry` starts before those that compete with it. An entry that the queue up to here
    /// overtakes too often becomes a barrier for later entries, so that they cannot use up the overtakings
    /// that others need.
    pub(crate) fn count_start(&mut self, entry: &Entry) {
        let mut due = Vec::new();
        let scopes = self.groups.iter().filter(|(_, group)| !group.has_barrier);
        let scopes = scopes.filter(|(scope, _)| self.compete(**scope, scope_of(entry)));
        let scopes: Vec<_> = scopes.map(|(scope, _)| *scope).collect();
        for scope in scopes {
            let group = self.groups.entry(scope).or_default();
            group.overtakings += 1;
            if let Some(index) = group.due.remove(&group.overtakings) {
                group.has_barrier = true;
                due.push(index);
            }
        }
        due.sort_unstable();
        self.barriers.extend(due);
    }

    /// Returns the first barrier that competes with `entry`.
    pub(crate) fn barrier_for(&self, entry: &Entry) -> Option<&'a Entry> {
        let mut barriers = self.barriers.iter();
        let barrier = barriers.find(|index| self.compete(self.scopes[**index], scope_of(entry)))?;
        Some(self.entries[*barrier])
    }

    /// Iterates over the entries that `entry` overtakes if it starts.
    pub(crate) fn overtaken_by(&self, entry: &Entry) -> impl Iterator<Item = &'a Entry> {
        let others = self.entries.iter().zip(&self.scopes);
        others
            .filter(|(_, scope)| self.compete(**scope, scope_of(entry)))
            .map(|(other, _)| *other)
    }
}
