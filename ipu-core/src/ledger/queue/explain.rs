//! The explanation of a decision: the reason, the blockers and the expected start of a queued entry.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::{
    Blocker, NEVER_FITS, NoCapacity, QueueObstacle, QueueScan, ReasonsByController, TOO_LARGE, UNAVAILABLE,
    UNKNOWN_ALLOCATION, WaitCause,
};
use crate::ids::PartitionId;
use crate::ledger::capacity_snapshot::allows;
use crate::ledger::entry::Entry;
use crate::ledger::expected_start::Timeline;
use crate::reason::Reason;
use crate::units::Timestamp;

impl Blocker {
    /// Creates the blocker of a recorded partition or request.
    pub(crate) fn of(entry: &Entry, now: Timestamp) -> Self {
        Self {
            id: entry.id.clone(),
            owner: entry.owner.clone(),
            size: Some(entry.spec.size),
            until: entry.declared_end(now),
        }
    }
}

impl<'a> QueueScan<'a> {
    /// Builds the reason, the blockers and the expected start of a queued `entry`.
    pub(super) fn explain(
        &mut self,
        entry: &Entry,
        obstacle: &QueueObstacle<'a>,
    ) -> (Reason, Vec<Blocker>, Option<Timestamp>) {
        match obstacle {
            QueueObstacle::Foreign(controller) => {
                let message = format!(
                    "controller {controller} has another partition under the id {}",
                    entry.id
                );
                let reason = Reason::new("ForeignPartition", message).with("size", entry.size());
                (reason, Vec::new(), None)
            }
            QueueObstacle::OverQuota(excess) => {
                let holders = self.quotas.holders(excess.subject).iter();
                let blockers = holders.map(|id| self.blocker(id.clone())).collect();
                (excess.reason(entry), blockers, None)
            }
            QueueObstacle::HeldBackBy(barrier) => {
                let cause = match self.state.preempts_at(&barrier.id, self.policy, self.now) {
                    Some(_) => String::from("preempts partitions"),
                    None => format!("was overtaken {} times", barrier.overtaken),
                };
                let message = format!("{} {cause} and starts first now", describe(barrier));
                let blockers = Vec::from([self.blocker(barrier.id.clone())]);
                (held_back_reason(entry, &message), blockers, None)
            }
            QueueObstacle::NoCapacity(no_capacity) => {
                let explanation = no_capacity
                    .explanation
                    .get_or_init(|| self.explain_no_capacity(entry, no_capacity));
                let (reason, blockers) = explanation.clone();
                let expected_start = match no_capacity.cause {
                    WaitCause::NoCapacity => self.expected_start(entry),
                    WaitCause::Other => None,
                };
                (reason, blockers, expected_start)
            }
        }
    }

    fn explain_no_capacity(&self, entry: &Entry, no_capacity: &NoCapacity) -> (Reason, Vec<Blocker>) {
        if let Some(capacity) = no_capacity.kept_at.map(|index| &self.capacities[index]) {
            let ahead: Vec<_> = self
                .starting
                .iter()
                .filter(|(_, controller)| *controller == capacity.name)
                .map(|(entry, _)| *entry)
                .collect();
            let names: Vec<_> = ahead.iter().take(3).map(|entry| describe(entry)).collect();
            let message = format!(
                "the capacity at {} is kept for {}",
                capacity.name,
                names.join(", ")
            );
            let blockers = ahead.iter().map(|entry| self.blocker(entry.id.clone()));
            return (held_back_reason(entry, &message), blockers.collect());
        }
        let blockers = self
            .capacities
            .iter()
            .filter(|capacity| allows(entry, &capacity.name))
            .map(|capacity| match capacity.closed_by() {
                none if none.is_empty() => capacity.current.blockers_on(&entry.spec, &entry.pin.ipus),
                lost => lost,
            })
            .filter(|blockers| !blockers.is_empty())
            .min_by_key(Vec::len)
            .unwrap_or_default();
        let blockers: Vec<Blocker> = blockers.into_iter().map(|id| self.blocker(id)).collect();
        let mut reason = self.combine_reasons(entry, &no_capacity.reasons);
        // No end of a partition helps: then cordons are the cause. The reason of a closed controller has it.
        let mut capacities = self.capacities.iter();
        let names_cause =
            capacities.any(|capacity| allows(entry, &capacity.name) && capacity.closed_reason().is_some());
        if blockers.is_empty() && !names_cause && !NEVER_FITS.contains(&&*reason.code) {
            self.state.append_cordons(&mut reason, self.snapshot, entry);
        }
        (reason, blockers)
    }

