//! The walk of the queue before it grouped entries: the model that the property test compares with. It is cubic.

mod earliest;
mod overlay;
mod quota;

use ipu_core::{
    ControllerName, ControllersSnapshot, Entry, EntryState, LedgerState, Namespace, Partition, PartitionId,
    PlacedBy, QueuePolicy, Reason, SelectionOrder, ServiceState, Timestamp,
};

use earliest::Horizon;
use overlay::{LOST_PARTITION, Overlay, REFUSED, allows, overlays};
use quota::QuotaUse;

/// A verdict: the public one cannot be built here.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Go {
        controller: ControllerName,
        places: Vec<ipu_core::IpuPlace>,
        placed: PlacedBy,
    },
    Stay(Waiting),
}

#[derive(Debug, PartialEq)]
pub(super) struct Waiting {
    pub(super) position: u32,
    pub(super) reason: Reason,
    pub(super) blockers: Vec<PartitionId>,
    pub(super) earliest_fit: Option<Timestamp>,
}

/// What each controller says.
type Why = Vec<(ControllerName, Reason)>;

/// Why an entry stays, as far as others are concerned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Because {
    /// It will fit once others end: later ones may pass it, within the limit.
    NoRoom,
    /// It cannot be helped by holding others back: a quota, no controller, too large.
    Other,
}

