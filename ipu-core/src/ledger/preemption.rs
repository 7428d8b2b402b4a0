//! Preemption: a queued request of higher priority asks preemptible holders of lower priority to release
//! their partitions.
//!
//! The ledger only records the demand on the entry of the holder. The owner stops its processes and releases
//! the partition, so that nothing is removed under a running process. The demand is in force while the
//! request is queued: if the request starts or leaves the queue earlier, the holder keeps its partition.
//!
//! A preemptible request never preempts others. So a preempted job, which queues again, preempts nothing:
//! there is no cascade.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::ids::{Owner, PartitionId};
use crate::ledger::blocked_requests::Preempts;
use crate::ledger::capacity::{ControllerView, ControllersSnapshot};
use crate::ledger::change::Change;
use crate::ledger::entry::{Entry, EntryState};
use crate::ledger::queue::{QueueDecision, QueueScan};
use crate::ledger::queue_policy::QueuePolicy;
use crate::ledger::{LedgerState, queue_key};
use crate::reason::Reason;
use crate::units::Timestamp;

/// Maximum number of partitions that one request preempts: a whole Pod256 of four-IPU partitions.
const MAX_PREEMPTED: usize = 64;

/// The demand of a queued request that the owner of a partition releases it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct Preemption {
    /// The queued request.
    pub by: PartitionId,
    /// Its queue ticket.
    pub ticket: u64,
    /// Its owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Its priority.
    pub priority: i32,
    /// The time of the demand.
    pub at: Timestamp,
}

impl Preemption {
    fn by(request: &Entry, now: Timestamp) -> Self {
        Self {
            by: request.id.clone(),
            ticket: request.ticket,
            owner: request.owner.clone(),
            priority: request.priority,
            at: now,
        }
    }

    /// Returns the demand as a reason with the code `Preempted`, which names the owner of the request.
    #[must_use]
    pub fn reason(&self) -> Reason {
        let owner = match &self.owner {
            Some(owner) => format!("{owner}"),
            None => format!("{}", self.by),
        };
        let message = format!(
            "{owner} preempts it with priority {}; it releases its partition and queues again",
            self.priority
        );
        Reason::new("Preempted", message)
    }
}

impl LedgerState {
    /// Returns the demand in force that the owner of `id` releases its partition.
    #[must_use]
    pub fn preemption_of(&self, id: &PartitionId) -> Option<&Preemption> {
        self.preemption_in_force(self.get(id)?)
    }

