//! Breadth-first search of all states of small systems, with the transitions of the real core.
//!
//! `IPU_SEARCH=all cargo test --release -p ipu-core --test it allocator::exhaustive -- --nocapture` searches
//! the larger systems too, which takes minutes and some gigabytes.
#![expect(clippy::print_stdout, reason = "counts, and the trace of a violation")]

use std::collections::{HashSet, VecDeque};
use std::hash::{Hash as _, Hasher};
use std::time::{Duration, Instant};

use ipu_core::allocator::{CallTimes, Policy};

use super::invariants::check_leaks;
use super::world::{Action, Bug, Setup, World, request};

/// A small system.
#[derive(Clone, Default)]
struct System {
    /// Number of IPUs that each owner requests.
    requests: &'static [u32],
    /// Number of IPUs of each controller.
    controllers: &'static [u32],
    /// Number of times that each owner uses a partition.
    runs: u32,
    is_slow: bool,
    has_predecessor: bool,
    delays_replies: bool,
    has_doubts: bool,
    has_leftovers: bool,
    bug: Option<Bug>,
}

impl System {
    fn setup(&self) -> Setup {
        // One millisecond stands for the deadline, and two for the time in which a call may take effect.
        let mut times = CallTimes::default();
        times.deadline = Duration::from_millis(1);
        times.settle = Duration::from_millis(2);
        times.min_pause = Duration::ZERO;
        times.max_poll_pause = Duration::ZERO;
        times.max_retry_pause = Duration::ZERO;
        Setup {
            times,
            policy: Policy::default(),
            requests: (0..)
                .zip(self.requests)
                .map(|(number, size)| request(number, *size))
                .collect(),
            has_predecessor: self.has_predecessor,
            delays_replies: self.delays_replies,
            has_doubts: self.has_doubts,
            has_leftovers: self.has_leftovers,
            compares_first: false,
            bug: self.bug,
        }
    }

    fn world(&self, setup: &Setup) -> World {
        let mut world = World::new(setup, self.controllers, self.runs);
        world
            .controllers
            .iter_mut()
            .for_each(|controller| controller.is_slow = self.is_slow);
        world.normalize(setup);
        world
    }

    /// Visits all states. Returns their number, or the shortest way to a violation.
    fn search(&self) -> Result<usize, Violation> {
        let setup = self.setup();
        let first = self.world(&setup);
        let mut seen = HashSet::from([digest(&first)]);
        let mut parents: Vec<(usize, Option<Action>)> = vec![(0, None)];
        let mut queue = VecDeque::from([(0, first)]);
        while let Some((number, world)) = queue.pop_front() {
            for action in world.actions(&setup) {
                let mut next = world.clone();
                let applied = next.apply(&setup, action);
                let checked = applied.and_then(|()| match next.is_over() {
                    true => check_leaks(&next.controllers),
                    false => Ok(()),
                });
                if let Err(violation) = checked {
                    let mut trace = vec![action];
                    let mut at = number;
                    while let (parent, Some(action)) = parents[at] {
                        trace.push(action);
                        at = parent;
                    }
                    trace.reverse();
                    return Err(Violation {
                        violation,
                        states: seen.len(),
                        trace,
                    });
                }
                next.normalize(&setup);
                if seen.insert(digest(&next)) {
                    let child = parents.len();
                    parents.push((number, Some(action)));
                    queue.push_back((child, next));
                }
            }
        }
        Ok(seen.len())
    }

    /// Prints a trace with the states.
    fn print(&self, found: &Violation) {
        let setup = self.setup();
        let mut world = self.world(&setup);
        println!(
            "{:?}: {} after {} states",
            self.bug, found.violation, found.states
        );
        let mut before = String::new();
        for action in &found.trace {
            let _ = world.apply(&setup, *action);
            world.normalize(&setup);
            let after = world.describe();
            println!("  {action:?}");
            after
                .lines()
                .filter(|line| !before.contains(*line))
                .for_each(|line| println!("  {line}"));
            before = after;
        }
    }
}

struct Violation {
    violation: String,
    states: usize,
    trace: Vec<Action>,
}

/// A hash function for trusted input, several times as fast as that of the standard library.
#[derive(Default)]
struct Digest(u64);

impl Hasher for Digest {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(word.into());
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0 = mixed ^ mixed >> 31;
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

fn digest(world: &World) -> u64 {
    let mut hasher = Digest::default();
    world.hash(&mut hasher);
    hasher.finish()
}

#[test]
fn no_state_of_a_small_system_breaks_the_promise() {
    let one = System {
        requests: &[1],
        controllers: &[1],
        runs: 1,
        ..System::default()
    };
    let two = System {
        requests: &[1, 1],
        ..one.clone()
    };
    let mut systems = vec![
        System {
            runs: 2,
            has_doubts: true,
            ..one.clone()
        },
        System {
            runs: 2,
            has_leftovers: true,
            ..one.clone()
        },
        System {
            is_slow: true,
            delays_replies: true,
            has_doubts: true,
            ..one.clone()
        },
        System {
            controllers: &[1, 1],
            ..one.clone()
        },
        two.clone(),
    ];
    if std::env::var("IPU_SEARCH").is_ok_and(|text| text == "all") {
        systems.extend([
            System {
                has_predecessor: true,
                ..one.clone()
            },
            System {
                runs: 2,
                is_slow: true,
                delays_replies: true,
                has_doubts: true,
                ..one
            },
            System {
                controllers: &[2],
                ..two.clone()
            },
            System {
                requests: &[1, 2],
                controllers: &[2],
                ..two.clone()
            },
            System {
                controllers: &[1, 1],
                ..two.clone()
            },
            System {
                is_slow: true,
                ..two.clone()
            },
            System {
                has_predecessor: true,
                ..two.clone()
            },
            System { runs: 2, ..two },
        ]);
    }
    for system in systems {
        let begun = Instant::now();
        match system.search() {
            Ok(states) => println!("{states} states in {:.1?}", begun.elapsed()),
            Err(found) => {
                system.print(&found);
                panic!("{}", found.violation);
            }
        }
    }
}

#[test]
fn the_search_finds_every_mistake_of_a_loop() {
    let two = System {
        requests: &[1, 1],
        controllers: &[1],
        runs: 2,
        ..System::default()
    };
    let one = System {
        requests: &[1],
        ..two.clone()
    };
    let late = System {
        has_predecessor: true,
        ..one.clone()
    };
    let with_leftovers = System {
        has_leftovers: true,
        ..one.clone()
    };
    let delayed = System {
        delays_replies: true,
        has_doubts: true,
        ..one
    };
    let systems = [
        (Bug::CallsBeforeCommit, &late),
        (Bug::NoCompareAndSwap, &late),
        (Bug::NoRevisionAtStart, &late),
        (Bug::CallsWithoutLease, &late),
        (Bug::AnswersWithoutLease, &late),
        (Bug::NoSettle, &two),
        (Bug::SettleTooShort, &two),
        (Bug::AlwaysSettled, &two),
        (Bug::ResetRepeated, &two),
        (Bug::AnyReply, &two),
        (Bug::ExistsIsFresh, &with_leftovers),
        (Bug::AnyOperation, &delayed),
    ];
    for (bug, system) in systems {
        let system = System {
            bug: Some(bug),
            ..system.clone()
        };
        match system.search() {
            Ok(states) => panic!("{bug:?} is not found in {states} states"),
            Err(found) => system.print(&found),
        }
    }
}
