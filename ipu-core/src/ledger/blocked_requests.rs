//! The queued entries without room during a walk, grouped by the room that they compete for.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::ids::{AllocationId, ControllerName, Namespace};
use crate::ledger::entry::Entry;
use crate::partition::IpuPlace;

/// Everything of an entry that decides whether it fits: entries of one kind fit or fail alike.
pub(crate) type RequestShape<'a> = (
    u32,
    Option<&'a AllocationId>,
    Option<&'a ControllerName>,
    &'a [IpuPlace],
);

/// Returns the kind of `entry`.
pub(crate) fn kind_of(entry: &Entry) -> RequestShape<'_> {
    let (allocation, controller) = (entry.spec.allocation.as_ref(), entry.pin.controller.as_ref());
    (entry.size(), allocation, controller, &entry.pin.ipus)
}

/// The allocation, the controller and the namespace that a contest for IPUs is limited to.
type ContentionScope<'a> = (
    Option<&'a AllocationId>,
    Option<&'a ControllerName>,
    Option<&'a Namespace>,
);

/// Returns the contest in which `entry` goes.
fn contest_of(entry: &Entry) -> ContentionScope<'_> {
    let namespace = entry.owner.as_ref().map(|owner| &owner.job.namespace);
    let (allocation, controller) = (entry.spec.allocation.as_ref(), entry.pin.controller.as_ref());
    (allocation, controller, namespace)
}

/// Returns whether entries of two contests can want the same IPUs.
fn compete(one: ContentionScope<'_>, other: ContentionScope<'_>) -> bool {
    fn meet<T: PartialEq>(one: Option<T>, other: Option<T>) -> bool {
        one.zip(other).is_none_or(|(one, other)| one == other)
    }
    meet(one.0, other.0) && meet(one.1, other.1) && meet(one.2, other.2)
}

/// The entries of the queue so far that stay for want of room, and those of them that hold back later ones.
///
/// An entry that partitions of its own namespace block competes with entries of that namespace only. It would keep IPUs
/// free that it cannot use, and a namespace could stop all others by one partition and one large request.
///
/// An entry that goes passes all entries that it competes with. Passes are counted per group, so that one costs as much
/// as there are groups (allocations times controllers), however long the queue is.
pub(crate) struct BlockedRequests<'a> {
    /// How often later entries may pass one.
    limit: u32,
    entries: Vec<&'a Entry>,
    /// The contest of each of `entries`.
    contests: Vec<ContentionScope<'a>>,
    groups: BTreeMap<ContentionScope<'a>, Group>,
    /// The first barrier of each group, in the order in which they became one.
    barriers: Vec<usize>,
}

/// The staying entries of one contest.
#[derive(Default)]
struct Group {
    passes: u32,
    has_barrier: bool,
    /// By the count of passes at which it becomes a barrier: the first entry for which that is so.
    due: BTreeMap<u32, usize>,
}

impl<'a> BlockedRequests<'a> {
    pub(crate) const fn new(limit: u32) -> Self {
        Self {
            limit,
            entries: Vec::new(),
            contests: Vec::new(),
            groups: BTreeMap::new(),
            barriers: Vec::new(),
        }
    }

    /// Returns the staying entries in the order of the queue.
    pub(crate) fn entries(&self) -> &[&'a Entry] {
        &self.entries
    }

    /// Adds the next entry of the queue. One that was passed too often already holds back those behind it; `own` limits
    /// that to its namespace.
    pub(crate) fn push(&mut self, entry: &'a Entry, own: bool) {
        let index = self.entries.len();
        let (allocation, controller, namespace) = contest_of(entry);
        let contest = (allocation, controller, namespace.filter(|_| own));
        self.entries.push(entry);
        self.contests.push(contest);
        let group = self.groups.entry(contest).or_default();
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
                    .entry(group.passes.saturating_add(left))
                    .or_insert(index);
            }
        }
    }

    /// Counts that `entry` goes before those that compete with it. An entry that would be passed too often by those that
    /// go before `entry`'s followers holds the followers back, so that they cannot use up the passes that others need.
    pub(crate) fn pass(&mut self, entry: &Entry) {
        let mut due = Vec::new();
        for (contest, group) in &mut self.groups {
            if group.has_barrier || !compete(*contest, contest_of(entry)) {
                continue;
            }
            group.passes += 1;
            if let Some(index) = group.due.remove(&group.passes) {
                group.has_barrier = true;
                due.push(index);
            }
        }
        due.sort_unstable();
        self.barriers.extend(due);
    }

    /// Returns the first entry that may not be passed any more and competes with `entry`.
    pub(crate) fn barrier_for(&self, entry: &Entry) -> Option<&'a Entry> {
        let mut barriers = self.barriers.iter();
        let barrier = barriers.find(|index| compete(self.contests[**index], contest_of(entry)))?;
        Some(self.entries[*barrier])
    }

    /// Returns the entries that `entry` passes if it goes.
    pub(crate) fn passed_by(&self, entry: &Entry) -> impl Iterator<Item = &'a Entry> {
        let others = self.entries.iter().zip(&self.contests);
        others
            .filter(|(_, contest)| compete(**contest, contest_of(entry)))
            .map(|(other, _)| *other)
    }
}