    fn blocker(&self, id: PartitionId) -> Blocker {
        let entry = self.state.get(&id);
        if let Some(entry) = entry {
            return Blocker::of(entry, self.now);
        }
        let listed = self.snapshot.find(&id);
        Blocker {
            owner: None,
            size: listed.map(|(_, partition)| partition.spec.size),
            until: None,
            id,
        }
    }

    /// Combines the reasons of the controllers: the code of the one closest to having capacity, the sum of
    /// the free IPUs, the largest block of all, and every message.
    fn combine_reasons(&self, entry: &Entry, reasons: &ReasonsByController) -> Reason {
        let open = || {
            self.capacities
                .iter()
                .filter(|capacity| allows(entry, &capacity.name))
        };
        let free = open().fold(0_u64, |sum, capacity| sum + u64::from(capacity.current.free()));
        let largest = open()
            .map(|capacity| capacity.current.largest_block())
            .max()
            .unwrap_or(0);
        // Conditions that other owners can end come before permanent ones.
        let nearest = reasons
            .iter()
            .min_by_key(|(name, reason)| {
                let rank = match &*reason.code {
                    TOO_LARGE | UNKNOWN_ALLOCATION => 2,
                    UNAVAILABLE => 1,
                    _ => 0,
                };
                let block = open()
                    .find(|capacity| capacity.name == *name)
                    .map_or(0, |capacity| capacity.current.largest_block());
                (rank, core::cmp::Reverse(block))
            })
            .map(|(_, reason)| reason.clone());
        let Some(mut reason) = nearest else {
            let message = match &entry.pin.controller {
                Some(name) => format!("controller {name} is not configured"),
                None => String::from("no controller is configured"),
            };
            return Reason::new(UNAVAILABLE, message).with("size", entry.size());
        };
        if reasons.len() > 1 {
            let all: Vec<_> = reasons
                .iter()
                .map(|(name, reason)| format!("{name}: {}", reason.message))
                .collect();
            reason.message = all.join("; ");
        }
        reason
            .with("free", free)
            .with("largestBlock", largest)
            .with("size", entry.size())
    }

    /// Returns the latest start of `entry`, by the run times that holders and entries ahead declare.
    fn expected_start(&mut self, entry: &Entry) -> Option<Timestamp> {
        if self.timeline.is_none() {
            self.timeline = Some(self.build_timeline());
        }
        self.timeline.as_mut()?.first_fit(entry)
    }

    fn build_timeline(&self) -> Timeline<'a> {
        let mut capacities = Vec::new();
        for capacity in self
            .capacities
            .iter()
            .filter(|capacity| capacity.closed_reason().is_none())
        {
            capacities.push((capacity.name.clone(), capacity.current.fork()));
        }
        let held = self.state.entries().filter(|holder| holder.state.holds());
        let held = held.filter_map(|holder| {
            let end = holder.declared_end(self.now)?;
            Some((end, holder.controller.clone()?, holder.id.clone()))
        });
        let starting = self.starting.iter().filter_map(|(ahead, controller)| {
            let end = self.now.plus(ahead.max_runtime?);
            Some((end, controller.clone(), ahead.id.clone()))
        });
        let mut timeline = Timeline::new(self.now, capacities, held.chain(starting));
        for ahead in self.blocked.entries() {
            timeline.push(ahead);
        }
        timeline
    }
}

fn held_back_reason(entry: &Entry, message: &str) -> Reason {
    Reason::new("HeldBackForEarlier", message).with("size", entry.size())
}

/// Returns the name of the owner, or the id, with the size.
pub(crate) fn describe(entry: &Entry) -> String {
    match &entry.owner {
        Some(owner) => format!("{owner} ({} IPUs)", entry.size()),
        None => format!("{} ({} IPUs)", entry.id, entry.size()),
    }
}
