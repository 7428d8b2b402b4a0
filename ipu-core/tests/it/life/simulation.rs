//! Random worlds: jobs whose processes end, whose partitions break, whose planner crashes between applying and recording.
//! After every step the plan is sound and no device is shared; once the trouble stops, every job comes to its end.

use std::time::Duration;

use ipu_core::{InstanceFacts, JobPhase, Observation, PartitionFacts, ProcessPhase, RestartPolicy, Shape};
use proptest::collection::vec;
use proptest::prelude::*;

use super::job::job;
use super::properties::{observation, words};
use super::world::{Who, World};

/// What may happen to a job, its processes and its planner.
#[derive(Clone, Debug)]
enum Event {
    Pass,
    /// A pass whose first effects are applied, and nothing recorded.
    CrashAfter(usize),
    /// What is under way comes to its end.
    Progress,
    Exits(u32, Who, u8),
    Lost(u32, Who),
    Vanishes(u32, Who),
    PartitionFails(u32),
    /// Whether the Pod has room.
    Full(bool),
    After(u64),
    Suspend(bool),
    Scale(u32),
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn after_any_trouble_a_job_comes_to_its_end_and_holds_nothing(
        mut words in words(), events in vec(event(), 0..60),
    ) {
        let mut world = World::new(spec(&words));
        for event in &events {
            happen(&mut world, &mut words, event);
        }
        words.push("suspend=no".into());
        world.job = spec(&words);
        world.full = false;
        let phase = settle(&mut world);
        prop_assert!(phase.is_finished() || phase == JobPhase::Running, "{phase:?} {:#?}", world.seen);
        if !phase.is_finished() && ends_by_itself(&world) {
            everything_succeeds(&mut world);
            let phase = settle(&mut world);
            prop_assert!(phase.is_finished(), "{phase:?} {:#?}", world.seen);
        }
        keeps_what_its_policy_says(&world)?;
        world.seen.deleted = true;
        settle(&mut world);
        prop_assert!(world.finalized, "{:#?}", world.seen);
        prop_assert!(is_empty(&world), "{:#?}", world.seen);
    }

    #[test]
    fn from_any_state_a_job_comes_to_rest_and_lets_go_when_it_is_deleted(
        mut words in words(), seen in observation(),
    ) {
        words.push("suspend=no".into());
        let mut world = World::new(spec(&words));
        world.seen = without_doubles(seen);
        if !world.seen.deleted {
            let phase = settle(&mut world);
            prop_assert!(phase.is_finished() || phase == JobPhase::Running, "{phase:?} {:#?}", world.seen);
            keeps_what_its_policy_says(&world)?;
        }
        world.seen.deleted = true;
        settle(&mut world);
        prop_assert!(world.finalized && is_empty(&world), "{:#?}", world.seen);
    }
}

fn is_empty(world: &World) -> bool {
    world
        .seen
        .instances
        .iter()
        .all(|facts| *facts == InstanceFacts::nothing(facts.index))
}

/// A world has one of everything.
fn without_doubles(mut seen: Observation) -> Observation {
    seen.instances.sort_by_key(|facts| facts.index);
    seen.instances.dedup_by_key(|facts| facts.index);
    for facts in &mut seen.instances {
        facts.workers.sort_by_key(|worker| worker.index);
        facts.workers.dedup_by_key(|worker| worker.index);
        if let Some(launcher) = &mut facts.launcher {
            launcher.index = 0;
        }
    }
    seen
}

fn spec(words: &[String]) -> ipu_core::JobSpec {
    job(words.iter().map(String::as_str)).unwrap()
}

fn event() -> impl Strategy<Value = Event> {
    let who = prop_oneof![2 => (0_u32..2).prop_map(Who::Worker), 1 => Just(Who::Launcher)];
    let process = (0_u32..4, who);
    prop_oneof![
        12 => Just(Event::Pass),
        3 => (0_usize..6).prop_map(Event::CrashAfter),
        8 => Just(Event::Progress),
        3 => (process.clone(), prop_oneof![Just(0_u8), Just(1), Just(130)])
            .prop_map(|((instance, who), code)| Event::Exits(instance, who, code)),
        1 => process.clone().prop_map(|(instance, who)| Event::Lost(instance, who)),
        1 => process.prop_map(|(instance, who)| Event::Vanishes(instance, who)),
        1 => (0_u32..4).prop_map(Event::PartitionFails),
        1 => any::<bool>().prop_map(Event::Full),
        2 => (1_u64..60).prop_map(Event::After),
        1 => any::<bool>().prop_map(Event::Suspend),
        1 => (0_u32..4).prop_map(Event::Scale),
    ]
}

