//! The expected start of queued entries, by the run times that owners declare.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::allocator::blocked_requests::{RequestShape, shape_of};
use crate::allocator::capacity::Capacity;
use crate::allocator::entry::Entry;
use crate::allocator::holders::allows;
use crate::ids::{ControllerName, PartitionId};
use crate::units::Timestamp;

/// Maximum number of simulated ends. Each costs a placement per request shape; beyond 64 ends the result is a
/// guess.
const MAX_ENDS: usize = 64;

/// The simulated future of all controllers: one moment per declared end, at which queued entries start in
/// order wherever they fit. An entry without a declared run time never ends.
///
/// Entries of one shape start in queue order, because capacity only shrinks within a moment. So a moment
/// needs one number per shape, not one per entry. An entry that is added at the end of the queue changes
/// nothing before the moment at which it starts.
pub(crate) struct Timeline<'a> {
    /// The entries of each shape in queue order, with their positions in the queue.
    queues: Vec<Vec<(usize, &'a Entry)>>,
    /// Index of each shape in `queues`.
    shapes: BTreeMap<RequestShape<'a>, usize>,
    count: usize,
    /// From now on, as far as simulated; nothing starts at the first one.
    moments: Vec<CapacityAt>,
}

/// Capacity of the controllers right after an end.
struct CapacityAt {
    time: Timestamp,
    capacities: Vec<(ControllerName, Box<dyn Capacity>)>,
    /// The next ends, at most [`MAX_ENDS`].
    ends: BTreeSet<(Timestamp, ControllerName, PartitionId)>,
    /// Number of entries of each shape that have started; 0 for shapes that were added later.
    started: Vec<usize>,
}

impl<'a> Timeline<'a> {
    /// Creates a timeline from `now` on, without queued entries.
    pub(crate) fn new(
        now: Timestamp,
        capacities: Vec<(ControllerName, Box<dyn Capacity>)>,
        ends: impl Iterator<Item = (Timestamp, ControllerName, PartitionId)>,
    ) -> Self {
        let mut first = CapacityAt {
            time: now,
            capacities,
            ends: BTreeSet::new(),
            started: Vec::new(),
        };
        ends.for_each(|end| first.add_end(end));
        Self {
            queues: Vec::new(),
            shapes: BTreeMap::new(),
            count: 0,
            moments: Vec::from([first]),
        }
    }

    /// Adds `entry` at the end of the queue.
    pub(crate) fn push(&mut self, entry: &'a Entry) {
        let shape = *self.shapes.entry(shape_of(entry)).or_insert(self.queues.len());
        if shape == self.queues.len() {
            self.queues.push(Vec::new());
        }
        let ahead = self.queues[shape].len();
        let mut later = self.moments.iter_mut().skip(1);
        let starts = later.position(|moment| moment.started(shape) == ahead && moment.start(entry));
        self.queues[shape].push((self.count, entry));
        self.count += 1;
        if let Some(index) = starts {
            self.moments[index + 1].count_start(shape);
            // Later moments depend on the capacity that the entry takes.
            self.moments.truncate(index + 2);
        }
    }

    /// Returns the start of `entry`, if it is added at the end of the queue and no entry follows; none if
    /// that is not within the declared ends.
    pub(crate) fn first_fit(&mut self, entry: &Entry) -> Option<Timestamp> {
        let shape = self.shapes.get(&shape_of(entry)).copied();
        let ahead = shape.map_or(0, |shape| self.queues[shape].len());
        for index in 1..=MAX_ENDS {
            if index == self.moments.len() {
                let next = self.moments.last().and_then(|last| last.next(&self.queues))?;
                self.moments.push(next);
            }
            let moment = &mut self.moments[index];
            // While others of its shape wait, there is no capacity for it either.
            if shape.map_or(0, |shape| moment.started(shape)) == ahead && moment.would_start(entry) {
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
        let capacities = self.capacities.iter();
        let mut next = Self {
            time,
            capacities: capacities
                .map(|(name, capacity)| (name.clone(), capacity.boxed_clone()))
                .collect(),
            ends,
            started: self.started.clone(),
        };
        if let Some((_, capacity)) = next.capacities.iter_mut().find(|(name, _)| *name == controller) {
            capacity.release(&id);
        }
        // The first waiting entry of each shape, in queue order.
        let mut open = BTreeSet::new();
        for (shape, queue) in queues.iter().enumerate() {
            if let Some((position, _)) = queue.get(next.started(shape)) {
                open.insert((*position, shape));
            }
        }
        while let Some((_, shape)) = open.pop_first() {
            let first = next.started(shape);
            if next.start(queues[shape][first].1) {
                next.count_start(shape);
                if let Some((position, _)) = queues[shape].get(first + 1) {
                    open.insert((*position, shape));
                }
            }
        }
        Some(next)
    }

    fn started(&self, shape: usize) -> usize {
        self.started.get(shape).copied().unwrap_or(0)
    }

    fn count_start(&mut self, shape: usize) {
        if self.started.len() <= shape {
            self.started.resize(shape + 1, 0);
        }
        self.started[shape] += 1;
    }

    /// Starts `entry` if it fits.
    fn start(&mut self, entry: &Entry) -> bool {
        let Some(index) = self.reserve(entry) else {
            return false;
        };
        if let Some(runtime) = entry.max_runtime {
            let controller = self.capacities[index].0.clone();
            self.add_end((self.time.plus(runtime), controller, entry.id.clone()));
        }
        true
    }

    /// Returns whether `entry` fits.
    fn would_start(&mut self, entry: &Entry) -> bool {
        let taken = self.reserve(entry);
        if let Some(index) = taken {
            self.capacities[index].1.release(&entry.id);
        }
        taken.is_some()
    }

    /// Reserves capacity for `entry` and returns the index of the controller that has it.
    fn reserve(&mut self, entry: &Entry) -> Option<usize> {
        self.capacities.iter_mut().position(|(name, capacity)| {
            allows(entry, name) && capacity.reserve(&entry.id, &entry.spec, &entry.pin.ipus).is_ok()
        })
    }

    fn add_end(&mut self, end: (Timestamp, ControllerName, PartitionId)) {
        self.ends.insert(end);
        if self.ends.len() > MAX_ENDS {
            self.ends.pop_last();
        }
    }
}
