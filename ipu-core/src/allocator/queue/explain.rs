//! The explanation of a decision: the reason, the blockers and the expected start of a queued entry.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{Blocker, NoCapacity, QueueObstacle, QueueScan, QueueStatus, ReasonsByController, WaitCause};
use crate::allocator::capacity::Hardware;
use crate::allocator::entry::Entry;
use crate::allocator::expected_start::Timeline;
use crate::allocator::holders::allows;
use crate::allocator::state::State;
use crate::ids::PartitionId;
use crate::reason::{Reason, ReasonCode};
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

    /// Creates the blocker `id`, which need not be recorded.
    pub(crate) fn find(state: &State, hardware: &Hardware, id: PartitionId, now: Timestamp) -> Self {
        if let Some(entry) = state.get(&id) {
            return Self::of(entry, now);
        }
        let size = hardware.find(&id).map(|(_, partition)| partition.spec.size);
        Self {
            id,
            owner: None,
            size,
            until: None,
        }
    }
}

impl QueueStatus {
    /// Returns the status of `entry`; if it preempts others, it waits for these.
    pub(super) fn preempting(mut self, state: &State, entry: &Entry, now: Timestamp) -> Self {
        let asked: Vec<&Arc<Entry>> = state.asked_by(&entry.id).collect();
        if asked.is_empty() {
            return self;
        }
        let names: Vec<_> = asked
            .iter()
            .take(MAX_NAMES)
            .map(|entry| describe(entry))
            .collect();
        let more = match asked.len().saturating_sub(names.len()) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        self.reason.message = format!(
            "{}; it preempts {}{more}, and starts once the partitions are released",
            self.reason.message,
            names.join(", ")
        );
        self.blockers = asked.into_iter().map(|entry| Blocker::of(entry, now)).collect();
        self
    }
}

/// Codes of reasons that no end of a partition or cordon changes.
const NEVER_FITS: [ReasonCode; 3] = [
    ReasonCode::TooLarge,
    ReasonCode::UnknownAllocation,
    ReasonCode::ControllerUnavailable,
];

/// Number of cordons or partitions that a message describes.
const MAX_NAMES: usize = 3;

/// Appends the cordons of the controllers that `entry` may use to the message of `reason`.
fn append_cordons(reason: &mut Reason, state: &State, entry: &Entry) {
    let cordons = || state.cordons().filter(|cordon| allows(entry, &cordon.controller));
    let texts: Vec<String> = cordons()
        .take(MAX_NAMES)
        .map(|cordon| cordon.to_string())
        .collect();
    if texts.is_empty() {
        return;
    }
    reason.message = format!("{}; cordons: {}", reason.message, texts.join(", "));
    if let more @ 1.. = cordons().skip(MAX_NAMES).count() {
        reason.message.push_str(&format!(" and {more} more"));
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
                let reason = Reason::new(ReasonCode::ForeignPartition, message).with("size", entry.size());
                (reason, Vec::new(), None)
            }
            QueueObstacle::OverQuota(excess) => {
                let holders = self.quotas.holders(excess.subject).iter();
                let blockers = holders.map(|id| self.blocker(id.clone())).collect();
                (excess.reason(entry), blockers, None)
            }
            QueueObstacle::HeldBackBy(barrier) => {
                let (name, times) = (describe(barrier), barrier.overtaken);
                let message = format!("{name} was overtaken {times} times and starts first now");
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
                none if none.is_empty() => capacity.current.blockers(&entry.spec, &entry.pin.ipus),
                lost => lost,
            })
            .filter(|blockers| !blockers.is_empty())
            .min_by_key(Vec::len)
            .unwrap_or_default();
        let blockers: Vec<Blocker> = blockers.into_iter().map(|id| self.blocker(id)).collect();
        let mut reason = self.combine_reasons(entry, &no_capacity.reasons);
        let mut kept = self
            .capacities
            .iter()
            .filter(|capacity| allows(entry, &capacity.name));
        if let Some(preempting) = kept.find_map(|capacity| capacity.kept_for) {
            let name = describe(preempting);
            let mut cordons = self.state.cordons();
            if reason.code == "Cordoned" && !cordons.any(|cordon| allows(entry, &cordon.controller)) {
                let message = format!("the IPUs that {name} preempts are kept for it");
                let blocker = self.blocker(preempting.id.clone());
                return (held_back_reason(entry, &message), Vec::from([blocker]));
            }
            reason.message = format!(
                "{}; {name} preempts partitions, and their IPUs are kept for it",
                reason.message
            );
        }
        // No end of a partition helps: then cordons are the cause. The reason of a closed controller has it.
        let mut capacities = self.capacities.iter();
        let names_cause =
            capacities.any(|capacity| allows(entry, &capacity.name) && capacity.closed_reason().is_some());
        if blockers.is_empty() && !names_cause && !NEVER_FITS.contains(&reason.code) {
            append_cordons(&mut reason, self.state, entry);
        }
        (reason, blockers)
    }

    fn blocker(&self, id: PartitionId) -> Blocker {
        Blocker::find(self.state, self.hardware, id, self.now)
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
        // Conditions that other owners can end come before permanent ones. A second name says nothing of the
        // controller.
        let nearest = reasons
            .iter()
            .min_by_key(|(name, reason)| {
                let rank = match &reason.code {
                    ReasonCode::SameController => 2,
                    code if code.is_permanent() => 1,
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
            return Reason::new(ReasonCode::ControllerUnavailable, message).with("size", entry.size());
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
            capacities.push((capacity.name.clone(), capacity.current.boxed_clone()));
        }
        let held = self.state.entries().filter(|holder| holder.phase.holds());
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
    Reason::new(ReasonCode::HeldBackForEarlier, message).with("size", entry.size())
}

/// Returns the name of the owner, or the id, with the size.
pub(crate) fn describe(entry: &Entry) -> String {
    match &entry.owner {
        Some(owner) => format!("{owner} ({} IPUs)", entry.size()),
        None => format!("{} ({} IPUs)", entry.id, entry.size()),
    }
}