pub(super) struct Walk<'a> {
    state: &'a LedgerState,
    world: &'a ControllersSnapshot,
    rules: &'a QueuePolicy,
    now: Timestamp,
    overlays: Vec<Overlay<'a>>,
    quotas: QuotaUse<'a>,
    /// Those who may not be passed any more.
    barriers: Vec<(&'a Entry, bool)>,
    /// Those ahead who go.
    going: Vec<(&'a Entry, ControllerName)>,
    /// Those ahead who stay for want of room, by how many who go they are passed, and whether partitions of their own
    /// namespace block them.
    staying: Vec<(&'a Entry, u32, bool)>,
    position: u32,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
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
            barriers: Vec::new(),
            going: Vec::new(),
            staying: Vec::new(),
            position: 0,
        }
    }

    /// Those ahead of `entry` whom it passes if it goes.
    pub(super) fn passed_by(&self, entry: &Entry) -> Vec<&'a Entry> {
        let passed = self
            .staying
            .iter()
            .filter(|(other, _, own)| compete((other, *own), entry));
        passed.map(|(other, ..)| *other).collect()
    }

    /// The verdict on the next entry of the line.
    pub(super) fn step(&mut self, entry: &'a Entry) -> Verdict {
        self.position = self.position.saturating_add(1);
        if let Some((controller, partition)) = self.world.find(&entry.id) {
            return self.found(entry, controller, partition);
        }
        if let Some((reason, holders)) = self.quotas.exceeded_by(entry) {
            return self.stay(entry, Because::Other, reason, holders, None);
        }
        if let Some((barrier, _)) = self.barriers.iter().find(|barrier| compete(**barrier, entry)) {
            let reason = held_back(
                entry,
                &format!(
                    "{} was passed {} times and goes first now",
                    named(barrier),
                    barrier.overtaken
                ),
            );
            let blockers = Vec::from([barrier.id.clone()]);
            return self.stay(entry, Because::NoRoom, reason, blockers, None);
        }
        match self.find_room(entry) {
            Ok((index, places)) => {
                self.quotas.add(entry);
                self.pass(entry);
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
                Verdict::Go {
                    controller: overlay.name.clone(),
                    places,
                    placed,
                }
            }
            Err(why) => self.no_room(entry, why),
        }
    }

    /// The verdict on an entry whose partition a controller has already, such as after an old copy of the ledger was
    /// restored: its owner takes it over when he asks. It needs no room, and counts for the quotas from now on, so that
    /// nobody behind uses up what it will be charged.
    fn found(&mut self, entry: &'a Entry, controller: &ControllerName, partition: &Partition) -> Verdict {
        if may_take_over(entry, partition) {
            self.quotas.add(entry);
            return Verdict::Go {
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
        self.stay(entry, Because::Other, reason, Vec::new(), None)
    }

    /// `entry` goes past those who stay. Whoever would be passed too often by those who go before `entry`'s followers
    /// holds the followers back, so that nobody uses up the patience that others of the line need.
    fn pass(&mut self, entry: &Entry) {
        for (other, passes, own) in &mut self.staying {
            if compete((other, *own), entry) {
                *passes += 1;
                if other.overtaken.saturating_add(*passes) == self.rules.overtake_limit {
                    self.barriers.push((other, *own));
                }
            }
        }
    }

    /// Takes room for `entry` at the first controller of the order that has it, or says why each has not.
    fn find_room(&mut self, entry: &'a Entry) -> Result<(usize, Vec<ipu_core::IpuPlace>), Why> {
        let mut order: Vec<usize> = (0..self.overlays.len()).collect();
        match self.rules.order {
            SelectionOrder::Serial => {}
            other if other != SelectionOrder::Tightest && other != SelectionOrder::MostFree => {
                panic!("{other:?}")
            }
            SelectionOrder::Tightest => order.sort_by_key(|i| self.overlays[*i].now.largest_block()),
            _ => {
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

    /// The verdict on an entry that no controller has room for.
    fn no_room(&mut self, entry: &'a Entry, why: Why) -> Verdict {
        // It would fit if those ahead did not go first: then they are the reason.
        let alone = self.overlays.iter().find(|overlay| {
            let refused = |(name, reason): &(ControllerName, Reason)| {
                *name == overlay.name && matches!(&*reason.code, REFUSED | LOST_PARTITION)
            };
            !why.iter().any(refused) && overlay.would_fit_first(entry)
        });
        if let Some(overlay) = alone {
            let ahead: Vec<_> = self
                .going
                .iter()
                .filter(|(_, controller)| *controller == overlay.name)
                .map(|(entry, _)| *entry)
                .collect();
            let names: Vec<_> = ahead.iter().take(3).map(|entry| named(entry)).collect();
            let reason = held_back(
                entry,
                &format!("the room at {} is kept for {}", overlay.name, names.join(", ")),
            );
            let blockers = ahead.iter().map(|entry| entry.id.clone()).collect();
            let earliest = self.earliest(entry);
            return self.stay(entry, Because::NoRoom, reason, blockers, earliest);
        }
        let hopeless = why
            .iter()
            .all(|(_, reason)| matches!(&*reason.code, TOO_LARGE | UNKNOWN_ALLOCATION | UNAVAILABLE));
        let because = if hopeless
            || !self
                .overlays
                .iter()
                .any(|overlay| overlay.can_help(entry, self.rules, self.now))
        {
            Because::Other
        } else {
            Because::NoRoom
        };
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
        let earliest = if because == Because::NoRoom {
            self.earliest(entry)
        } else {
            None
        };
        let reason = self.combined(entry, why);
        self.stay(entry, because, reason, blockers, earliest)
    }

    fn stay(
        &mut self,
        entry: &'a Entry,
        because: Because,
        reason: Reason,
        blockers: Vec<PartitionId>,
        earliest_fit: Option<Timestamp>,
    ) -> Verdict {
        if let EntryState::Waiting {
            refused: Some(refused),
        } = &entry.state
            && let Some(overlay) = self.overlays.iter_mut().find(|o| o.name == refused.controller)
        {
            overlay.refusals.push(entry.clone());
        }
        if because == Because::NoRoom {
            let own = self.is_blocked_by_own(entry);
            self.staying.push((entry, 0, own));
            if entry.overtaken >= self.rules.overtake_limit {
                self.barriers.push((entry, own));
            }
        }
        Verdict::Stay(Waiting {
            position: self.position,
            reason: reason.with("position", self.position),
            blockers,
            earliest_fit,
        })
    }

    fn is_blocked_by_own(&self, entry: &Entry) -> bool {
        let namespace = namespace_of(entry);
        let mut holders = self.state.entries().filter(|holder| {
            let ends = matches!(holder.state, EntryState::Releasing { .. });
            holder.state.holds() && !ends && namespace_of(holder) == namespace
        });
        let open = |holder: &Entry| {
            let mut overlays = self.overlays.iter();
            overlays.any(|overlay| Some(&overlay.name) == holder.controller.as_ref())
        };
        let mut overlays = self.overlays.iter();
        holders.any(open)
            && !overlays.any(|overlay| overlay.fits_after(entry, self.rules, self.now, namespace))
    }

    /// One reason from what the controllers say: the code of the one that is nearest to having room, the sum of the free
    /// IPUs, the largest block of all, and the words of each.
    fn combined(&self, entry: &Entry, why: Why) -> Reason {
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
            return Reason::new(UNAVAILABLE, message).with("size", entry.spec.size.get());
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
            .with("size", entry.spec.size.get())
    }

    /// When `entry` goes at the latest, by what those who hold and those ahead declare.
    fn earliest(&self, entry: &Entry) -> Option<Timestamp> {
        let mut horizon = Horizon::new(self.now);
        for overlay in self.overlays.iter().filter(|overlay| overlay.closed().is_none()) {
            horizon.add_room(&overlay.name, overlay.now.fork());
        }
        for holder in self.state.entries().filter(|holder| holder.state.holds()) {
            if let (Some(controller), Some(end)) = (&holder.controller, holder.until(self.now)) {
                horizon.add_end(end, controller, &holder.id);
            }
        }
        for (ahead, controller) in &self.going {
            if let Some(runtime) = ahead.max_runtime {
                horizon.add_end(self.now.plus(runtime), controller, &ahead.id);
            }
        }
        let ahead: Vec<&Entry> = self.staying.iter().map(|(entry, ..)| *entry).collect();
        horizon.first_fit(&ahead, entry, allows)
    }
}

pub(super) const TOO_LARGE: &str = "TooLarge";
const UNKNOWN_ALLOCATION: &str = "UnknownAllocation";
pub(super) const UNAVAILABLE: &str = "ControllerUnavailable";

/// Whether the owner of `entry` may have `partition`, which a controller has under its id: only if the id follows from the
/// owner and what is there is what he asks for.
pub(super) fn may_take_over(entry: &Entry, partition: &Partition) -> bool {
    let derived = entry
        .owner
        .as_ref()
        .is_some_and(|owner| owner.job.partition_id(entry.instance) == entry.id);
    derived && entry.matches(&partition.spec)
}

fn held_back(entry: &Entry, message: &str) -> Reason {
    Reason::new("HeldBackForEarlier", message).with("size", entry.spec.size.get())
}

fn namespace_of(entry: &Entry) -> Option<&Namespace> {
    entry.owner.as_ref().map(|owner| &owner.job.namespace)
}

/// Whether two entries can want the same room; `own` limits the first one to its namespace.
fn compete((one, own): (&Entry, bool), other: &Entry) -> bool {
    fn meet<T: PartialEq>(one: Option<&T>, other: Option<&T>) -> bool {
        one.zip(other).is_none_or(|(one, other)| one == other)
    }
    meet(one.spec.allocation.as_ref(), other.spec.allocation.as_ref())
        && meet(one.pin.controller.as_ref(), other.pin.controller.as_ref())
        && (!own || namespace_of(one) == namespace_of(other))
}

fn named(entry: &Entry) -> String {
    match &entry.owner {
        Some(owner) => format!("{owner} ({} IPUs)", entry.spec.size.get()),
        None => format!("{} ({} IPUs)", entry.id, entry.spec.size.get()),
    }
}
