//! The expected start of queued entries, by the run times that owners declare.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::ids::{ControllerName, PartitionId};
use crate::ledger::blocked_requests::{RequestShape, kind_of};
use crate::ledger::capacity::Capacity;
use crate::ledger::capacity_snapshot::allows;
use crate::ledger::entry::Entry;
use crate::units::Timestamp;

/// How many ends are simulated. Each costs a placement per kind of entry; beyond 64 ends the result is a guess.
const MAX_ENDS: usize = 64;

/// The simulated future of all controllers: one moment per declared end, at which queued entries start in order wherever
/// they fit. An entry without a declared run time never ends.
///
/// Entries of one kind start in the order of the queue, because capacity only shrinks within a moment. So a moment needs
/// one number per kind, not one per entry, and an entry that is added at the end of the queue changes nothing before the
/// moment at which it starts.
pub(crate) struct Timeline<'a> {
    /// The entries of each kind in the order of the queue, with their positions in it.
    queues: Vec<Vec<(usize, &'a Entry)>>,
    /// Where each kind is in `queues`.
    kinds: BTreeMap<RequestShape<'a>, usize>,
    count: usize,
    /// From now on, as far as simulated; nothing starts at the first one.
    moments: Vec<CapacityAt>,
}

/// The controllers right after an end.
struct CapacityAt {
    time: Timestamp,
    rooms: Vec<(ControllerName, Box<dyn Capacity>)>,
    /// The next ends, at most [`MAX_ENDS`].
    ends: BTreeSet<(Timestamp, ControllerName, PartitionId)>,
    /// How many entries of each kind have started; 0 for kinds that came later.
    started: Vec<usize>,
}

impl<'a> Timeline<'a> {
    /// A timeline from `now` on, without queued entries.
    pub(crate) fn new(
        now: Timestamp,
        rooms: Vec<(ControllerName, Box<dyn Capacity>)>,
        ends: impl Iterator<Item = (Timestamp, ControllerName, PartitionId)>,
    ) -> Self {
        let mut first = CapacityAt {
            time: now,
            rooms,
            ends: BTreeSet::new(),
            started: Vec::new(),
        };
        ends.for_each(|end| first.add_end(end));
        Self {
            queues: Vec::new(),
            kinds: BTreeMap::new(),
            count: 0,
            moments: Vec::from([first]),
        }
    }

    /// Adds `entry` at the end of the queue.
    pub(crate) fn push(&mut self, entry: &'a Entry) {
        let kind = *self.kinds.entry(kind_of(entry)).or_insert(self.queues.len());
        if kind == self.queues.len() {
            self.queues.push(Vec::new());
        }
        let ahead = self.queues[kind].len();
        let mut later = self.moments.iter_mut().skip(1);
        let starts = later.position(|moment| moment.started(kind) == ahead && moment.start(entry));
        self.queues[kind].push((self.count, entry));
        self.count += 1;
        if let Some(index) = starts {
            self.moments[index + 1].count_start(kind);
            // What comes after depends on the capacity that the entry takes.
            self.moments.truncate(index + 2);
        }
    }

    /// Returns when `entry` starts, if it is added at the end of the queue and nothing comes after it; none if that is
    /// not within the declared ends.
    pub(crate) fn first_fit(&mut self, entry: &Entry) -> Option<Timestamp> {
        let kind = self.kinds.get(&kind_of(entry)).copied();
        let ahead = kind.map_or(0, |kind| self.queues[kind].len());
        for index in 1..=MAX_ENDS {
            if index == self.moments.len() {
                let next = self.moments.last().and_then(|last| last.next(&self.queues))?;
                self.moments.push(next);
            }
            let moment = &mut self.moments[index];
            // While others of its kind wait, there is no capacity for it either.
            if kind.map_or(0, |kind| moment.started(kind)) == ahead && moment.would_start(entry) {
                return Some(moment.time);
            }
        }
        None
    }
}

impl CapacityAt {
    /// Returns the moment of the next end, with all entries started that fit then; none if nothing ends.
    fn next(&self, queues: &[Vec<(usize, &Entry)>]) -> Option<Self> {
        let mut ends = self.ends.clone();
        let (time, controller, id) = ends.pop_first()?;
        let rooms = self.rooms.iter();
        let mut next = Self {
            time,
            rooms: rooms.map(|(name, room)| (name.clone(), room.fork())).collect(),
            ends,
            started: self.started.clone(),
        };
        if let Some((_, room)) = next.rooms.iter_mut().find(|(name, _)| *name == controller) {
            room.release(&id);
        }
        // The first of each kind that waits, in the order of the queue.
        let mut open = BTreeSet::new();
        for (kind, queue) in queues.iter().enumerate() {
            if let Some((position, _)) = queue.get(next.started(kind)) {
                open.insert((*position, kind));
            }
        }
        while let Some((_, kind)) = open.pop_first() {
            let first = next.started(kind);
            if next.start(queues[kind][first].1) {
                next.count_start(kind);
                if let Some((position, _)) = queues[kind].get(first + 1) {
                    open.insert((*position, kind));
                }
            }
        }
        Some(next)
    }

    fn started(&self, kind: usize) -> usize {
        self.started.get(kind).copied().unwrap_or(0)
    }

    fn count_start(&mut self, kind: usize) {
        if self.started.len() <= kind {
            self.started.resize(kind + 1, 0);
        }
        self.started[kind] += 1;
    }

    /// Starts `entry` if it fits.
    fn start(&mut self, entry: &Entry) -> bool {
        let Some(index) = self.take(entry) else {
            return false;
        };
        if let Some(runtime) = entry.max_runtime {
            let controller = self.rooms[index].0.clone();
            self.add_end((self.time.plus(runtime), controller, entry.id.clone()));
        }
        true
    }

    /// Returns whether `entry` fits.
    fn would_start(&mut self, entry: &Entry) -> bool {
        let taken = self.take(entry);
        if let Some(index) = taken {
            self.rooms[index].1.release(&entry.id);
        }
        taken.is_some()
    }

    /// Takes capacity for `entry` and returns the index of the controller that has it.
    fn take(&mut self, entry: &Entry) -> Option<usize> {
        self.rooms.iter_mut().position(|(name, room)| {
            allows(entry, name) && room.reserve(&entry.id, &entry.spec, &entry.pin.ipus).is_ok()
        })
    }

    fn add_end(&mut self, end: (Timestamp, ControllerName, PartitionId)) {
        self.ends.insert(end);
        if self.ends.len() > MAX_ENDS {
            self.ends.pop_last();
        }
    }
}
