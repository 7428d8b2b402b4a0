//! A reference model of the queue evaluation for the property test: it does not group entries. Its cost is
//! cubic.

mod earliest;
mod overlay;
mod quota;

use ipu_core::{
    ControllerName, ControllersSnapshot, Entry, EntryState, LedgerState, Namespace, Partition, PartitionId,
    PlacedBy, QueuePolicy, Reason, SelectionOrder, ServiceState, Timestamp,
};

use earliest::Horizon;
use overlay::{CONTROLLER_REJECTED, LOST_PARTITION, Overlay, allows, overlays};
use quota::QuotaUse;

/// A queue decision; the public type cannot be constructed here.
#[derive(Debug, PartialEq)]
pub(super) enum Decision {
    Start {
        controller: ControllerName,
        places: Vec<ipu_core::IpuPlace>,
        placed: PlacedBy,
    },
    Wait(Waiting),
}

#[derive(Debug, PartialEq)]
pub(super) struct Waiting {
    pub(super) position: u32,
    pub(super) reason: Reason,
    pub(super) blockers: Vec<PartitionId>,
    pub(super) earliest_fit: Option<Timestamp>,
}

/// The reason of each controller.
type Reasons = Vec<(ControllerName, Reason)>;

/// The cause for which an entry waits, as far as it affects other entries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitCause {
    /// It fits once holders end; later entries may overtake it within the limit.
    NoCapacity,
    /// Holding back others does not help: a quota, no controller, too large.
    Other,
}