    fn preemption_in_force<'e>(&self, entry: &'e Entry) -> Option<&'e Preemption> {
        let demand = entry.preemption.as_ref().filter(|_| is_held(entry))?;
        is_demanded_by(entry, demand, self.get(&demand.by)?).then_some(demand)
    }

    /// Returns whether released IPUs are kept for the request `id`, because it demands partitions. An owner
    /// that ignores a demand for longer than the policy allows must not stop all requests behind.
    pub(crate) fn preempts(&self, id: &PartitionId, policy: &QueuePolicy, now: Timestamp) -> Preempts {
        let mut demanded = self.demands.get(id).into_iter().flatten();
        let is_recent = |demanded: &PartitionId| {
            let demand = self.get(demanded).and_then(|entry| entry.preemption.as_ref());
            demand.is_some_and(|demand| now.since(demand.at) < policy.preemption_hold)
        };
        if demanded.any(is_recent) {
            Preempts::Yes
        } else {
            Preempts::No
        }
    }

    /// Adds the changes that end the demands of requests that leave the queue by `changes`. Every commit
    /// calls this, so that a recorded demand is in force.
    #[must_use]
    pub fn with_ended_demands(&self, mut changes: Vec<Change>) -> Vec<Change> {
        if self.demands.is_empty() {
            return changes;
        }
        let mut ended = Vec::new();
        for change in &changes {
            let (id, request) = match change {
                Change::Put(entry) => (&entry.id, Some(&**entry)),
                Change::Remove(id) => (id, None),
                Change::Cordon(_) | Change::Lift(_) => continue,
            };
            let demanded = self.demands.get(id).into_iter().flatten();
            ended.extend(demanded.filter_map(|demanded| {
                let entry = self.get(demanded)?;
                let demand = entry.preemption.as_ref()?;
                let continues = request.is_some_and(|request| is_demanded_by(entry, demand, request));
                (!continues).then(|| entry.id.clone())
            }));
        }
        for id in ended {
            let of_entry = |change: &&mut Change| match change {
                Change::Put(entry) => entry.id == id,
                Change::Remove(removed) => *removed == id,
                Change::Cordon(_) | Change::Lift(_) => false,
            };
            match changes.iter_mut().find(of_entry) {
                Some(Change::Put(entry)) => Arc::make_mut(entry).preemption = None,
                Some(_) => {}
                None => {
                    let kept = self.get_shared(&id).map(|entry| Entry {
                        preemption: None,
                        ..Entry::clone(entry)
                    });
                    changes.extend(kept.map(|entry| Change::Put(Arc::new(entry))));
                }
            }
        }
        changes
    }

    /// Returns the changes that record the demands of `request`, which is queued for lack of capacity. There
    /// are none unless the request starts once the preempted partitions are released.
    pub(crate) fn preempt_for(
        &self,
        request: &Entry,
        snapshot: &ControllersSnapshot,
        policy: &QueuePolicy,
        now: Timestamp,
    ) -> Vec<Change> {
        if !policy.preemption || request.preemptible {
            return Vec::new();
        }
        // The demands of requests ahead are for those; it may take over the demands of requests behind.
        let is_settled = |entry: &&Entry| {
            let demand = self.preemption_in_force(entry);
            let by = demand.and_then(|demand| self.get(&demand.by));
            by.is_some_and(|by| queue_key(by) <= queue_key(request))
        };
        let (demanded, mut candidates): (Vec<&Entry>, Vec<&Entry>) = self
            .entries()
            .filter(|entry| is_held(entry) && entry.preemptible)
            .partition(is_settled);
        candidates.retain(|entry| entry.priority < request.priority);
        if candidates.is_empty() || self.starts_without(&demanded, request, snapshot, policy, now) {
            return Vec::new();
        }
        // Partitions that will be released anyway come first, so that few jobs are preempted.
        candidates.sort_by_key(|entry| {
            let is_kept = self.preemption_in_force(entry).is_none();
            (is_kept, entry.held_since, &entry.id)
        });
        candidates.truncate(MAX_PREEMPTED);
        let starts_without = |chosen: &[&Entry]| {
            let released: Vec<&Entry> = demanded.iter().chain(chosen).copied().collect();
            self.starts_without(&released, request, snapshot, policy, now)
        };
        if !starts_without(&candidates) {
            return Vec::new();
        }
        let chosen = smallest_set(&candidates, starts_without);
        let demand = |entry: &Entry| {
            let mut entry = entry.clone();
            entry.preemption = Some(Preemption::by(request, now));
            Change::Put(Arc::new(entry))
        };
        chosen.into_iter().map(demand).collect()
    }

    /// Returns whether `request` starts at its turn if the partitions of `released` do not exist.
    fn starts_without(
        &self,
        released: &[&Entry],
        request: &Entry,
        snapshot: &ControllersSnapshot,
        policy: &QueuePolicy,
        now: Timestamp,
    ) -> bool {
        let mut state = self.clone();
        let mut snapshot = snapshot.clone();
        for entry in released {
            state.apply(&Change::Remove(entry.id.clone()));
            snapshot.remove_partition(&entry.id);
        }
        let mut scan = QueueScan::new(&state, &snapshot, policy, now);
        for ahead in state.ahead_of(request) {
            scan.advance(ahead);
        }
        matches!(scan.evaluate(request), QueueDecision::Start { .. })
    }
}

impl ControllersSnapshot {
    /// Removes a partition from the listing that has it.
    fn remove_partition(&mut self, id: &PartitionId) {
        let lists = |view: &&mut ControllerView| {
            let listing = view.listing.as_ref();
            listing.is_ok_and(|listing| listing.partitions().contains_key(id))
        };
        for view in self.controllers.iter_mut().filter(lists) {
            if let Ok(listing) = &view.listing {
                view.listing = Ok(Arc::new(listing.without(id)));
            }
        }
    }
}

/// Returns whether `request` is still queued and may preempt `entry`.
fn is_demanded_by(entry: &Entry, demand: &Preemption, request: &Entry) -> bool {
    let is_queued = matches!(request.state, EntryState::Waiting { .. });
    is_queued && request.ticket == demand.ticket && request.priority > entry.priority
}

/// Returns whether the owner of `entry` holds a partition that it can release.
const fn is_held(entry: &Entry) -> bool {
    matches!(entry.state, EntryState::Active | EntryState::Failed { .. })
}

/// Returns a part of `candidates` that is enough, the first ones preferred: none of them can be left out.
fn smallest_set<'e>(candidates: &[&'e Entry], is_enough: impl Fn(&[&'e Entry]) -> bool) -> Vec<&'e Entry> {
    // The smallest number of leading candidates that is enough, with few calls: each scans the queue.
    let (mut too_few, mut enough) = (0, candidates.len());
    while too_few < enough {
        let middle = usize::midpoint(too_few, enough);
        if is_enough(&candidates[..middle]) {
            enough = middle;
        } else {
            too_few = middle + 1;
        }
    }
    let mut chosen = candidates[..enough].to_vec();
    for index in (0..chosen.len()).rev() {
        let entry = chosen.remove(index);
        if !is_enough(&chosen) {
            chosen.insert(index, entry);
        }
    }
    chosen
}
