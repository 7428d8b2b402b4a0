//! Preemption: the first queued request that may preempt asks preemptible holders of lower priority to
//! release their partitions.
//!
//! Holders are asked only if the request starts once all of them have released: lowest priority first, then
//! the longest held. The owner stops its processes and releases the partition; nothing is removed under a
//! running process. Meanwhile no later request gets the IPUs on which this one will start, or its share of a
//! quota. A holder that has not released within [`Policy::preemption_grace`] is no longer counted, and is not
//! asked again by the same request.
//!
//! A preemptible request never preempts: a preempted job, which queues again, preempts nothing. A request
//! over quota preempts nothing either.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::allocator::capacity::{ControllerView, Hardware};
use crate::allocator::entry::{Asked, Entry, KeptIpus, Phase, Preemption, Refusal};
use crate::allocator::policy::Policy;
use crate::allocator::queue::{QueueDecision, QueueScan};
use crate::allocator::quota::QuotaUse;
use crate::allocator::state::{Change, State};
use crate::ids::PartitionId;
use crate::units::Timestamp;

/// Maximum number of holders among which the necessary ones are searched: each costs one scan of the queue.
const MAX_SEARCHED: usize = 256;

/// A request that asks holders to release their partitions, or waits for those it has asked.
struct Demand<'a> {
    request: &'a Arc<Entry>,
    holders: BTreeSet<PartitionId>,
    /// The IPUs on which the request starts after the releases.
    start: KeptIpus,
}

/// Returns the changes after which exactly the holders are asked that should be.
pub(super) fn preempt(state: &State, hardware: &Hardware, policy: &Policy, now: Timestamp) -> Vec<Change> {
    let request = asking_request(state, policy);
    let demand = request.and_then(|request| demand_of(state, request, hardware, policy, now));
    let demand = demand.as_ref();
    let mut changes = Vec::new();
    for entry in state.entries() {
        let preemption = demand
            .filter(|demand| demand.holders.contains(&entry.id))
            .map(|demand| preemption_by(demand.request, entry, now));
        if entry.preemption != preemption {
            let mut entry = Entry::clone(entry);
            entry.preemption = preemption;
            changes.push(Change::Put(Arc::new(entry)));
        }
    }
    for entry in state.queue() {
        let demand = demand.filter(|demand| demand.request.id == entry.id);
        // The times stay, so that a request that asks again later is not given more time.
        let mut asked = entry.asked.clone();
        for id in demand.into_iter().flat_map(|demand| &demand.holders) {
            if asked.iter().all(|asked| asked.id != *id) {
                asked.push(Asked {
                    id: id.clone(),
                    at: now,
                });
            }
        }
        let kept = demand
            .filter(|_| !asked.is_empty())
            .map(|demand| demand.start.clone());
        if (&entry.asked, &entry.kept) != (&asked, &kept) {
            let mut entry = Entry::clone(entry);
            (entry.asked, entry.kept) = (asked, kept);
            changes.push(Change::Put(Arc::new(entry)));
        }
    }
    changes
}

/// Returns the first queued request that may preempt.
fn asking_request<'a>(state: &'a State, policy: &Policy) -> Option<&'a Arc<Entry>> {
    if !policy.preemption {
        return None;
    }
    let used = QuotaUse::new(&policy.quotas, state.entries().map(|entry| &**entry));
    let mut queue = state.queue();
    queue.find(|entry| !entry.preemptible && used.exceeded_by(entry).is_none())
}

/// Returns the demand of `request`, with the partitions whose owners are asked; none if the request does not
/// start by their release.
fn demand_of<'a>(
    state: &State,
    request: &'a Arc<Entry>,
    hardware: &Hardware,
    policy: &Policy,
    now: Timestamp,
) -> Option<Demand<'a>> {
    let asked_at = |id: &PartitionId| {
        request
            .asked
            .iter()
            .find(|asked| asked.id == *id)
            .map(|asked| asked.at)
    };
    let may_be_asked = |entry: &&Arc<Entry>| {
        let is_held = matches!(entry.phase, Phase::Active | Phase::Failed { .. });
        let has_time = asked_at(&entry.id).is_none_or(|at| now.is_near(at, policy.preemption_grace));
        is_held && entry.preemptible && entry.priority < request.priority && has_time
    };
    let mut candidates: Vec<&Entry> = state
        .entries()
        .filter(may_be_asked)
        .map(|entry| &**entry)
        .collect();
    // Holders that were asked already come first, so that few jobs are preempted.
    candidates.sort_by_key(|entry| {
        let is_new = asked_at(&entry.id).is_none();
        (is_new, entry.priority, entry.held_since, &entry.id)
    });
    let releasing = state
        .entries()
        .filter(|entry| matches!(entry.phase, Phase::Releasing { refusal: None }));
    let hypothesis = Hypothesis {
        state,
        request,
        hardware,
        policy,
        now,
        ending: releasing.map(|entry| &**entry).collect(),
    };
    let mut holders = Vec::new();
    let mut start = hypothesis.start_without(&[]);
    // Otherwise it starts once the releases under way have ended.
    if start.is_none() {
        holders = hypothesis.necessary(candidates);
        start = hypothesis.start_without(&holders).filter(|_| !holders.is_empty());
    }
    let mut start = start?;
    if start.places.is_empty() {
        // The numbers of IPUs do not identify them at a controller of several clusters.
        start.places = holders.iter().flat_map(|entry| entry.places.clone()).collect();
    }
    let holders = holders.into_iter().map(|entry| entry.id.clone()).collect();
    Some(Demand {
        request,
        holders,
        start,
    })
}

