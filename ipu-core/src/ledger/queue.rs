//! The queue: which requests start now, and the status of all others.
//!
//! One scan makes all decisions. It visits the queue in order of priority and ticket on a copy of the
//! capacity. An entry that fits reserves its IPUs in that copy, so a later one never gets IPUs that an
//! earlier one could use now.
//!
//! Later requests overtake a blocked entry at most [`QueuePolicy::overtake_limit`] times. Then it holds back
//! every later entry that competes for the same capacity. If partitions of its own namespace block it, it
//! holds back only entries of that namespace. The ledger places an entry that starts while capacity is kept
//! for an earlier one, so that the controller cannot use that capacity for it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::OnceCell;

use serde::{Deserialize, Serialize};

use crate::ids::{ControllerName, Namespace, Owner, PartitionId};
use crate::ledger::LedgerState;
use crate::ledger::blocked_requests::{BlockedRequests, RequestShape, shape_of};
use crate::ledger::capacity::{ControllersSnapshot, SelectionOrder, ServiceState};
use crate::ledger::capacity_snapshot::{
    CapacitySnapshot, LOST_PARTITION, REFUSED, allows, capacity_snapshots,
};
use crate::ledger::entry::{Entry, EntryState, PlacedBy};
use crate::ledger::expected_start::Timeline;
use crate::ledger::queue_policy::QueuePolicy;
use crate::ledger::quota::{Excess, QuotaUse};
use crate::partition::{IpuPlace, Partition};
use crate::reason::Reason;
use crate::units::{IpuCount, Timestamp};

mod explain;

pub(crate) use explain::describe;

/// A partition or request that a queued entry waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// Free capacity of one controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct FreeCapacity {
    /// Free IPUs.
    pub free: u32,
    /// Size of the largest partition that fits.
    pub largest_block: u32,
    /// Number of partitions of the requested size that fit side by side.
    #[serde(rename = "fits")]
    pub fit_count: u32,
}

