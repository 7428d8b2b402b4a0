//! `check_planner` accepts the planner of the core, and detects mutants that break one rule each.

mod broken;

use std::collections::BTreeSet;
use std::path::Path;

use ipu_core::{JobSpec, Observation, Plan, plan};
use ipu_testkit::{
    CapacityState, EventEffect, JobEvent, JobWorld, PlannerOptions, PlannerProperty, ProcessEnd, ProcessRole,
    try_check_planner,
};

use broken::MUTANTS;

/// Enough to detect each mutant, most of them in the first dozen.
const CASES: u32 = 200;
/// The tests check the violated property, not the size of the case.
const SHRINKS: u32 = 10;

#[test]
fn every_planner_mutant_is_detected_by_the_intended_property() {
    let mut undetected = Vec::new();
    for case in &MUTANTS {
        let options = PlannerOptions::default().with_cases(CASES).with_shrinks(SHRINKS);
        match try_check_planner(case.planner, options) {
            Ok(report) => undetected.push(format!(
                "{}: {} is not detected\n{report}",
                case.rule, case.mutation
            )),
            Err(failure) => {
                let message = failure.to_string();
                if !case
                    .expected
                    .split('|')
                    .any(|expected| message.contains(expected))
                {
                    undetected.push(format!(
                        "{}: {} is detected with another message:\n{message}",
                        case.rule, case.mutation
                    ));
                }
            }
        }
    }
    assert!(undetected.is_empty(), "{}", undetected.join("\n"));
}

#[test]
fn every_rule_has_a_planner_mutant() {
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
    let broken: BTreeSet<&str> = MUTANTS.iter().map(|case| case.rule).collect();
    let missing: Vec<_> = documented.difference(&broken).collect();
    assert!(missing.is_empty(), "no planner mutant for {missing:?}");
}

#[test]
fn a_failure_contains_a_script_and_a_repeatable_request() {
    fn never_requests(job: &JobSpec, observation: &Observation) -> Plan {
        let mut plan = plan(job, observation);
        plan.effects
            .retain(|effect| !matches!(effect, ipu_core::Effect::StartWorker { .. }));
        plan
    }
    let options = PlannerOptions::default().with_shrinks(60);
    let failure = try_check_planner(never_requests, options).unwrap_err();
    assert_eq!(failure.property, PlannerProperty::Quiesces);
    let request: serde_json::Value = serde_json::from_str(&failure.request()).unwrap();
    assert!(request["job"]["spec"].is_object() && request["observation"]["now"].is_u64());
    let script = failure.script.clone().unwrap();
    assert!(script[0].starts_with("job "), "{failure}");
    assert!(script.len() < 10, "{failure}");
}

#[test]
fn a_seed_determines_the_failure() {
    let late = MUTANTS.iter().find(|case| case.rule == "start_deadline").unwrap();
    let message = |seed| {
        let options = PlannerOptions::default().with_seed(seed).with_shrinks(SHRINKS);
        try_check_planner(late.planner, options).unwrap_err().to_string()
    };
    assert_eq!(message(1), message(1));
    assert_ne!(message(1), message(2));
}

#[test]
fn job_events_survive_a_round_trip_through_text() {
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
        let event: JobEvent = line.parse().unwrap();
        assert_eq!(event.to_string(), line);
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
fn the_job_model_rejects_effects_that_share_a_device() {
    let mut world = JobWorld::new(["workers=1"]).unwrap();
    world.capacity = CapacityState::Full;
    for _ in 0..3 {
        world.reconcile(&plan(&world.job, &world.observation)).unwrap();
        world.progress();
    }
    assert!(
        world.process(0, ProcessRole::Worker(0)).is_none(),
        "no capacity is available"
    );
    let ends = JobEvent::Process(0, ProcessRole::Worker(0), ProcessEnd::Vanishes);
    assert_eq!(ends.inject(&mut world), Ok(EventEffect::Found));
    world.capacity = CapacityState::Free;
    for _ in 0..3 {
        world.reconcile(&plan(&world.job, &world.observation)).unwrap();
        world.progress();
    }
    assert!(world.process(0, ProcessRole::Worker(0)).is_some());
    let before = world.observation.clone();
    let release = ipu_core::Effect::ReleasePartition {
        instance: 0,
        attempt: 0,
        partition: world.job.partition_id(0),
    };
    let rejected = world.apply(&release).unwrap_err().to_string();
    assert!(
        rejected.contains("processes of the instance are alive"),
        "{rejected}"
    );
    assert_eq!(world.observation, before);
}
