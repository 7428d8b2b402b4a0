//! `check_planner` proves the planner of the core, and catches planners that break one rule each: the tests of the test.

mod broken;

use std::collections::BTreeSet;
use std::path::Path;

use ipu_core::{JobSpec, Observation, Plan, plan};
use ipu_testkit::{
    CapacityState, EventEffect, JobEvent, JobWorld, PlannerOptions, PlannerProperty, ProcessEnd, ProcessRole,
    try_check_planner,
};

use broken::BROKEN;

/// Enough to catch each of the broken planners, most of them in the first dozen.
const CASES: u32 = 200;
/// The tests look at what is broken, not at how small the case is.
const SHRINKS: u32 = 10;

#[test]
fn every_broken_planner_is_caught_by_the_property_that_is_meant_for_it() {
    let mut missed = Vec::new();
    for case in &BROKEN {
        let options = PlannerOptions::default().with_cases(CASES).with_shrinks(SHRINKS);
        match try_check_planner(case.planner, options) {
            Ok(report) => missed.push(format!("{}: {} is not caught\n{report}", case.rule, case.what)),
            Err(failure) => {
                let told = failure.to_string();
                if !case.told.split('|').any(|meant| told.contains(meant)) {
                    missed.push(format!(
                        "{}: {} is caught otherwise:\n{told}",
                        case.rule, case.what
                    ));
                }
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn there_is_a_broken_planner_for_every_rule() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let documented = std::fs::read_to_string(root.join("docs/rules.md")).unwrap();
    let documented: BTreeSet<&str> = documented
        .lines()
        .filter_map(|line| {
            line.strip_prefix("File: `ipu-core/src/rules/")?
                .split_once(".rs`")
        })
        .map(|(rule, _)| rule)
        .collect();
    assert!(documented.len() >= 12, "{documented:?}");
    let broken: BTreeSet<&str> = BROKEN.iter().map(|case| case.rule).collect();
    let missing: Vec<_> = documented.difference(&broken).collect();
    assert!(missing.is_empty(), "no broken planner for {missing:?}");
}

#[test]
fn a_failure_tells_its_story_and_can_be_asked_again() {
    fn never_asks(job: &JobSpec, seen: &Observation) -> Plan {
        let mut plan = plan(job, seen);
        plan.effects
            .retain(|effect| !matches!(effect, ipu_core::Effect::StartWorker { .. }));
        plan
    }
    let options = PlannerOptions::default().with_shrinks(60);
    let failure = try_check_planner(never_asks, options).unwrap_err();
    assert_eq!(failure.property, PlannerProperty::ComesToRest);
    let request: serde_json::Value = serde_json::from_str(&failure.request()).unwrap();
    assert!(request["job"]["spec"].is_object() && request["observation"]["now"].is_u64());
    let story = failure.story.clone().unwrap();
    assert!(story[0].starts_with("job "), "{failure}");
    assert!(story.len() < 10, "{failure}");
}

#[test]
fn the_same_seed_makes_the_same_failure() {
    let late = BROKEN.iter().find(|case| case.rule == "start_deadline").unwrap();
    let told = |seed| {
        let options = PlannerOptions::default().with_seed(seed).with_shrinks(SHRINKS);
        try_check_planner(late.planner, options).unwrap_err().to_string()
    };
    assert_eq!(told(1), told(1));
    assert_ne!(told(1), told(2));
}

#[test]
fn what_happens_is_written_as_it_is_read() {
    let lines = [
        "progress",
        "ready",
        "after 10s",
        "room",
        "full",
        "change suspend=yes instances=2",
        "delete",
        "partition 1 error",
        "partition 0 gone",
        "worker 1/0 exits 3",
        "worker 0/1 killed 9",
        "launcher 0 lost no heartbeat",
        "launcher 2 vanishes",
        "worker 0/0 runs",
    ];
    for line in lines {
        let happening: JobEvent = line.parse().unwrap();
        assert_eq!(happening.to_string(), line);
    }
    for wrong in [
        "",
        "worker 1 exits 3",
        "worker 0/0 sings",
        "after noon",
        "partition 0",
    ] {
        assert!(wrong.parse::<JobEvent>().is_err(), "{wrong}");
    }
}

#[test]
fn a_world_refuses_to_share_a_device() {
    let mut world = JobWorld::new(["workers=1"]).unwrap();
    world.capacity = CapacityState::Full;
    for _ in 0..3 {
        world.reconcile(&plan(&world.job, &world.seen)).unwrap();
        world.progress();
    }
    assert!(
        world.process(0, ProcessRole::Worker(0)).is_none(),
        "there is no room"
    );
    let ends = JobEvent::Process(0, ProcessRole::Worker(0), ProcessEnd::Vanishes);
    assert_eq!(ends.inject(&mut world), Ok(EventEffect::Found));
    world.capacity = CapacityState::Free;
    for _ in 0..3 {
        world.reconcile(&plan(&world.job, &world.seen)).unwrap();
        world.progress();
    }
    assert!(world.process(0, ProcessRole::Worker(0)).is_some());
    let before = world.seen.clone();
    let release = ipu_core::Effect::ReleasePartition {
        instance: 0,
        attempt: 0,
        partition: world.job.partition_id(0),
    };
    let refused = world.apply(&release).unwrap_err().to_string();
    assert!(
        refused.contains("processes of the instance are alive"),
        "{refused}"
    );
    assert_eq!(world.seen, before);
}