/// The decision on one entry of the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueDecision {
    /// The entry may start now.
    Start {
        /// The controller.
        controller: ControllerName,
        /// The IPUs, if known; passed to the controller if `placed` is [`PlacedBy::Ledger`].
        places: Vec<IpuPlace>,
        /// Origin of the choice of IPUs.
        placed: PlacedBy,
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

/// A scan of the queue. [`advance`](Self::advance) only decides on an entry, [`evaluate`](Self::evaluate)
/// explains the decision too. An explanation costs much more than a decision, so only the reported entries
/// get one.
pub(crate) struct QueueScan<'a> {
    state: &'a LedgerState,
    snapshot: &'a ControllersSnapshot,
    policy: &'a QueuePolicy,
    now: Timestamp,
    capacities: Vec<CapacitySnapshot<'a>>,
    quotas: QuotaUse<'a>,
    /// Entries ahead that start.
    starting: Vec<(&'a Entry, ControllerName)>,
    /// Entries ahead that are blocked by lack of capacity.
    blocked: BlockedRequests<'a>,
    /// Request shapes that do not fit, since the capacity last changed.
    no_capacity: BTreeMap<RequestShape<'a>, Rc<NoCapacity>>,
    /// Request shapes that fit only where capacity is kept for a preempting entry, since the capacity last
    /// changed.
    held_back: BTreeSet<RequestShape<'a>>,
    /// Results of `is_blocked_by_own_namespace`, since the capacity last changed.
    blocked_by_own_namespace: BTreeMap<(RequestShape<'a>, &'a Namespace), bool>,
    /// The simulated future with all of `blocked`, since the capacity last changed; computed on first use.
    timeline: Option<Timeline<'a>>,
    position: u32,
}

impl<'a> QueueScan<'a> {
    pub(crate) fn new(
        state: &'a LedgerState,
        snapshot: &'a ControllersSnapshot,
        policy: &'a QueuePolicy,
        now: Timestamp,
    ) -> Self {
        Self {
            state,
            snapshot,
            policy,
            now,
            capacities: capacity_snapshots(state, snapshot),
            quotas: QuotaUse::new(&policy.quotas, state.entries()),
            starting: Vec::new(),
            blocked: BlockedRequests::new(policy.overtake_limit, snapshot),
            no_capacity: BTreeMap::new(),
            held_back: BTreeSet::new(),
            blocked_by_own_namespace: BTreeMap::new(),
            timeline: None,
            position: 0,
        }
    }

    /// Iterates over the entries ahead of `entry` that it overtakes if it starts.
    pub(crate) fn overtaken_by(&self, entry: &Entry) -> impl Iterator<Item = &'a Entry> {
        self.blocked.overtaken_by(entry)
    }

    /// Decides on the next entry of the queue, without an explanation.
    pub(crate) fn advance(&mut self, entry: &'a Entry) {
        self.position = self.position.saturating_add(1);
        if let Err(obstacle) = self.decide(entry) {
            self.record(entry, &obstacle);
        }
    }

    /// Decides on the next entry of the queue, and explains the decision.
    pub(crate) fn evaluate(&mut self, entry: &'a Entry) -> QueueDecision {
        self.position = self.position.saturating_add(1);
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
        QueueDecision::Wait(status.preempting(self.state.demanded_by(&entry.id), self.now))
    }

    /// Decides on `entry`, and reserves capacity for it if it starts.
    fn decide(&mut self, entry: &'a Entry) -> Result<QueueDecision, QueueObstacle<'a>> {
        if let Some((controller, partition)) = self.snapshot.find(&entry.id) {
            return self.decide_existing(entry, controller, partition);
        }
        if let Some(excess) = self.quotas.exceeded_by(entry) {
            return Err(QueueObstacle::OverQuota(excess));
        }
        if let Some(barrier) = self.blocked.barrier_for(entry) {
            return Err(QueueObstacle::HeldBackBy(barrier));
        }
        // A refusal by a controller is a reason of this entry only, not of its shape.
        let refused = self
            .capacities
            .iter()
            .any(|capacity| capacity.own_refusal(entry, self.policy, self.now).is_some());
        if !refused && let Some(no_capacity) = self.no_capacity.get(&shape_of(entry)) {
            return Err(QueueObstacle::NoCapacity(Rc::clone(no_capacity)));
        }
        let preempting = self.preempting_ahead(entry);
        if let Some(preempting) = preempting
            && !refused
            && self.held_back.contains(&shape_of(entry))
        {
            return Err(QueueObstacle::HeldBackBy(preempting));
        }
        match self.reserve_for(entry) {
            Ok((index, places)) => {
                self.quotas.add(entry);
                self.blocked.count_start(entry);
                self.no_capacity.clear();
                self.held_back.clear();
                self.blocked_by_own_namespace.clear();
                self.timeline = None;
                let capacity = &mut self.capacities[index];
                capacity.starting.push(entry.id.clone());
                self.starting.push((entry, capacity.name.clone()));
                // The ledger places the partition wherever it can, so that one write records intent and IPUs.
                // A controller that restarts without its partitions then cannot give away IPUs that are in
                // use.
                let placed = if places.is_empty() {
                    PlacedBy::Controller
                } else {
                    PlacedBy::Ledger
                };
                Ok(QueueDecision::Start {
                    controller: capacity.name.clone(),
                    places,
                    placed,
                })
            }
            Err(reasons) => {
                if let Some(preempting) = preempting {
                    if !refused {
                        self.held_back.insert(shape_of(entry));
                    }
                    return Err(QueueObstacle::HeldBackBy(preempting));
                }
                let no_capacity = Rc::new(self.no_capacity_for(entry, reasons));
                if !refused {
                    self.no_capacity.insert(shape_of(entry), Rc::clone(&no_capacity));
                }
                Err(QueueObstacle::NoCapacity(no_capacity))
            }
        }
    }

    /// Returns the first preempting entry ahead that competes with `entry` at one of its controllers.
    fn preempting_ahead(&self, entry: &Entry) -> Option<&'a Entry> {
        let allowed = self
            .capacities
            .iter()
            .filter(|capacity| allows(entry, &capacity.name));
        let mut preempting = allowed.filter_map(|capacity| self.blocked.preempting_at(entry, &capacity.name));
        preempting.next()
    }

    /// Decides on an entry whose partition already exists at a controller, for example after a restore of an
    /// old copy of the ledger. Its owner takes the partition over with its next request. It needs no
    /// capacity, but counts towards the quotas, so that later entries cannot use up its share.
    fn decide_existing(
        &mut self,
        entry: &'a Entry,
        controller: &'a ControllerName,
        partition: &Partition,
    ) -> Result<QueueDecision, QueueObstacle<'a>> {
        if !may_take_over(entry, partition) {
            return Err(QueueObstacle::Foreign(controller));
        }
        self.quotas.add(entry);
        Ok(QueueDecision::Start {
            controller: controller.clone(),
            places: partition.ipus.clone(),
            placed: PlacedBy::Controller,
        })
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
            // The IPUs that a preempting entry waits for are kept for it.
            if !allows(entry, &capacity.name) || self.blocked.preempting_at(entry, &capacity.name).is_some() {
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
        for view in &self.snapshot.controllers {
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
                *name == capacity.name && matches!(&*reason.code, REFUSED | LOST_PARTITION)
            };
            !reasons.iter().any(refused) && capacity.would_fit_without_starting(entry)
        });
        let is_permanent = || {
            reasons
                .iter()
                .all(|(_, reason)| matches!(&*reason.code, TOO_LARGE | UNKNOWN_ALLOCATION | UNAVAILABLE))
        };
        let can_help = |capacity: &CapacitySnapshot<'_>| capacity.can_help(entry, self.policy, self.now);
        let cause = if kept_at.is_some() || !is_permanent() && self.capacities.iter().any(can_help) {
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
        if let EntryState::Waiting {
            refused: Some(refused),
        } = &entry.state
            && let Some(capacity) = self
                .capacities
                .iter_mut()
                .find(|capacity| capacity.name == refused.controller)
            && capacity.add_refusal(entry, self.policy, self.now)
        {
            self.no_capacity.clear();
            self.held_back.clear();
            self.blocked_by_own_namespace.clear();
        }
        let preempts_at = self.state.preempts_at(&entry.id, self.policy, self.now);
        let preempts_at = preempts_at.map(|name| self.snapshot.primary(name).clone());
        if preempts_at.is_some() && matches!(obstacle, QueueObstacle::OverQuota(_)) {
            // The share of the quota that it waits for is kept for it too.
            self.quotas.add(entry);
        }
        if cause == WaitCause::NoCapacity || preempts_at.is_some() {
            let own_namespace = self.is_blocked_by_own_namespace(entry);
            self.blocked.push(entry, own_namespace, preempts_at);
            if let Some(timeline) = &mut self.timeline {
                timeline.push(entry);
            }
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
        // A rejection of the entry itself does not apply to others of its shape.
        if self
            .capacities
            .iter()
            .any(|one| one.own_refusal(entry, self.policy, self.now).is_some())
        {
            return compute();
        }
        *self
            .blocked_by_own_namespace
            .entry((shape_of(entry), namespace))
            .or_insert_with(compute)
    }
}

pub(crate) const TOO_LARGE: &str = "TooLarge";
const UNKNOWN_ALLOCATION: &str = "UnknownAllocation";
/// Codes of reasons that no cordon causes.
const NEVER_FITS: [&str; 3] = [TOO_LARGE, UNKNOWN_ALLOCATION, UNAVAILABLE];
pub(crate) const UNAVAILABLE: &str = "ControllerUnavailable";

/// Returns whether the owner of `entry` may take over `partition`, which exists at a controller under its id.
/// The id must be derived from the owner, and the properties must be those requested.
pub(crate) fn may_take_over(entry: &Entry, partition: &Partition) -> bool {
    let derived = entry
        .owner
        .as_ref()
        .is_some_and(|owner| owner.job.partition_id(entry.instance) == entry.id);
    derived && entry.matches(&partition.spec)
}