fn happen(world: &mut World, words: &mut Vec<String>, event: &Event) {
    match event {
        Event::Pass => {
            let _ = world.pass();
        }
        Event::CrashAfter(applied) => {
            let plan = world.plan();
            plan.effects
                .iter()
                .take(*applied)
                .for_each(|effect| world.apply(effect));
        }
        Event::Progress => {
            world.progress();
        }
        Event::Exits(instance, who, code) => world.exits(*instance, *who, *code),
        Event::Lost(instance, who) => {
            let at = world.seen.now;
            if let Some(process) = world.process(*instance, *who)
                && process.phase.is_alive()
            {
                let cause = "evicted".to_string();
                process.phase = ProcessPhase::Lost { at, cause };
            }
        }
        Event::Vanishes(instance, who) => world.forget(*instance, *who),
        Event::PartitionFails(instance) => {
            let partition = &mut world.instance(*instance).partition;
            if let PartitionFacts::Active { attempt, .. } | PartitionFacts::Pending { attempt } = partition {
                let errors = vec!["IPU link down".to_string()];
                *partition = PartitionFacts::Failed {
                    attempt: *attempt,
                    errors,
                };
            }
        }
        Event::Full(full) => world.full = *full,
        Event::After(seconds) => world.after(Duration::from_secs(*seconds)),
        Event::Suspend(asked) => {
            words.push(format!("suspend={}", if *asked { "yes" } else { "no" }));
            world.job = spec(words);
        }
        Event::Scale(instances) => {
            words.push(format!("instances={instances}"));
            world.job = spec(words);
        }
    }
}

/// Whether the job ends when its processes do.
fn ends_by_itself(world: &World) -> bool {
    let restarts = matches!(world.job.restart(), RestartPolicy::Always { .. });
    world.job.instances() > 0 && !restarts
}

fn everything_succeeds(world: &mut World) {
    let workers = matches!(world.job.shape(), Shape::Workers);
    for instance in 0..world.job.instances() {
        if workers {
            (0..world.job.workers_per_instance())
                .for_each(|number| world.exits(instance, Who::Worker(number), 0));
        } else {
            world.exits(instance, Who::Launcher, 0);
        }
    }
}

/// Passes, with everything under way coming to its end and time passing when nothing else does, until only an event
/// could change anything: then the job runs, or is over.
fn settle(world: &mut World) -> JobPhase {
    let mut quiet = 0;
    for _ in 0..500 {
        let before = world.seen.clone();
        let plan = world.pass();
        world.progress();
        let moved = before != world.seen;
        // Time that only ends what runs is left alone: the job has come to rest.
        let rests = plan.status.phase == JobPhase::Running || plan.status.phase.is_finished();
        if world.finalized || (quiet == 3 && rests && plan.effects.is_empty()) {
            return plan.status.phase;
        }
        quiet = if moved { 0 } else { quiet + 1 };
        if let Some(wake) = plan.wake.filter(|_| !moved && !rests) {
            world.after(wake);
        }
    }
    panic!("it never settles: {:#?}\n{:#?}", world.seen, world.plan());
}

fn keeps_what_its_policy_says(world: &World) -> Result<(), TestCaseError> {
    let status = &world.seen.status;
    for facts in &world.seen.instances {
        if facts.index >= world.job.instances() {
            prop_assert_eq!(&facts.partition, &PartitionFacts::Absent, "surplus");
            prop_assert!(facts.workers.is_empty() && facts.launcher.is_none(), "surplus");
        }
    }
    if status.phase.is_finished() && world.job.clean_pod_policy() == ipu_core::CleanPodPolicy::All {
        prop_assert_eq!(status.ipus_held, 0);
    }
    let size = world.job.ipus_per_instance().get();
    let held = world.seen.instances.iter().filter(|facts| {
        !matches!(
            facts.partition,
            PartitionFacts::Absent | PartitionFacts::Waiting { .. }
        )
    });
    prop_assert_eq!(status.ipus_held, held.map(|_| size).sum::<u32>());
    prop_assert!(!status.phase.is_finished() || status.exit_code.is_some());
    Ok(())
}
