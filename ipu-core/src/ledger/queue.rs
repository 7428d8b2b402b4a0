//! The waiting line: who may go now, and what everybody else is told.
//!
//! One walk decides everything. The line is gone through in order of priority and ticket on a copy of the room: an entry
//! that fits takes its place hypothetically, so a later one never gets what an earlier one could use now. Whoever does
//! not fit is passed over by later ones at most [`QueuePolicy::overtake_limit`] times, and then holds back everybody
//! behind it who competes for the same room; if partitions of its own namespace block it, only those of that namespace.
//! Whoever goes while room is kept for somebody ahead is placed by the walk, so
//! that the controller does not put him into that room.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::OnceCell;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{ControllerName, Namespace, Owner, PartitionId};
use crate::ledger::LedgerState;
use crate::ledger::blocked_requests::{BlockedRequests, RequestShape, kind_of};
use crate::ledger::capacity::{ControllersSnapshot, SelectionOrder, ServiceState};
use crate::ledger::capacity_snapshot::{CapacitySnapshot, LOST_PARTITION, REFUSED, allows, overlays};
use crate::ledger::entry::{Entry, EntryState, PlacedBy};
use crate::ledger::expected_start::Timeline;
use crate::ledger::namespaces::NamespaceRules;
use crate::ledger::quota::{Excess, QuotaUse, Quotas};
use crate::partition::{IpuPlace, Partition};
use crate::reason::Reason;
use crate::units::{IpuCount, Timestamp};

/// What the line goes by.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuePolicy {
    /// How often later requests may go first before an entry holds them back. 16 lets small jobs use the gaps while a big
    /// one waits, and bounds its wait by 16 admissions plus the time that those ahead run.
    pub overtake_limit: u32,
    /// Most entries in the line; what comes after is refused. 10,000 entries are about 5 MB of records.
    pub length_limit: usize,
    /// After this time a controller that refused is asked again even if it shows no change.
    pub retry_rejected_after: Duration,
    /// In which order controllers are tried.
    pub order: SelectionOrder,
    /// Quotas in force.
    pub quotas: Quotas,
    /// Limits of namespaces in force.
    pub namespaces: NamespaceRules,
}

impl Default for QueuePolicy {
    fn default() -> Self {
        Self {
            overtake_limit: 16,
            length_limit: 10_000,
            retry_rejected_after: Duration::from_secs(30),
            order: SelectionOrder::Serial,
            quotas: Quotas::new(),
            namespaces: NamespaceRules::default(),
        }
    }
}

/// Something that a waiting entry waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Blocker {
    /// Which partition, or which request further ahead in the line.
    pub id: PartitionId,
    /// Whose; none for a partition that the ledger does not know or nobody owns.
    pub owner: Option<Owner>,
    /// How large; none if that is not known.
    pub size: Option<IpuCount>,
    /// When it ends by its own word.
    pub until: Option<Timestamp>,
}

/// What somebody in the line is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct QueueStatus {
    /// The place in the line, from 1.
    pub position: u32,
    /// Why it does not go now.
    pub reason: Reason,
    /// What would have to end.
    pub blockers: Vec<Blocker>,
    /// When it goes at the latest, if everybody ends when they said and nobody of higher priority comes. None if that
    /// does not follow from what is declared.
    pub earliest_fit: Option<Timestamp>,
}

/// What is left at one controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct FreeCapacity {
    /// Free IPUs.
    pub free: u32,
    /// The size of the largest partition that fits.
    pub largest_block: u32,
    /// How many partitions of the size asked for fit side by side.
    #[serde(rename = "fits")]
    pub fit_count: u32,
}

/// What the walk says of one entry of the line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueDecision {
    /// It may go now.
    Start {
        /// To which controller.
        controller: ControllerName,
        /// On which IPUs, as far as known; what is passed to the controller if `placed` says so.
        places: Vec<IpuPlace>,
        /// Who chooses the IPUs.
        placed: PlacedBy,
    },
    /// It stays.
    Wait(QueueStatus),
}

