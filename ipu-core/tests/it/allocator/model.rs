//! Random large systems with all faults.
//!
//! `IPU_MODEL_EVENTS=100000000 cargo test --release -p ipu-core --test it allocator::model -- --nocapture`
//! runs that many events instead of a few short cases.
#![expect(clippy::print_stdout, reason = "counts, and the trace of a violation")]

use std::time::{Duration, Instant};

use ipu_core::allocator::{CallTimes, Phase, Policy, Quota, QuotaSubject};
use ipu_core::hardware::PartitionState;
use ipu_core::{Namespace, PartitionId};

use super::controller::{Controller, Truth};
use super::invariants::check_leaks;
use super::world::{Action, LEADER, Setup, Wish, World, request};

/// Number of cases without the environment variable.
const CASES: u64 = 200;

/// A generator of reproducible numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn is_one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// A random system.
struct Case {
    setup: Setup,
    world: World,
    /// The kinds of faults that occur, one bit each.
    faults: u64,
    size: u32,
}

fn case(seed: u64) -> Case {
    let mut random = Random(seed);
    let mut policy = Policy::default();
    policy.overtake_limit = 2;
    policy.preemption = random.is_one_in(2);
    policy.preemption_grace = Duration::from_secs(60);
    let size = random.pick(&[4, 8]);
    if random.is_one_in(2) {
        let quota = Quota {
            max_ipus: Some(4),
            max_partitions: None,
        };
        let subject = QuotaSubject::Namespace(Namespace::new("n0").unwrap());
        policy.quotas.insert(subject, quota);
    }
    let workers = 2 + random.below(4);
    let requests = (0..workers).map(|number| {
        let size = random.pick(&[1, 2, 4]);
        let mut made = request(number, size);
        if size > 1 && random.is_one_in(3) {
            (made.spec.gcds, made.spec.replicas) = (2, 2);
        }
        made.preemptible = random.is_one_in(3);
        made
    });
    let setup = Setup {
        requests: requests.collect(),
        times: CallTimes::default(),
        policy,
        has_predecessor: random.is_one_in(2),
        delays_replies: random.is_one_in(2),
        has_doubts: true,
        has_leftovers: false,
        compares_first: true,
        bug: None,
    };
    let ipus = vec![size; 1 + random.below(3)];
    let mut world = World::new(&setup, &ipus, u32::MAX);
    for controller in &mut world.controllers {
        controller.is_slow = random.is_one_in(2);
        controller.reports_ipus = !random.is_one_in(4);
    }
    let holders = random.below(2) as u32;
    world
        .workers
        .iter_mut()
        .for_each(|worker| worker.holder = holders);
    Case {
        setup,
        world,
        faults: random.next() & random.next(),
        size,
    }
}

