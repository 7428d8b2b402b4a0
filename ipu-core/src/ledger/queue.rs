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

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::OnceCell;

use serde::{Deserialize, Serialize};

use crate::ids::{ControllerName, Namespace, Owner, PartitionId};
use crate::ledger::LedgerState;
use crate::ledger::blocked_requests::{BlockedRequests, Preempts, RequestShape, shape_of};
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
            blocked: BlockedRequests::new(policy.overtake_limit),
            no_capacity: BTreeMap::new(),
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
        QueueDecision::Wait(QueueStatus {
            position: self.position,
            reason: reason.with("position", self.position),
            blockers,
            earliest_fit,
        })
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
                let no_capacity = Rc::new(self.no_capacity_for(entry, reasons));
                if !refused {
                    self.no_capacity.insert(shape_of(entry), Rc::clone(&no_capacity));
                }
                Err(QueueObstacle::NoCapacity(no_capacity))
            }
        }
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
            self.blocked_by_own_namespace.clear();
        }
        if cause == WaitCause::NoCapacity {
            // The IPUs that a preempting entry waits for are kept for it, whoever holds them.
            let preempts = self.state.preempts(&entry.id, self.policy, self.now);
            let own_namespace = preempts == Preempts::No && self.is_blocked_by_own_namespace(entry);
            self.blocked.push(entry, own_namespace, preempts);
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

    /// Builds the reason, the blockers and the expected start of a queued `entry`.
    fn explain(
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
                let cause = match self.state.preempts(&barrier.id, self.policy, self.now) {
                    Preempts::Yes => String::from("preempts partitions"),
                    Preempts::No => format!("was overtaken {} times", barrier.overtaken),
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
                none if none.is_empty() => capacity.current.blockers(&entry.spec),
                lost => lost,
            })
            .filter(|blockers| !blockers.is_empty())
            .min_by_key(Vec::len)
            .unwrap_or_default();
        let blockers: Vec<Blocker> = blockers.into_iter().map(|id| self.blocker(id)).collect();
        let mut reason = self.combine_reasons(entry, &no_capacity.reasons);
        // No end of a partition helps: then cordons are the cause.
        if blockers.is_empty() && !NEVER_FITS.contains(&&*reason.code) {
            self.state.append_cordons(&mut reason, self.snapshot, entry);
        }
        (reason, blockers)
    }

    fn blocker(&self, id: PartitionId) -> Blocker {
        let entry = self.state.get(&id);
        let size = entry
            .map(|entry| entry.spec.size)
            .or_else(|| self.snapshot.find(&id).map(|(_, partition)| partition.spec.size));
        Blocker {
            owner: entry.and_then(|entry| entry.owner.clone()),
            size,
            until: entry.and_then(|entry| entry.declared_end(self.now)),
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

fn held_back_reason(entry: &Entry, message: &str) -> Reason {
    Reason::new("HeldBackForEarlier", message).with("size", entry.size())
}

fn describe(entry: &Entry) -> String {
    match &entry.owner {
        Some(owner) => format!("{owner} ({} IPUs)", entry.size()),
        None => format!("{} ({} IPUs)", entry.id, entry.size()),
    }
}
