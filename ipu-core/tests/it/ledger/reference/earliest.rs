//! The expected start, one simulation per entry.

use std::collections::BTreeSet;

use ipu_core::{Capacity, ControllerName, Entry, PartitionId, Timestamp};

/// How many ends are looked at. Each costs a placement per entry ahead; what lies further off than 64 ends is a guess.
const STEPS: usize = 64;

/// The room of all controllers, played forward from one declared end to the next. Whoever declared nothing never ends.
pub(super) struct Horizon {
    now: Timestamp,
    rooms: Vec<(ControllerName, Box<dyn Capacity>)>,
    ends: BTreeSet<(Timestamp, ControllerName, PartitionId)>,
}

impl Horizon {
    pub(super) const fn new(now: Timestamp) -> Self {
        Self {
            now,
            rooms: Vec::new(),
            ends: BTreeSet::new(),
        }
    }

    pub(super) fn add_room(&mut self, name: &ControllerName, room: Box<dyn Capacity>) {
        self.rooms.push((name.clone(), room));
    }

    pub(super) fn add_end(&mut self, end: Timestamp, controller: &ControllerName, id: &PartitionId) {
        self.ends.insert((end, controller.clone(), id.clone()));
    }

    /// When `entry` fits, if those `ahead` of it go first wherever they fit.
    pub(super) fn first_fit(
        mut self,
        ahead: &[&Entry],
        entry: &Entry,
        allows: fn(&Entry, &ControllerName) -> bool,
    ) -> Option<Timestamp> {
        let mut line: Vec<&Entry> = ahead.to_vec();
        for _ in 0..STEPS {
            let (end, controller, id) = self.ends.pop_first()?;
            self.now = end;
            if let Some((_, room)) = self.rooms.iter_mut().find(|(name, _)| *name == controller) {
                room.release(&id);
            }
            let mut still = Vec::new();
            for waiting in line {
                if !self.start(waiting, allows) {
                    still.push(waiting);
                }
            }
            line = still;
            if self.start(entry, allows) {
                return Some(end);
            }
        }
        None
    }

    fn start(&mut self, entry: &Entry, allows: fn(&Entry, &ControllerName) -> bool) -> bool {
        let fits = self.rooms.iter_mut().find_map(|(name, room)| {
            let open = allows(entry, name) && room.reserve(&entry.id, &entry.spec, &entry.pin.ipus).is_ok();
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