/// Returns a random transition.
fn action(case: &Case, random: &mut Random) -> Action {
    let (world, faults) = (&case.world, case.faults);
    let number = random.below(world.workers.len());
    let controller = random.below(world.controllers.len());
    let message = random.below(world.network.len().max(1));
    match random.below(100) {
        0..30 => Action::Answer(message),
        30..34 => Action::Execute(message),
        34..38 => Action::Deliver(message),
        38..44 => Action::Finish(controller, random.below(4)),
        44..52 => Action::Ask(number),
        52..62 => Action::Ensure(number, random.below(2)),
        62..66 => Action::Release(number, random.below(2)),
        66..70 => Action::AskAgain(number),
        70..74 => Action::Observe(random.is_one_in(2)),
        74..78 => Action::CompareObserved,
        78..84 => Action::Wait(random.pick(&[1, 5, 100, 1_000, 10_000, 30_000])),
        _ => {
            let kind = random.below(20);
            if faults >> kind & 1 == 0 {
                return Action::Answer(message);
            }
            let ipu = random.is_one_in(2).then(|| random.below(4) as u32);
            let size = random.pick(&[1, 2, 4]);
            match kind {
                0 => Action::Lose(message),
                1 => Action::DoNotSend(message),
                2 => Action::TakeOver,
                3 if random.is_one_in(2) => Action::Die(number),
                3 => Action::Revive(number),
                4 => Action::Doubt(number),
                5 => Action::Reset(number),
                6 => Action::Renew(number, random.below(3) as i32),
                7 => Action::SendLate(number, random.is_one_in(2)),
                8 => Action::Arrive(number),
                9 if random.is_one_in(2) => Action::Cordon(controller, ipu),
                9 => Action::Uncordon(controller, ipu),
                10 => Action::ReleaseUnowned(number),
                11 if random.is_one_in(4) => Action::Empty(controller),
                11 => Action::RemoveByHand(controller, random.below(3)),
                12 => Action::Resize(controller, random.pick(&[case.size / 2, case.size])),
                13 => Action::Refuse(controller, random.is_one_in(2)),
                14 => Action::Silence(controller, random.is_one_in(2)),
                15 => Action::Fail(controller, random.below(3)),
                16 => Action::MakeByHand(controller, Some(number), size),
                17 => Action::MakeByHand(controller, None, size),
                18 if random.is_one_in(2) => Action::Copy,
                18 => Action::Restore(random.below(3)),
                _ => Action::SetClock(random.pick(&[-60_000, -500, 500, 60_000])),
            }
        }
    }
}

/// Ends all faults. In the end every owner was served and has released, and nothing is left. Returns the
/// number of events.
fn settle(case: &mut Case) -> Result<usize, String> {
    let mut events = 0;
    let Case {
        setup, world, size, ..
    } = case;
    let mut act = |world: &mut World, action| {
        events += 1;
        world.apply(setup, action)
    };
    for number in 0..world.controllers.len() {
        for action in [Action::Refuse(number, false), Action::Silence(number, false)] {
            act(world, action)?;
        }
        world.controllers[number].ipus = *size;
    }
    for _ in 0..300 {
        for action in [
            Action::Observe(true),
            Action::CompareObserved,
            Action::Wait(1_000),
        ] {
            act(world, action)?;
        }
        for number in 0..world.controllers.len() {
            for ipu in [None, Some(0), Some(1), Some(2), Some(3)] {
                act(world, Action::Uncordon(number, ipu))?;
            }
            // The administrator who made these also removes them, once they are not in use.
            let keeps_an_owner_out = |id: &PartitionId, truth: &Truth| {
                let request = setup.requests.iter().find(|request| request.id == *id);
                let mut uses = world.workers.iter().filter_map(|worker| worker.uses.as_ref());
                let is_other = truth.is_foreign || request.is_some_and(|request| request.spec != truth.spec);
                is_other && !uses.any(|one| one.id == *id)
            };
            world.controllers[number]
                .partitions
                .retain(|id, truth| !keeps_an_owner_out(id, truth));
        }
        for number in 0..world.workers.len() {
            let worker = &world.workers[number];
            let id = &setup.requests[number].id;
            let phase = world.store.get(id).map(|entry| entry.phase.clone());
            let action = match (worker.wish, &worker.uses) {
                (Wish::Partition, Some(_)) => Action::Release(number, LEADER),
                (Wish::Partition, None) if matches!(phase, Some(Phase::Failed { .. })) => {
                    world.workers[number].attempt += 1;
                    Action::Ensure(number, LEADER)
                }
                (Wish::Partition, None) => Action::Ensure(number, LEADER),
                (Wish::Nothing | Wish::Gone, _) => Action::ReleaseAll(number),
            };
            act(world, action)?;
            act(world, Action::ReleaseUnowned(number))?;
        }
        for _ in 0..20 {
            let waits = world
                .network
                .iter()
                .position(|message| message.sender == Some(LEADER));
            let Some(message) = waits else { break };
            act(world, Action::Deliver(message))?;
            act(world, Action::Answer(message))?;
            let busy = |controller: &Controller| {
                let mut partitions = controller.partitions.values();
                partitions.position(|truth| truth.state != PartitionState::Active)
            };
            for number in 0..world.controllers.len() {
                if let Some(index) = busy(&world.controllers[number]) {
                    act(world, Action::Finish(number, index))?;
                }
            }
        }
        let is_idle = world.workers.iter().all(|worker| worker.wish != Wish::Partition);
        let is_empty = world.store.entries().next().is_none() && world.network.is_empty();
        // Partitions made by hand may have to be listed first.
        if is_idle && is_empty && check_leaks(&world.controllers).is_ok() {
            return Ok(events);
        }
    }
    check_leaks(&world.controllers)?;
    let left: Vec<_> = world
        .store
        .entries()
        .map(|entry| format!("{} {:?}", entry.id, entry.phase))
        .collect();
    let wishes: Vec<_> = world.workers.iter().map(|worker| worker.wish).collect();
    Err(format!("the system does not come to rest: {wishes:?} {left:?}"))
}

