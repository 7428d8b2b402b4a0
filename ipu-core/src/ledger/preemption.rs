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
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::ids::{ControllerName, Owner, PartitionId};
use crate::ledger::capacity::ControllersSnapshot;
use crate::ledger::change::Change;
use crate::ledger::entry::{Entry, EntryState};
use crate::ledger::queue::{Blocker, QueueStatus, describe};
use crate::ledger::queue_policy::QueuePolicy;
use crate::ledger::victims::Hypothesis;
use crate::ledger::{LedgerState, queue_key};
use crate::reason::Reason;
use crate::units::Timestamp;

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
        let is_held = matches!(
            entry.state,
            EntryState::Active | EntryState::Failed { .. } | EntryState::Intent { .. }
        );
        let demand = entry.preemption.as_ref().filter(|_| is_held)?;
        is_demanded_by(entry, demand, self.get(&demand.by)?).then_some(demand)
    }

    /// Returns the controller whose IPUs are kept for the request `id`, because it demands partitions there.
    /// An owner that ignores a demand for longer than the policy allows must not stop all requests behind.
    pub(crate) fn preempts_at(
        &self,
        id: &PartitionId,
        policy: &QueuePolicy,
        now: Timestamp,
    ) -> Option<&ControllerName> {
        let demanded = self.demands.get(id).filter(|_| policy.preemption)?;
        let mut demanded = demanded.iter().filter_map(|demanded| self.get(demanded));
        let is_recent = |entry: &&Entry| {
            let demand = entry.preemption.as_ref();
            demand.is_some_and(|demand| now.since(demand.at) < policy.preemption_hold)
        };
        demanded.find(is_recent)?.controller.as_ref()
    }

    /// Iterates over the partitions that the request `id` demands, also those under removal.
    pub(crate) fn demanded_by(&self, id: &PartitionId) -> impl Iterator<Item = &Entry> {
        let demanded = self.demands.get(id).into_iter().flatten();
        demanded.filter_map(|demanded| self.get(demanded))
    }

    /// Returns the changes that end all demands, for a ledger without preemption.
    #[must_use]
    pub fn end_demands(&self) -> Vec<Change> {
        let demanded = self.demands.values().flatten();
        demanded.filter_map(|id| self.without_demand(id)).collect()
    }

    fn without_demand(&self, id: &PartitionId) -> Option<Change> {
        let mut entry = Entry::clone(self.get_shared(id)?);
        entry.preemption = None;
        Some(Change::Put(Arc::new(entry)))
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
                None => changes.extend(self.without_demand(&id)),
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
        let is_recent = |since: Timestamp| now.since(since) < policy.preemption_hold;
        // Partitions that end without a further demand: those under removal, and those that this request or
        // one ahead demands. The demands of requests behind can be taken over.
        let (mut ending, mut candidates) = (Vec::new(), Vec::new());
        for entry in self.entries() {
            let demand = self.preemption_in_force(entry);
            let by = demand.and_then(|demand| self.get(&demand.by));
            let is_settled = by.is_some_and(|by| by.id == request.id || queue_key(by) < queue_key(request));
            match &entry.state {
                EntryState::Releasing { .. }
                    if is_recent(entry.since) && entry.removal_refusal().is_none() =>
                {
                    ending.push(entry);
                }
                // An owner that ignores its demand does not keep the request from others.
                _ if demand.is_some_and(|demand| !is_recent(demand.at)) => {}
                _ if is_settled => ending.push(entry),
                EntryState::Active | EntryState::Failed { .. }
                    if entry.preemptible && entry.priority < request.priority =>
                {
                    candidates.push(entry);
                }
                _ => {}
            }
        }
        let hypothesis = Hypothesis {
            state: self,
            request,
            snapshot,
            policy,
            now,
            ending,
        };
        if hypothesis.start_without(&[]).is_some() {
            return Vec::new();
        }
        // Partitions that will be released anyway come first, so that few jobs are preempted.
        candidates.sort_by_key(|entry| {
            let is_kept = self.preemption_in_force(entry).is_none();
            (is_kept, entry.priority, entry.held_since, &entry.id)
        });
        let demand = |entry: &Entry| {
            let mut entry = entry.clone();
            let mut demand = Preemption::by(request, now);
            // The hold counts from the first demand, also if another request takes it over.
            if let Some(earlier) = self.preemption_in_force(&entry) {
                demand.at = earlier.at;
            }
            entry.preemption = Some(demand);
            Change::Put(Arc::new(entry))
        };
        let victims = hypothesis.victims(candidates);
        if victims.is_empty() {
            // The request does not start even if the owners obey, for example because of a cordon since. The
            // demand that an owner ignores stays, so that it is not renewed.
            let demanded = self.demanded_by(&request.id);
            let is_useless = |entry: &&Entry| {
                let demand = self.preemption_in_force(entry);
                demand.is_some_and(|demand| is_recent(demand.at))
            };
            let useless = demanded.filter(is_useless);
            return useless
                .filter_map(|entry| self.without_demand(&entry.id))
                .collect();
        }
        victims.into_iter().map(demand).collect()
    }
}

impl QueueStatus {
    /// Returns the status of a request that demands the partitions of `demanded`: it waits for these.
    pub(crate) fn preempting<'e>(
        mut self,
        demanded: impl Iterator<Item = &'e Entry>,
        now: Timestamp,
    ) -> Self {
        let demanded: Vec<&Entry> = demanded.collect();
        if demanded.is_empty() {
            return self;
        }
        let names: Vec<_> = demanded.iter().take(3).map(|entry| describe(entry)).collect();
        let more = match demanded.len().saturating_sub(names.len()) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        self.reason.message = format!(
            "{}; it preempts {}{more}, and starts once the partitions are released",
            self.reason.message,
            names.join(", ")
        );
        self.blockers = demanded
            .into_iter()
            .map(|entry| Blocker::of(entry, now))
            .collect();
        self
    }
}

/// Returns whether `request` is still queued and may preempt `entry`.
fn is_demanded_by(entry: &Entry, demand: &Preemption, request: &Entry) -> bool {
    let is_queued = matches!(request.state, EntryState::Waiting { .. });
    is_queued && !request.preemptible && request.ticket == demand.ticket && request.priority > entry.priority
}
