//! The earliest start, one simulation per entry.

use std::collections::BTreeSet;

use ipu_core::{Capacity, ControllerName, Entry, PartitionId, Timestamp};

/// The maximum number of simulated ends. Each costs a placement per earlier entry; predictions beyond 64 ends
/// are guesses.
const MAX_ENDS: usize = 64;

/// The capacity of all controllers, simulated from one declared end to the next. Holders without a declared
/// run time never end.
pub(super) struct Horizon {
    now: Timestamp,
    capacities: Vec<(ControllerName, Box<dyn Capacity>)>,
    ends: BTreeSet<(Timestamp, ControllerName, PartitionId)>,
}

impl Horizon {
    pub(super) const fn new(now: Timestamp) -> Self {
        Self {
            now,
            capacities: Vec::new(),
            ends: BTreeSet::new(),
        }
    }

    pub(super) fn add_capacity(&mut self, name: &ControllerName, capacity: Box<dyn Capacity>) {
        self.capacities.push((name.clone(), capacity));
    }

    pub(super) fn add_end(&mut self, end: Timestamp, controller: &ControllerName, id: &PartitionId) {
        self.ends.insert((end, controller.clone(), id.clone()));
    }

    /// Returns when `entry` fits, if the entries `ahead` of it start first wherever they fit.
    pub(super) fn first_fit(
        mut self,
        ahead: &[&Entry],
        entry: &Entry,
        allows: fn(&Entry, &ControllerName) -> bool,
    ) -> Option<Timestamp> {
        let mut queue: Vec<&Entry> = ahead.to_vec();
        for _ in 0..MAX_ENDS {
            let (end, controller, id) = self.ends.pop_first()?;
            self.now = end;
            if let Some((_, capacity)) = self.capacities.iter_mut().find(|(name, _)| *name == controller) {
                capacity.release(&id);
            }
            let mut remaining = Vec::new();
            for queued in queue {
                if !self.start(queued, allows) {
                    remaining.push(queued);
                }
            }
            queue = remaining;
            if self.start(entry, allows) {
                return Some(end);
            }
        }
        None
    }

    fn start(&mut self, entry: &Entry, allows: fn(&Entry, &ControllerName) -> bool) -> bool {
        let fits = self.capacities.iter_mut().find_map(|(name, capacity)| {
            let open =
                allows(entry, name) && capacity.reserve(&entry.id, &entry.spec, &entry.pin.ipus).is_ok();
            open.then(|| name.clone())
        });
        let Some(controller) = fits else { return false };
        if let Some(runtime) = entry.max_runtime {
            self.ends
                .insert((self.now.plus(runtime), controller, entry.id.clone()));
        }
        true
    }
}