fn replay(seed: u64, actions: &[Action]) -> Result<usize, String> {
    let mut case = case(seed);
    for action in actions {
        case.world.apply(&case.setup, *action)?;
    }
    settle(&mut case)
}

/// Returns the violation without names and numbers.
fn kind(violation: &str) -> String {
    let words = violation.split_whitespace();
    words
        .filter(|word| !word.contains(|c: char| c.is_ascii_digit()))
        .collect()
}

/// Returns a short part of `actions` that breaks the same invariant.
fn shrink(seed: u64, mut actions: Vec<Action>, violation: &str) -> Vec<Action> {
    let mut length = actions.len();
    while length > 0 {
        let mut start = 0;
        while start < actions.len() {
            let mut fewer = actions.clone();
            fewer.drain(start..(start + length).min(fewer.len()));
            match replay(seed, &fewer) {
                Err(other) if kind(&other) == kind(violation) => actions = fewer,
                _ => start += length,
            }
        }
        length /= 2;
    }
    actions
}

/// Runs one case. Returns the number of events, or fails with a short trace.
fn run(seed: u64, events: usize) -> usize {
    let mut case = case(seed);
    let mut random = Random(seed ^ 0x5eed);
    let mut actions = Vec::new();
    let result = (0..events).try_for_each(|_| {
        let action = action(&case, &mut random);
        actions.push(action);
        case.world.apply(&case.setup, action)
    });
    match result.and_then(|()| settle(&mut case)) {
        Ok(more) => events + more,
        Err(violation) => explain(seed, actions, &violation),
    }
}

/// Prints a short trace to `violation`, and fails.
fn explain(seed: u64, actions: Vec<Action>, violation: &str) -> ! {
    let actions = shrink(seed, actions, violation);
    let mut case = case(seed);
    println!("seed {seed}: {violation}");
    let mut described = String::new();
    for action in actions {
        let result = case.world.apply(&case.setup, action);
        let now = case.world.describe();
        println!("{action:?}");
        for line in now.lines().filter(|line| !described.contains(*line)) {
            println!("{line}");
        }
        described = now;
        if let Err(violation) = result {
            panic!("{violation}");
        }
    }
    let result = settle(&mut case);
    println!("at the end\n{}", case.world.describe());
    panic!("{}", result.unwrap_err());
}

#[test]
fn random_systems_keep_the_promise_under_all_faults() {
    let wanted = std::env::var("IPU_MODEL_EVENTS").ok();
    let wanted: Option<usize> = wanted.map(|text| text.parse().unwrap());
    let first = std::env::var("IPU_MODEL_SEED").map_or(1, |text| text.parse().unwrap());
    let begun = Instant::now();
    let mut events = 0;
    for seed in first.. {
        events += run(seed, 60 + (seed % 300) as usize);
        if wanted.map_or(seed + 1 >= first + CASES, |wanted| events >= wanted) {
            break;
        }
    }
    let per_second = events as f64 / begun.elapsed().as_secs_f64();
    println!("{events} events, {per_second:.0} a second");
}
