//! The queue: which requests start now, and the status of all others.
//!
//! One scan makes all decisions. It visits the queue in order of priority and ticket on a copy of the
//! capacity. An entry that fits reserves its IPUs in that copy, so a later one never gets IPUs that an
//! earlier one could use now.
//!
//! Later requests overtake a blocked entry at most [`Policy::overtake_limit`] times. Then it holds back
//! every later entry that competes for the same capacity. If partitions of its own namespace block it, it
//! holds back only entries of that namespace. A preempting entry keeps exactly the IPUs that others have
//! released for it.

use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::OnceCell;

use serde::{Deserialize, Serialize};

use crate::allocator::blocked_requests::{BlockedRequests, RequestShape, shape_of};
use crate::allocator::capacity::{Hardware, SelectionOrder, ServiceState};
use crate::allocator::entry::Entry;
use crate::allocator::expected_start::Timeline;
use crate::allocator::holders::{ControllerCapacity, allows, capacities};
use crate::allocator::policy::Policy;
use crate::allocator::quota::{Excess, QuotaUse};
use crate::allocator::state::State;
use crate::hardware::partition::{IpuPlace, Partition};
use crate::ids::{ControllerName, Namespace, Owner, PartitionId};
use crate::reason::{Reason, ReasonCode};
use crate::units::{IpuCount, Timestamp};

mod explain;

/// A partition or request that a queued entry waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Blocker {
    /// The partition, or the request ahead in the queue.
    pub id: PartitionId,
    /// Its owner; none if the ledger does not record the partition or an owner.
    pub owner: Option<Owner>,
    /// Its size; none if unknown.
    pub size: Option<IpuCount>,
    /// Its declared end.
    pub until: Option<Timestamp>,
}

/// Status of a queued request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct QueueStatus {
    /// Position in the queue, from 1.
    pub position: u32,
    /// Reason that it does not start now.
    pub reason: Reason,
    /// Partitions and requests that would have to end.
    pub blockers: Vec<Blocker>,
    /// Latest expected start, if every owner ends as declared and no request of higher priority arrives. None
    /// if it does not follow from the declared run times.
    pub earliest_fit: Option<Timestamp>,
}

/// The decision on one entry of the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum QueueDecision {
    /// The entry may start now.
    Start {
        /// The controller.
        controller: ControllerName,
        /// The IPUs that the create call names; empty if the controller chooses.
        places: Vec<IpuPlace>,
    },
    /// The entry stays queued.
    Wait(QueueStatus),
}

/// The reason of each controller.
type ReasonsByController = Vec<(ControllerName, Reason)>;

/// Cause of the wait, which decides whether the entry can hold back others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitCause {
    /// The entry fits once others end; later ones may overtake it, within the limit.
    NoCapacity,
    /// Holding back others does not help: a quota, no controller, too large.
    Other,
}