pub(super) struct QueueModel<'a> {
    state: &'a LedgerState,
    snapshot: &'a ControllersSnapshot,
    policy: &'a QueuePolicy,
    now: Timestamp,
    overlays: Vec<Overlay<'a>>,
    quotas: QuotaUse<'a>,
    /// Entries that must not be overtaken again, and whether only their own namespace is held back.
    barriers: Vec<(&'a Entry, bool)>,
    /// Earlier entries that start, and their controllers.
    starting: Vec<(&'a Entry, ControllerName)>,
    /// Earlier entries that lack capacity, the number of starting entries that overtake them, and whether
    /// partitions of their own namespace block them.
    waiting: Vec<(&'a Entry, u32, bool)>,
    position: u32,
}

impl<'a> QueueModel<'a> {
    pub(super) fn new(
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
            overlays: overlays(state, snapshot),
            quotas: QuotaUse::new(&policy.quotas, state.entries()),
            barriers: Vec::new(),
            starting: Vec::new(),
            waiting: Vec::new(),
            position: 0,
        }
    }

    /// Returns the earlier entries that `entry` overtakes if it starts.
    pub(super) fn overtaken_by(&self, entry: &Entry) -> Vec<&'a Entry> {
        let overtaken = self
            .waiting
            .iter()
            .filter(|(other, _, own_namespace)| compete((other, *own_namespace), entry));
        overtaken.map(|(other, ..)| *other).collect()
    }

    /// Returns the decision on the next entry of the queue.
    pub(super) fn decide(&mut self, entry: &'a Entry) -> Decision {
        self.position = self.position.saturating_add(1);
        if let Some((controller, partition)) = self.snapshot.find(&entry.id) {
            return self.decide_existing(entry, controller, partition);
        }
        if let Some((reason, holders)) = self.quotas.exceeded_by(entry) {
            return self.wait(entry, WaitCause::Other, reason, holders, None);
        }
        if let Some((barrier, _)) = self.barriers.iter().find(|barrier| compete(**barrier, entry)) {
            let reason = held_back_reason(
                entry,
                &format!(
                    "{} was overtaken {} times and starts first now",
                    describe(barrier),
                    barrier.overtaken
                ),
            );
            let blockers = Vec::from([barrier.id.clone()]);
            return self.wait(entry, WaitCause::NoCapacity, reason, blockers, None);
        }
        match self.find_capacity(entry) {
            Ok((index, places)) => {
                self.quotas.add(entry);
                self.count_overtakes(entry);
                let overlay = &mut self.overlays[index];
                overlay.starting.push(entry.id.clone());
                self.starting.push((entry, overlay.name.clone()));
                // The ledger chooses the IPUs where it can, so that one write records the intent and its
                // IPUs. A controller that restarts without its partitions then reassigns no IPUs in use.
                let placed = if places.is_empty() {
                    PlacedBy::Controller
                } else {
                    PlacedBy::Ledger
                };
                Decision::Start {
                    controller: overlay.name.clone(),
                    places,
                    placed,
                }
            }
            Err(reasons) => self.wait_without_capacity(entry, reasons),
        }
    }

    /// Returns the decision on an entry whose partition already exists, for example after an old ledger was
    /// restored. Its owner adopts the partition with the next request. The entry needs no capacity and counts
    /// against the quotas from now on, so that later entries cannot use up its share.
    fn decide_existing(
        &mut self,
        entry: &'a Entry,
        controller: &ControllerName,
        partition: &Partition,
    ) -> Decision {
        if may_adopt(entry, partition) {
            self.quotas.add(entry);
            return Decision::Start {
                controller: controller.clone(),
                places: partition.ipus.clone(),
                placed: PlacedBy::Controller,
            };
        }
        let reason = Reason::new(
            "ForeignPartition",
            format!(
                "controller {controller} has another partition under the id {}",
                entry.id
            ),
        )
        .with("size", entry.spec.size.get());
        self.wait(entry, WaitCause::Other, reason, Vec::new(), None)
    }

    /// Counts that `entry` overtakes the waiting entries. An entry that reaches the overtake limit becomes a
    /// barrier for the followers of `entry`.
    fn count_overtakes(&mut self, entry: &Entry) {
        for (other, overtakes, own_namespace) in &mut self.waiting {
            if compete((other, *own_namespace), entry) {
                *overtakes += 1;
                if other.overtaken.saturating_add(*overtakes) == self.policy.overtake_limit {
                    self.barriers.push((other, *own_namespace));
                }
            }
        }
    }

    /// Reserves capacity for `entry` at the first controller in order that has it; otherwise returns each
    /// reason.
    fn find_capacity(&mut self, entry: &'a Entry) -> Result<(usize, Vec<ipu_core::IpuPlace>), Reasons> {
        let mut order: Vec<usize> = (0..self.overlays.len()).collect();
        match self.policy.order {
            SelectionOrder::Serial => {}
            other if other != SelectionOrder::Tightest && other != SelectionOrder::MostFree => {
                panic!("{other:?}")
            }
            SelectionOrder::Tightest => order.sort_by_key(|i| self.overlays[*i].now.largest_block()),
            _ => {
                order.sort_by_key(|i| core::cmp::Reverse(self.overlays[*i].now.free()));
            }
        }
        let mut reasons = Vec::new();
        for index in order {
            let overlay = &mut self.overlays[index];
            if !allows(entry, &overlay.name) {
                continue;
            }
            let rejection = overlay.closed_reason();
            if let Some(reason) = rejection.or_else(|| overlay.rejection_reason(entry, self.policy, self.now))
            {
                reasons.push((overlay.name.clone(), reason));
                continue;
            }
            match overlay.now.reserve(&entry.id, &entry.spec, &entry.pin.ipus) {
                Ok(places) => {
                    let controller_chooses = overlay.now.is_delegated()
                        && entry.pin.ipus.is_empty()
                        && (overlay.starting.is_empty() || overlay.now.refuses_ipus())
                        && !overlay.keeps_ipus;
                    return Ok((index, if controller_chooses { Vec::new() } else { places }));
                }
                Err(reason) => reasons.push((overlay.name.clone(), reason)),
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

    /// Returns the decision on an entry that fits at no controller.
    fn wait_without_capacity(&mut self, entry: &'a Entry, reasons: Reasons) -> Decision {
        // The entry would fit without the earlier ones that start: they are the reason.
        let fits_without_earlier = self.overlays.iter().find(|overlay| {
            let rejected = |(name, reason): &(ControllerName, Reason)| {
                *name == overlay.name && matches!(&*reason.code, CONTROLLER_REJECTED | LOST_PARTITION)
            };
            !reasons.iter().any(rejected) && overlay.would_fit_first(entry)
        });
        if let Some(overlay) = fits_without_earlier {
            let ahead: Vec<_> = self
                .starting
                .iter()
                .filter(|(_, controller)| *controller == overlay.name)
                .map(|(entry, _)| *entry)
                .collect();
            let names: Vec<_> = ahead.iter().take(3).map(|entry| describe(entry)).collect();
            let reason = held_back_reason(
                entry,
                &format!(
                    "the capacity at {} is kept for {}",
                    overlay.name,
                    names.join(", ")
                ),
            );
            let blockers = ahead.iter().map(|entry| entry.id.clone()).collect();
            let earliest = self.earliest(entry);
            return self.wait(entry, WaitCause::NoCapacity, reason, blockers, earliest);
        }
        let is_permanent = reasons
            .iter()
            .all(|(_, reason)| matches!(&*reason.code, TOO_LARGE | UNKNOWN_ALLOCATION | UNAVAILABLE));
        let cause = if is_permanent
            || !self
                .overlays
                .iter()
                .any(|overlay| overlay.fits_after_all_end(entry, self.policy, self.now))
        {
            WaitCause::Other
        } else {
            WaitCause::NoCapacity
        };
        let blockers = self
            .overlays
            .iter()
            .filter(|overlay| allows(entry, &overlay.name))
            .map(|overlay| match overlay.closed_by() {
                none if none.is_empty() => overlay.now.blockers_on(&entry.spec, &entry.pin.ipus),
                unlisted => unlisted,
            })
            .filter(|blockers| !blockers.is_empty())
            .min_by_key(Vec::len)
            .unwrap_or_default();
        let earliest = if cause == WaitCause::NoCapacity {
            self.earliest(entry)
        } else {
            None
        };
        let reason = self.combined(entry, reasons);
        self.wait(entry, cause, reason, blockers, earliest)
    }

    fn wait(
        &mut self,
        entry: &'a Entry,
        cause: WaitCause,
        reason: Reason,
        blockers: Vec<PartitionId>,
        earliest_fit: Option<Timestamp>,
    ) -> Decision {
        if let EntryState::Waiting {
            refused: Some(rejected),
        } = &entry.state
            && let Some(overlay) = self.overlays.iter_mut().find(|o| o.name == rejected.controller)
        {
            overlay.rejected_entries.push(entry.clone());
        }
        if cause == WaitCause::NoCapacity {
            let own_namespace = self.is_blocked_by_own(entry);
            self.waiting.push((entry, 0, own_namespace));
            if entry.overtaken >= self.policy.overtake_limit {
                self.barriers.push((entry, own_namespace));
            }
        }
        Decision::Wait(Waiting {
            position: self.position,
            reason: reason.with("position", self.position),
            blockers,
            earliest_fit,
        })
    }

    fn is_blocked_by_own(&self, entry: &Entry) -> bool {
        let namespace = namespace_of(entry);
        let mut holders = self.state.entries().filter(|holder| {
            let releasing = matches!(holder.state, EntryState::Releasing { .. });
            holder.state.holds() && !releasing && namespace_of(holder) == namespace
        });
        let is_at_open_controller = |holder: &Entry| {
            let mut overlays = self.overlays.iter();
            overlays.any(|overlay| Some(&overlay.name) == holder.controller.as_ref())
        };
        let mut overlays = self.overlays.iter();
        holders.any(is_at_open_controller)
            && !overlays.any(|overlay| overlay.fits_after(entry, self.policy, self.now, namespace))
    }

    /// Combines the reasons of the controllers: the code of the one closest to fitting, the sum of the free
    /// IPUs, the largest block of all, and each message.
    fn combined(&self, entry: &Entry, reasons: Reasons) -> Reason {
        let allowed = || {
            self.overlays
                .iter()
                .filter(|overlay| allows(entry, &overlay.name))
        };
        let free = allowed().fold(0_u64, |sum, overlay| sum + u64::from(overlay.now.free()));
        let largest = allowed()
            .map(|overlay| overlay.now.largest_block())
            .max()
            .unwrap_or(0);
        // Temporary conditions come before permanent ones.
        let nearest = reasons
            .iter()
            .min_by_key(|(name, reason)| {
                let rank = match &*reason.code {
                    TOO_LARGE | UNKNOWN_ALLOCATION => 2,
                    UNAVAILABLE => 1,
                    _ => 0,
                };
                let block = allowed()
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
            return Reason::new(UNAVAILABLE, message).with("size", entry.spec.size.get());
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
            .with("size", entry.spec.size.get())
    }

    /// Returns the latest start of `entry` according to the declared run times of holders and earlier
    /// entries.
    fn earliest(&self, entry: &Entry) -> Option<Timestamp> {
        let mut horizon = Horizon::new(self.now);
        for overlay in self
            .overlays
            .iter()
            .filter(|overlay| overlay.closed_reason().is_none())
        {
            horizon.add_capacity(&overlay.name, overlay.now.fork());
        }
        for holder in self.state.entries().filter(|holder| holder.state.holds()) {
            if let (Some(controller), Some(end)) = (&holder.controller, holder.declared_end(self.now)) {
                horizon.add_end(end, controller, &holder.id);
            }
        }
        for (ahead, controller) in &self.starting {
            if let Some(runtime) = ahead.max_runtime {
                horizon.add_end(self.now.plus(runtime), controller, &ahead.id);
            }
        }
        let ahead: Vec<&Entry> = self.waiting.iter().map(|(entry, ..)| *entry).collect();
        horizon.first_fit(&ahead, entry, allows)
    }
}

pub(super) const TOO_LARGE: &str = "TooLarge";
const UNKNOWN_ALLOCATION: &str = "UnknownAllocation";
pub(super) const UNAVAILABLE: &str = "ControllerUnavailable";

/// Returns whether the owner of `entry` may adopt `partition`, which a controller has under its id: only if
/// the id is derived from the owner and the partition matches the request.
pub(super) fn may_adopt(entry: &Entry, partition: &Partition) -> bool {
    let derived = entry
        .owner
        .as_ref()
        .is_some_and(|owner| owner.job.partition_id(entry.instance) == entry.id);
    derived && entry.matches(&partition.spec)
}

fn held_back_reason(entry: &Entry, message: &str) -> Reason {
    Reason::new("HeldBackForEarlier", message).with("size", entry.spec.size.get())
}

fn namespace_of(entry: &Entry) -> Option<&Namespace> {
    entry.owner.as_ref().map(|owner| &owner.job.namespace)
}

/// Returns whether two entries compete for the same capacity; `own_namespace` limits the first one to its
/// namespace.
fn compete((first, own_namespace): (&Entry, bool), other: &Entry) -> bool {
    fn meet<T: PartialEq>(first: Option<&T>, other: Option<&T>) -> bool {
        first.zip(other).is_none_or(|(first, other)| first == other)
    }
    meet(first.spec.allocation.as_ref(), other.spec.allocation.as_ref())
        && meet(first.pin.controller.as_ref(), other.pin.controller.as_ref())
        && (!own_namespace || namespace_of(first) == namespace_of(other))
}

fn describe(entry: &Entry) -> String {
    match &entry.owner {
        Some(owner) => format!("{owner} ({} IPUs)", entry.spec.size.get()),
        None => format!("{} ({} IPUs)", entry.id, entry.spec.size.get()),
    }
}