fn preemption_by(request: &Entry, entry: &Entry, now: Timestamp) -> Preemption {
    let recorded = entry
        .preemption
        .as_ref()
        .filter(|recorded| recorded.by == request.id);
    Preemption {
        by: request.id.clone(),
        owner: request.owner.clone(),
        priority: request.priority,
        at: recorded.map_or(now, |recorded| recorded.at),
    }
}

/// The state and the hardware at the turn of a queued request, after the end of some partitions. The code
/// that grants requests predicts the grant.
struct Hypothesis<'a> {
    state: &'a State,
    request: &'a Entry,
    hardware: &'a Hardware,
    policy: &'a Policy,
    now: Timestamp,
    /// Partitions that end in any case.
    ending: Vec<&'a Entry>,
}

impl Hypothesis<'_> {
    /// Returns the IPUs on which the request starts if the partitions of `released` end too.
    fn start_without(&self, released: &[&Entry]) -> Option<KeptIpus> {
        let mut state = self.state.clone();
        let mut hardware = self.hardware.clone();
        for entry in self.ending.iter().chain(released) {
            state.apply(&Change::Remove(entry.id.clone()));
            hardware.forget(&entry.id);
        }
        let mut scan = QueueScan::new(&state, &hardware, self.policy, self.now).naming_ipus();
        for ahead in state.ahead_of(self.request) {
            scan.start(ahead);
        }
        match scan.evaluate(&self.refused_until_now(&state, &hardware)) {
            QueueDecision::Start { controller, places } => Some(KeptIpus { controller, places }),
            QueueDecision::Wait(_) => None,
        }
    }

    /// Returns the request with its refusals as if the controllers repeated them now: released partitions do
    /// not help against a refusal that the state cannot explain.
    fn refused_until_now(&self, state: &State, hardware: &Hardware) -> Entry {
        let mut request = Entry::clone(self.request);
        if request.refusals.is_empty() {
            return request;
        }
        let is_recent = |refused: &&mut Refusal| self.now.is_near(refused.at, self.policy.preemption_grace);
        let capacities = crate::allocator::holders::capacities(state, hardware);
        for refused in request.refusals.iter_mut().filter(is_recent) {
            let mut capacities = capacities.iter();
            if let Some(capacity) = capacities.find(|capacity| capacity.name == refused.controller) {
                refused.fingerprint = capacity.fingerprint();
                refused.at = self.now;
            }
        }
        request
    }

    /// Returns those of `candidates` that have to end for the request to start, the first ones preferred:
    /// none of them can be left out. Returns none if the end of all does not help, or if the hardware of the
    /// controller is not known.
    fn necessary<'e>(&self, mut candidates: Vec<&'e Entry>) -> Vec<&'e Entry> {
        let Some(KeptIpus { controller, .. }) = self.start_without(&candidates) else {
            return Vec::new();
        };
        let listing = self.hardware.listing(&controller);
        if listing.is_none_or(|listing| listing.capacity().counts().is_none()) {
            return Vec::new();
        }
        let is_here = |entry: &&Entry| entry.controller.as_ref() == Some(&controller);
        let here: Vec<&Entry> = candidates.iter().copied().filter(is_here).collect();
        if self.start_without(&here).is_some() {
            candidates = here;
        }
        // The smallest number of leading holders that is enough.
        let (mut too_few, mut enough) = (0, candidates.len());
        while too_few < enough {
            let middle = usize::midpoint(too_few, enough);
            if self.start_without(&candidates[..middle]).is_some() {
                enough = middle;
            } else {
                too_few = middle + 1;
            }
        }
        candidates.truncate(enough);
        if candidates.len() > MAX_SEARCHED {
            return Vec::new();
        }
        // The end of a partition may let a request ahead start, so that fewer ends may need fewer still.
        let mut length = usize::MAX;
        while candidates.len() < length {
            length = candidates.len();
            for index in (0..length).rev() {
                let entry = candidates.remove(index);
                if self.start_without(&candidates).is_none() {
                    candidates.insert(index, entry);
                }
            }
        }
        candidates
    }
}

impl Hardware {
    /// Removes a partition from the listings.
    fn forget(&mut self, id: &PartitionId) {
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