/// The obstacle of a queued entry, before it is explained.
enum QueueObstacle<'a> {
    /// Another partition has its id at this controller.
    Foreign(&'a ControllerName),
    OverQuota(Excess<'a>),
    /// This entry was overtaken too often and must start first.
    HeldBackBy(&'a Entry),
    NoCapacity(Rc<NoCapacity>),
}

/// The reasons that requests of one shape do not fit, valid until the capacity changes.
struct NoCapacity {
    reasons: ReasonsByController,
    /// Index of the controller whose capacity is kept for entries ahead.
    kept_at: Option<usize>,
    cause: WaitCause,
    /// The reason without the position, and the blockers; computed on first use.
    explanation: OnceCell<(Reason, Vec<Blocker>)>,
}

/// A scan of the queue. [`start`](Self::start) only decides on an entry, [`evaluate`](Self::evaluate)
/// explains the decision too. An explanation costs much more than a decision, so only the reported entries
/// get one.
pub(crate) struct QueueScan<'a> {
    state: &'a State,
    hardware: &'a Hardware,
    policy: &'a Policy,
    now: Timestamp,
    capacities: Vec<ControllerCapacity<'a>>,
    quotas: QuotaUse<'a>,
    /// Entries ahead that start.
    starting: Vec<(&'a Entry, ControllerName)>,
    /// Entries ahead that are blocked by lack of capacity.
    blocked: BlockedRequests<'a>,
    /// Request shapes that do not fit, since the capacity last changed.
    no_capacity: BTreeMap<RequestShape<'a>, Rc<NoCapacity>>,
    /// Results of `is_blocked_by_own_namespace`, since the capacity last changed.
    blocked_by_own_namespace: BTreeMap<(RequestShape<'a>, &'a Namespace), bool>,
    /// The simulated future with all of `blocked`, since the capacity last changed; computed on first use.
    timeline: Option<Timeline<'a>>,
    position: u32,
}

impl<'a> QueueScan<'a> {
    pub(crate) fn new(state: &'a State, hardware: &'a Hardware, policy: &'a Policy, now: Timestamp) -> Self {
        Self {
            state,
            hardware,
            policy,
            now,
            capacities: capacities(state, hardware),
            quotas: QuotaUse::new(&policy.quotas, state.entries().map(|entry| &**entry)),
            starting: Vec::new(),
            blocked: BlockedRequests::new(policy.overtake_limit, hardware),
            no_capacity: BTreeMap::new(),
            blocked_by_own_namespace: BTreeMap::new(),
            timeline: None,
            position: 0,
        }
    }

    /// Returns the scan with decisions that name the IPUs, even where the controller chooses them.
    pub(crate) fn naming_ipus(mut self) -> Self {
        self.capacities.iter_mut().for_each(ControllerCapacity::name_ipus);
        self
    }

    /// Iterates over the entries ahead of `entry` that it overtakes if it starts.
    pub(crate) fn overtaken_by(&self, entry: &Entry) -> impl Iterator<Item = &'a Entry> {
        self.blocked.overtaken_by(entry)
    }

    /// Decides on the next entry of the queue, without an explanation. Returns the decision if the entry
    /// starts.
    pub(crate) fn start(&mut self, entry: &'a Entry) -> Option<QueueDecision> {
        self.position = self.position.saturating_add(1);
        if entry.unconfirmed {
            return None;
        }
        match self.decide(entry) {
            Ok(decision) => Some(decision),
            Err(obstacle) => {
                self.record(entry, &obstacle);
                None
            }
        }
    }

    /// Decides on the next entry of the queue, and explains the decision.
    pub(crate) fn evaluate(&mut self, entry: &'a Entry) -> QueueDecision {
        self.position = self.position.saturating_add(1);
        if entry.unconfirmed {
            return QueueDecision::Wait(QueueStatus {
                position: self.position,
                reason: not_confirmed().with("position", self.position),
                blockers: Vec::new(),
                earliest_fit: None,
            });
        }
        let obstacle = match self.decide(entry) {
            Ok(decision) => return decision,
            Err(obstacle) => obstacle,
        };
        let (reason, blockers, earliest_fit) = self.explain(entry, &obstacle);
        self.record(entry, &obstacle);
        let status = QueueStatus {
            position: self.position,
            reason: reason.with("position", self.position),
            blockers,
            earliest_fit,
        };
        QueueDecision::Wait(status.preempting(self.state, entry, self.now))
    }

    /// Decides on `entry`, and reserves capacity for it if it starts.
    fn decide(&mut self, entry: &'a Entry) -> Result<QueueDecision, QueueObstacle<'a>> {
        let existing = find_existing(self.hardware, entry, self.now);
        if let Some((controller, _)) = existing.filter(|(_, found)| !may_take_over(entry, found)) {
            return Err(QueueObstacle::Foreign(controller));
        }
        if let Some(excess) = self.quotas.exceeded_by(entry) {
            return Err(QueueObstacle::OverQuota(excess));
        }
        if let Some((controller, _)) = existing {
            // It exists, for example after a restore of an old copy of the ledger, and needs no capacity.
            self.quotas.add(entry);
            return Ok(QueueDecision::Start {
                controller: controller.clone(),
                places: Vec::new(),
            });
        }
        if let Some(barrier) = self.blocked.barrier_for(entry) {
            return Err(QueueObstacle::HeldBackBy(barrier));
        }
        // A refusal by a controller is a reason of this entry only, not of its shape.
        let shape = Some(shape_of(entry)).filter(|_| entry.refusals.is_empty());
        if let Some(no_capacity) = shape.and_then(|shape| self.no_capacity.get(&shape)) {
            return Err(QueueObstacle::NoCapacity(Rc::clone(no_capacity)));
        }
        match self.reserve_for(entry) {
            Ok((index, places)) => {
                self.quotas.add(entry);
                self.blocked.count_start(entry);
                self.no_capacity.clear();
                self.blocked_by_own_namespace.clear();
                self.timeline = None;
                let capacity = &mut self.capacities[index];
                capacity.starting.push(entry.id.clone());
                self.starting.push((entry, capacity.name.clone()));
                Ok(QueueDecision::Start {
                    controller: capacity.name.clone(),
                    places,
                })
            }
            Err(reasons) => {
                let no_capacity = Rc::new(self.no_capacity_for(entry, reasons));
                if let Some(shape) = shape {
                    self.no_capacity.insert(shape, Rc::clone(&no_capacity));
                }
                Err(QueueObstacle::NoCapacity(no_capacity))
            }
        }
    }

    /// Reserves capacity for `entry` at the first controller of the order that has it, or returns the reason
    /// of each.
    fn reserve_for(&mut self, entry: &'a Entry) -> Result<(usize, Vec<IpuPlace>), ReasonsByController> {
        let mut order: Vec<usize> = (0..self.capacities.len()).collect();
        match self.policy.order {
            SelectionOrder::Serial => {}
            SelectionOrder::Tightest => order.sort_by_key(|i| self.capacities[*i].current.largest_block()),
            SelectionOrder::MostFree => {
                order.sort_by_key(|i| core::cmp::Reverse(self.capacities[*i].current.free()));
            }
        }
        let mut reasons = Vec::new();
        for index in order {
            let capacity = &mut self.capacities[index];
            if !allows(entry, &capacity.name) {
                continue;
            }
            let refusal = capacity.closed_reason();
            if let Some(reason) = refusal.or_else(|| capacity.refusal_of(entry, self.policy, self.now)) {
                reasons.push((capacity.name.clone(), reason));
                continue;
            }
            match capacity.place(entry) {
                Ok(places) => return Ok((index, places)),
                Err(reason) => reasons.push((capacity.name.clone(), reason)),
            }
        }
        for view in &self.hardware.controllers {
            if let (Err(reason), ServiceState::Open) = (&view.listing, view.service)
                && allows(entry, &view.name)
            {
                reasons.push((view.name.clone(), reason.clone()));
            }
        }
        Err(reasons)
    }

    /// Determines the cause of the wait of `entry`, for which no controller has capacity.
    fn no_capacity_for(&self, entry: &Entry, reasons: ReasonsByController) -> NoCapacity {
        // It would fit if the entries ahead did not start first: they are the cause then.
        let kept_at = self.capacities.iter().position(|capacity| {
            let refused = |(name, reason): &(ControllerName, Reason)| {
                *name == capacity.name
                    && matches!(
                        reason.code,
                        ReasonCode::ControllerRefused | ReasonCode::LostPartition
                    )
            };
            !reasons.iter().any(refused) && capacity.would_fit_without_starting(entry)
        });
        let can_help = |capacity: &ControllerCapacity<'_>| capacity.can_help(entry, self.policy, self.now);
        let cause = if kept_at.is_some() || self.capacities.iter().any(can_help) {
            WaitCause::NoCapacity
        } else {
            WaitCause::Other
        };
        NoCapacity {
            reasons,
            kept_at,
            cause,
            explanation: OnceCell::new(),
        }
    }

    /// Records that `entry` stays queued.
    fn record(&mut self, entry: &'a Entry, obstacle: &QueueObstacle<'a>) {
        let cause = match obstacle {
            QueueObstacle::Foreign(_) | QueueObstacle::OverQuota(_) => WaitCause::Other,
            QueueObstacle::HeldBackBy(_) => WaitCause::NoCapacity,
            QueueObstacle::NoCapacity(no_capacity) => no_capacity.cause,
        };
        for refused in &entry.refusals {
            let mut capacities = self.capacities.iter_mut();
            if let Some(capacity) = capacities.find(|capacity| capacity.name == refused.controller)
                && capacity.add_refusal(entry, self.policy, self.now)
            {
                self.no_capacity.clear();
                self.blocked_by_own_namespace.clear();
            }
        }
        if cause == WaitCause::NoCapacity {
            let own_namespace = self.is_blocked_by_own_namespace(entry);
            self.blocked.push(entry, own_namespace);
            if let Some(timeline) = &mut self.timeline {
                timeline.push(entry);
            }
        }
        if matches!(obstacle, QueueObstacle::NoCapacity(_)) {
            self.keep_ipus(entry);
        }
    }

    /// Keeps the IPUs on which the preempting `entry` starts, and its share of the quotas.
    fn keep_ipus(&mut self, entry: &'a Entry) {
        let Some(kept) = entry.kept.as_ref().filter(|_| self.policy.preemption) else {
            return;
        };
        self.quotas.add(entry);
        let mut capacities = self.capacities.iter_mut();
        if let Some(capacity) = capacities.find(|capacity| capacity.name == kept.controller) {
            capacity.keep(entry, &kept.places);
            self.no_capacity.clear();
            self.blocked_by_own_namespace.clear();
            self.timeline = None;
        }
    }

    /// Returns whether partitions of its own namespace have to end before `entry` fits anywhere.
    fn is_blocked_by_own_namespace(&mut self, entry: &'a Entry) -> bool {
        let Some(namespace) = entry.owner.as_ref().map(|owner| &owner.job.namespace) else {
            return false;
        };
        let mut capacities = self.capacities.iter();
        if !capacities.any(|capacity| capacity.has_holder_of(namespace)) {
            return false;
        }
        let compute = || {
            let mut capacities = self.capacities.iter();
            !capacities.any(|capacity| capacity.can_help_without(namespace, entry, self.policy, self.now))
        };
        // A refusal of the entry itself does not apply to others of its shape.
        if !entry.refusals.is_empty() {
            return compute();
        }
        *self
            .blocked_by_own_namespace
            .entry((shape_of(entry), namespace))
            .or_insert_with(compute)
    }
}

/// Returns the reason of an entry of an old copy of the record.
#[must_use]
pub fn not_confirmed() -> Reason {
    let message = "it stands in an old copy of the record, and its owner has not been heard since, or not while its \
                   controllers responded; it is kept until its owner requests, renews or releases it";
    Reason::new(ReasonCode::NotConfirmed, message)
}

/// Returns the partition of a queued entry that exists at a controller. A listing from before the entry was
/// queued may have a partition that was found to be gone since.
pub(crate) fn find_existing<'h>(
    hardware: &'h Hardware,
    entry: &Entry,
    now: Timestamp,
) -> Option<(&'h ControllerName, &'h Partition)> {
    let (controller, partition) = hardware.find(&entry.id)?;
    let requested = hardware.listing(controller)?.requested();
    let is_newer = requested.is_none_or(|requested| requested > entry.since || entry.since > now);
    is_newer.then_some((controller, partition))
}

/// Returns whether the owner of `entry` may take over `partition`, which exists at a controller under its id.
/// The id must be derived from the owner, and the properties must be those requested.
pub(crate) fn may_take_over(entry: &Entry, partition: &Partition) -> bool {
    entry.is_derived() && entry.matches(&partition.spec)
}

impl QueueStatus {
    /// Builds the queue status of a request that fits now and starts next; `position` counts from 1.
    #[must_use]
    pub fn next_in_queue(position: u32) -> Self {
        let reason = Reason::new(ReasonCode::NextInLine, "it fits now and starts next");
        Self {
            position,
            reason: reason.with("position", position),
            blockers: Vec::new(),
            earliest_fit: None,
        }
    }
}

/// Evaluates the whole queue: the status of each queued entry, in queue order.
#[must_use]
pub fn evaluate_queue(
    state: &State,
    hardware: &Hardware,
    policy: &Policy,
    now: Timestamp,
) -> Vec<(PartitionId, QueueStatus)> {
    let mut scan = QueueScan::new(state, hardware, policy, now);
    (1..)
        .zip(state.queue())
        .map(|(position, entry)| {
            let status = match scan.evaluate(entry) {
                QueueDecision::Wait(status) => status,
                QueueDecision::Start { .. } => QueueStatus::next_in_queue(position),
            };
            (entry.id.clone(), status)
        })
        .collect()
}