/// What each controller says.
type ReasonsByController = Vec<(ControllerName, Reason)>;

/// Why an entry stays, as far as others are concerned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitCause {
    /// It will fit once others end: later ones may pass it, within the limit.
    NoCapacity,
    /// It cannot be helped by holding others back: a quota, no controller, too large.
    Other,
}

/// Why an entry stays, before that is put into words.
enum QueueObstacle<'a> {
    /// Another partition has its id at this controller.
    Foreign(&'a ControllerName),
    OverQuota(Excess<'a>),
    /// This entry was passed too often and goes first.
    HeldBackBy(&'a Entry),
    NoCapacity(Rc<NoCapacity>),
}

/// Why entries of one kind do not fit, as long as the capacity does not change.
struct NoCapacity {
    why: ReasonsByController,
    /// The overlay whose room is kept for those ahead.
    kept_at: Option<usize>,
    because: WaitCause,
    /// The reason without the position, and the blockers: made when they are first needed.
    words: OnceCell<(Reason, Vec<Blocker>)>,
}

/// A walk of the queue. Each entry is either passed over, which decides on it, or explained too. An explanation costs
/// much more than a decision, so that only the entries that are reported get one.
pub(crate) struct QueueScan<'a> {
    state: &'a LedgerState,
    world: &'a ControllersSnapshot,
    rules: &'a QueuePolicy,
    now: Timestamp,
    overlays: Vec<CapacitySnapshot<'a>>,
    quotas: QuotaUse<'a>,
    /// Those ahead who go.
    going: Vec<(&'a Entry, ControllerName)>,
    /// Those ahead who stay for want of room.
    staying: BlockedRequests<'a>,
    /// The kinds of entries that do not fit, since the capacity last changed.
    misfits: BTreeMap<RequestShape<'a>, Rc<NoCapacity>>,
    /// Whether partitions of the namespace block its entries of a kind, since the capacity last changed.
    own: BTreeMap<(RequestShape<'a>, &'a Namespace), bool>,
    /// The simulated future with all of `staying`, since the capacity last changed; none before it is first needed.
    timeline: Option<Timeline<'a>>,
    position: u32,
}

impl<'a> QueueScan<'a> {
    pub(crate) fn new(
        state: &'a LedgerState,
        world: &'a ControllersSnapshot,
        rules: &'a QueuePolicy,
        now: Timestamp,
    ) -> Self {
        Self {
            state,
            world,
            rules,
            now,
            overlays: overlays(state, world),
            quotas: QuotaUse::new(&rules.quotas, state.entries()),
            going: Vec::new(),
            staying: BlockedRequests::new(rules.overtake_limit),
            misfits: BTreeMap::new(),
            own: BTreeMap::new(),
            timeline: None,
            position: 0,
        }
    }

    /// Those ahead of `entry` whom it passes if it goes.
    pub(crate) fn passed_by(&self, entry: &Entry) -> impl Iterator<Item = &'a Entry> {
        self.staying.passed_by(entry)
    }

    /// Decides on the next entry of the queue, without an explanation.
    pub(crate) fn pass_over(&mut self, entry: &'a Entry) {
        self.position = self.position.saturating_add(1);
        if let Err(obstacle) = self.decide(entry) {
            self.record(entry, &obstacle);
        }
    }

    /// The verdict on the next entry of the line.
    pub(crate) fn step(&mut self, entry: &'a Entry) -> QueueDecision {
        self.position = self.position.saturating_add(1);
        let obstacle = match self.decide(entry) {
            Ok(go) => return go,
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

    /// Decides on `entry`, and takes room for it if it goes.
    fn decide(&mut self, entry: &'a Entry) -> Result<QueueDecision, QueueObstacle<'a>> {
        if let Some((controller, partition)) = self.world.find(&entry.id) {
            return self.found(entry, controller, partition);
        }
        if let Some(excess) = self.quotas.exceeded_by(entry) {
            return Err(QueueObstacle::OverQuota(excess));
        }
        if let Some(barrier) = self.staying.barrier_for(entry) {
            return Err(QueueObstacle::HeldBackBy(barrier));
        }
        // An entry that a controller refused stays for a reason that others of its kind do not have.
        let refused = self
            .overlays
            .iter()
            .any(|overlay| overlay.own_refusal(entry, self.rules, self.now).is_some());
        if !refused && let Some(misfit) = self.misfits.get(&kind_of(entry)) {
            return Err(QueueObstacle::NoCapacity(Rc::clone(misfit)));
        }
        match self.find_room(entry) {
            Ok((index, places)) => {
                self.quotas.add(entry);
                self.staying.pass(entry);
                self.misfits.clear();
                self.own.clear();
                self.timeline = None;
                let overlay = &mut self.overlays[index];
                overlay.going.push(entry.id.clone());
                self.going.push((entry, overlay.name.clone()));
                // Wherever the ledger can choose it does, so that intent and IPUs are one write: a controller that
                // restarts without its partitions then gives no IPUs away that are in use.
                let placed = if places.is_empty() {
                    PlacedBy::Controller
                } else {
                    PlacedBy::Ledger
                };
                Ok(QueueDecision::Start {
                    controller: overlay.name.clone(),
                    places,
                    placed,
                })
            }
            Err(why) => {
                let misfit = Rc::new(self.no_room(entry, why));
                if !refused {
                    self.misfits.insert(kind_of(entry), Rc::clone(&misfit));
                }
                Err(QueueObstacle::NoCapacity(misfit))
            }
        }
    }

    /// The verdict on an entry whose partition a controller has already, such as after an old copy of the ledger was
    /// restored: its owner takes it over when he asks. It needs no room, and counts for the quotas from now on, so that
    /// nobody behind uses up what it will be charged.
    fn found(
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

    /// Takes room for `entry` at the first controller of the order that has it, or says why each has not.
    fn find_room(&mut self, entry: &'a Entry) -> Result<(usize, Vec<IpuPlace>), ReasonsByController> {
        let mut order: Vec<usize> = (0..self.overlays.len()).collect();
        match self.rules.order {
            SelectionOrder::Serial => {}
            SelectionOrder::Tightest => order.sort_by_key(|i| self.overlays[*i].now.largest_block()),
            SelectionOrder::MostFree => {
                order.sort_by_key(|i| core::cmp::Reverse(self.overlays[*i].now.free()));
            }
        }
        let mut why = Vec::new();
        for index in order {
            let overlay = &mut self.overlays[index];
            if !allows(entry, &overlay.name) {
                continue;
            }
            let refusal = overlay.closed();
            if let Some(reason) = refusal.or_else(|| overlay.refusal_of(entry, self.rules, self.now)) {
                why.push((overlay.name.clone(), reason));
                continue;
            }
            match overlay.now.reserve(&entry.id, &entry.spec, &entry.pin.ipus) {
                Ok(places) => return Ok((index, places)),
                Err(reason) => why.push((overlay.name.clone(), reason)),
            }
        }
        for view in &self.world.controllers {
            if let (Err(reason), ServiceState::Open) = (&view.listing, view.service)
                && allows(entry, &view.name)
            {
                why.push((view.name.clone(), reason.clone()));
            }
        }
        Err(why)
    }

    /// Decides why `entry`, which no controller has room for, stays.
    fn no_room(&self, entry: &Entry, why: ReasonsByController) -> NoCapacity {
        // It would fit if those ahead did not go first: then they are the reason.
        let kept_at = self.overlays.iter().position(|overlay| {
            let refused = |(name, reason): &(ControllerName, Reason)| {
                *name == overlay.name && matches!(&*reason.code, REFUSED | LOST_PARTITION)
            };
            !why.iter().any(refused) && overlay.would_fit_first(entry)
        });
        let hopeless = || {
            why.iter()
                .all(|(_, reason)| matches!(&*reason.code, TOO_LARGE | UNKNOWN_ALLOCATION | UNAVAILABLE))
        };
        let can_help = |overlay: &CapacitySnapshot<'_>| overlay.can_help(entry, self.rules, self.now);
        let because = if kept_at.is_some() || !hopeless() && self.overlays.iter().any(can_help) {
            WaitCause::NoCapacity
        } else {
            WaitCause::Other
        };
        NoCapacity {
            why,
            kept_at,
            because,
            words: OnceCell::new(),
        }
    }

    /// Records that `entry` stays.
    fn record(&mut self, entry: &'a Entry, obstacle: &QueueObstacle<'a>) {
        let because = match obstacle {
            QueueObstacle::Foreign(_) | QueueObstacle::OverQuota(_) => WaitCause::Other,
            QueueObstacle::HeldBackBy(_) => WaitCause::NoCapacity,
            QueueObstacle::NoCapacity(misfit) => misfit.because,
        };
        if let EntryState::Waiting {
            refused: Some(refused),
        } = &entry.state
            && let Some(overlay) = self.overlays.iter_mut().find(|o| o.name == refused.controller)
            && overlay.add_refusal(entry, self.rules, self.now)
        {
            self.misfits.clear();
        }
        if because == WaitCause::NoCapacity {
            let own = self.is_blocked_by_own(entry);
            self.staying.push(entry, own);
            if let Some(timeline) = &mut self.timeline {
                timeline.push(entry);
            }
        }
    }

    /// Returns whether partitions of its own namespace have to end before `entry` fits anywhere.
    fn is_blocked_by_own(&mut self, entry: &'a Entry) -> bool {
        let Some(namespace) = entry.owner.as_ref().map(|owner| &owner.job.namespace) else {
            return false;
        };
        let mut overlays = self.overlays.iter();
        if !overlays.any(|overlay| overlay.has_holder_of(namespace)) {
            return false;
        }
        let compute = || {
            let mut overlays = self.overlays.iter();
            !overlays.any(|overlay| overlay.can_help_without(namespace, entry, self.rules, self.now))
        };
        *self
            .own
            .entry((kind_of(entry), namespace))
            .or_insert_with(compute)
    }

    /// Puts into words why `entry` stays, with its blockers and its expected start.
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
                let message = format!(
                    "{} was passed {} times and goes first now",
                    named(barrier),
                    barrier.overtaken
                );
                let blockers = Vec::from([self.blocker(barrier.id.clone())]);
                (held_back(entry, &message), blockers, None)
            }
            QueueObstacle::NoCapacity(misfit) => {
                let words = misfit.words.get_or_init(|| self.explain_misfit(entry, misfit));
                let (reason, blockers) = words.clone();
                let earliest = match misfit.because {
                    WaitCause::NoCapacity => self.earliest(entry),
                    WaitCause::Other => None,
                };
                (reason, blockers, earliest)
            }
        }
    }

    fn explain_misfit(&self, entry: &Entry, misfit: &NoCapacity) -> (Reason, Vec<Blocker>) {
        if let Some(overlay) = misfit.kept_at.map(|index| &self.overlays[index]) {
            let ahead: Vec<_> = self
                .going
                .iter()
                .filter(|(_, controller)| *controller == overlay.name)
                .map(|(entry, _)| *entry)
                .collect();
            let names: Vec<_> = ahead.iter().take(3).map(|entry| named(entry)).collect();
            let message = format!("the room at {} is kept for {}", overlay.name, names.join(", "));
            let blockers = ahead.iter().map(|entry| self.blocker(entry.id.clone()));
            return (held_back(entry, &message), blockers.collect());
        }
        let blockers = self
            .overlays
            .iter()
            .filter(|overlay| allows(entry, &overlay.name))
            .map(|overlay| match overlay.closed_by() {
                none if none.is_empty() => overlay.now.blockers(&entry.spec),
                lost => lost,
            })
            .filter(|blockers| !blockers.is_empty())
            .min_by_key(Vec::len)
            .unwrap_or_default();
        let blockers = blockers.into_iter().map(|id| self.blocker(id)).collect();
        (self.combined(entry, &misfit.why), blockers)
    }

    fn blocker(&self, id: PartitionId) -> Blocker {
        let entry = self.state.get(&id);
        let size = entry
            .map(|entry| entry.spec.size)
            .or_else(|| self.world.find(&id).map(|(_, partition)| partition.spec.size));
        Blocker {
            owner: entry.and_then(|entry| entry.owner.clone()),
            size,
            until: entry.and_then(|entry| entry.until(self.now)),
            id,
        }
    }

    /// One reason from what the controllers say: the code of the one that is nearest to having room, the sum of the free
    /// IPUs, the largest block of all, and the words of each.
    fn combined(&self, entry: &Entry, why: &ReasonsByController) -> Reason {
        let open = || {
            self.overlays
                .iter()
                .filter(|overlay| allows(entry, &overlay.name))
        };
        let free = open().fold(0_u64, |sum, overlay| sum + u64::from(overlay.now.free()));
        let largest = open()
            .map(|overlay| overlay.now.largest_block())
            .max()
            .unwrap_or(0);
        // What others can end comes before what nobody can.
        let nearest = why
            .iter()
            .min_by_key(|(name, reason)| {
                let rank = match &*reason.code {
                    TOO_LARGE | UNKNOWN_ALLOCATION => 2,
                    UNAVAILABLE => 1,
                    _ => 0,
                };
                let block = open()
                    .find(|o| o.name == *name)
                    .map_or(0, |o| o.now.largest_block());
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
        if why.len() > 1 {
            let all: Vec<_> = why
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

    /// When `entry` goes at the latest, by what those who hold and those ahead declare.
    fn earliest(&mut self, entry: &Entry) -> Option<Timestamp> {
        if self.timeline.is_none() {
            self.timeline = Some(self.timeline());
        }
        self.timeline.as_mut()?.first_fit(entry)
    }

    fn timeline(&self) -> Timeline<'a> {
        let mut rooms = Vec::new();
        for overlay in self.overlays.iter().filter(|overlay| overlay.closed().is_none()) {
            rooms.push((overlay.name.clone(), overlay.now.fork()));
        }
        let held = self.state.entries().filter(|holder| holder.state.holds());
        let held = held.filter_map(|holder| {
            let end = holder.until(self.now)?;
            Some((end, holder.controller.clone()?, holder.id.clone()))
        });
        let going = self.going.iter().filter_map(|(ahead, controller)| {
            let end = self.now.plus(ahead.max_runtime?);
            Some((end, controller.clone(), ahead.id.clone()))
        });
        let mut timeline = Timeline::new(self.now, rooms, held.chain(going));
        for ahead in self.staying.entries() {
            timeline.push(ahead);
        }
        timeline
    }
}

pub(crate) const TOO_LARGE: &str = "TooLarge";
const UNKNOWN_ALLOCATION: &str = "UnknownAllocation";
pub(crate) const UNAVAILABLE: &str = "ControllerUnavailable";

/// Whether the owner of `entry` may have `partition`, which a controller has under its id: only if the id follows from the
/// owner and what is there is what he asks for.
pub(crate) fn may_take_over(entry: &Entry, partition: &Partition) -> bool {
    let derived = entry
        .owner
        .as_ref()
        .is_some_and(|owner| owner.job.partition_id(entry.instance) == entry.id);
    derived && entry.matches(&partition.spec)
}

fn held_back(entry: &Entry, message: &str) -> Reason {
    Reason::new("HeldBackForEarlier", message).with("size", entry.size())
}

fn named(entry: &Entry) -> String {
    match &entry.owner {
        Some(owner) => format!("{owner} ({} IPUs)", entry.size()),
        None => format!("{} ({} IPUs)", entry.id, entry.size()),
    }
}
