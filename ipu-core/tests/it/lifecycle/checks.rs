//! Tests of `check_plan`: a valid plan with one fault is reported as broken with that fault.

use core::time::Duration;

use ipu_core::Timestamp;
use ipu_core::job::{
    BrokenPlan, Effect, Exit, FailedComponent, JobStatus, PartitionFacts, Plan, ProcessPhase, check_plan,
    plan,
};
use ipu_testkit::strategies::{consistent_observations, job_dsl};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::RngSeed;
use serde_json::{Value, json};

use super::job_event::{EventEffect, JobEvent};
use super::world::{CapacityState, JobWorld, ProcessRole};
use super::{checked_plan, reconcile};

/// Returns a stable world of the job `words`, changed by `events`.
fn world(words: &str, events: impl FnOnce(&mut JobWorld)) -> JobWorld {
    let mut world = JobWorld::new(words.split_whitespace()).unwrap();
    stabilize(&mut world);
    events(&mut world);
    world
}

/// Returns the world of the job `fields` after a script of `testdata/plan`, with `, ` between its commands.
fn scripted(fields: &str, script: &str) -> JobWorld {
    let mut world = JobWorld::new(fields.split_whitespace()).unwrap();
    for command in script.split(", ").filter(|command| !command.is_empty()) {
        match command {
            "settle" => stabilize(&mut world),
            "pass" => drop(reconcile(&mut world)),
            event => {
                let event: JobEvent = event.parse().unwrap();
                assert_eq!(event.inject(&mut world), Ok(EventEffect::Found), "{script}");
            }
        }
    }
    world
}

fn stabilize(world: &mut JobWorld) {
    for _ in 0..20 {
        let _ = reconcile(world);
        world.progress();
    }
}

#[track_caller]
fn assert_reported(
    world: &JobWorld,
    inject_fault: impl FnOnce(&mut Plan),
    expected: impl Fn(&BrokenPlan) -> bool,
) {
    let mut plan = checked_plan(world);
    inject_fault(&mut plan);
    let broken = check_plan(&world.job, &world.observation, &plan);
    assert!(broken.iter().any(expected), "{broken:?}\n{plan:#?}");
}

fn start_worker(world: &JobWorld, instance: u32, worker: u32, attempt: u32) -> Effect {
    Effect::StartWorker {
        instance,
        worker,
        attempt,
        partition: world.job.partition_id(instance),
    }
}

fn start_launcher(world: &JobWorld) -> Effect {
    Effect::StartLauncher {
        instance: 0,
        attempt: 0,
        partition: world.job.partition_id(0),
    }
}

fn release(world: &JobWorld) -> Effect {
    Effect::ReleasePartition {
        instance: 0,
        attempt: 0,
        partition: world.job.partition_id(0),
    }
}

const STOP: Effect = Effect::StopWorker {
    instance: 0,
    worker: 0,
    attempt: 0,
};

#[test]
fn starting_a_process_twice_without_partition_or_for_another_attempt_is_reported() {
    let running = world("workers=2", |_| {});
    let again = start_worker(&running, 0, 0, 0);
    assert_reported(
        &running,
        |plan| plan.effects.push(again.clone()),
        |broken| {
            *broken
                == BrokenPlan::AlreadyStarted {
                    effect: again.clone(),
                }
        },
    );
    let newer = start_worker(&running, 0, 0, 1);
    assert_reported(
        &running,
        |plan| plan.effects.push(newer),
        |broken| matches!(broken, BrokenPlan::WrongAttempt { attempt: 0, .. }),
    );
    let fresh = JobWorld::new(["workers=1"]).unwrap();
    let early = start_worker(&fresh, 0, 0, 0);
    assert_reported(
        &fresh,
        |plan| plan.effects.push(early),
        |broken| matches!(broken, BrokenPlan::WithoutPartition { .. }),
    );
    let surplus = start_worker(&running, 7, 0, 0);
    assert_reported(
        &running,
        |plan| plan.effects.push(surplus),
        |broken| matches!(broken, BrokenPlan::UnexpectedStart { .. }),
    );
}

#[test]
fn starting_a_process_of_an_instance_that_must_not_run_is_reported() {
    for (instance, job, script) in [
        (0, "instances=1", "settle, delete"),
        (0, "instances=1", "settle, change suspend=yes"),
        (1, "instances=2", "settle, change instances=1"),
        (0, "instances=1", "settle, partition 0 preempted"),
        (0, "instances=2", "settle, worker 0/0 exits 0, settle"),
        (
            1,
            "instances=1",
            "settle, worker 0/0 exits 0, settle, change instances=2",
        ),
    ] {
        let world = scripted(job, script);
        let start = start_worker(&world, instance, 0, 0);
        assert_reported(
            &world,
            |plan| plan.effects.push(start.clone()),
            |broken| matches!(broken, BrokenPlan::UnexpectedStart { effect } if *effect == start),
        );
    }
}

#[test]
fn starting_a_process_that_has_done_its_part_of_the_attempt_is_reported() {
    // The record outlives the process.
    let done = scripted(
        "workers=2",
        "settle, worker 0/0 exits 0, pass, worker 0/0 vanishes",
    );
    let launched = scripted("shape=launcher workers=2", "settle, launcher 0 vanishes");
    for (world, again) in [
        (&done, start_worker(&done, 0, 0, 0)),
        (&launched, start_launcher(&launched)),
    ] {
        assert_reported(
            world,
            |plan| plan.effects.push(again.clone()),
            |broken| matches!(broken, BrokenPlan::AlreadyStarted { effect } if *effect == again),
        );
    }
}

#[test]
fn starting_before_workers_or_beside_an_earlier_attempt_is_reported() {
    let starting = world("shape=launcher workers=2", |world| {
        let since = world.observation.now;
        world.delete_process(0, ProcessRole::Launcher);
        world.observation.status.instances[0].launched = None;
        world.process(0, ProcessRole::Worker(1)).unwrap().phase = ProcessPhase::Starting {
            since,
            cause: String::new(),
        };
    });
    let early = start_launcher(&starting);
    assert_reported(
        &starting,
        |plan| plan.effects.push(early),
        |broken| matches!(broken, BrokenPlan::LauncherBeforeWorkers { .. }),
    );
    let ending = world("workers=2 restart=OnFailure", |world| {
        world.exits(0, ProcessRole::Worker(1), 1);
        let _ = reconcile(world);
        world.process(0, ProcessRole::Worker(0)).unwrap().phase = ProcessPhase::Stopping;
        if let PartitionFacts::Active { attempt, .. } = &mut world.instance(0).partition {
            *attempt = 1;
        }
        world.delete_process(0, ProcessRole::Worker(1));
    });
    let beside = start_worker(&ending, 0, 1, 1);
    assert_reported(
        &ending,
        |plan| plan.effects.push(beside),
        |broken| matches!(broken, BrokenPlan::BesideOldProcesses { .. }),
    );
}

#[test]
fn starting_during_a_back_off_or_not_requeueing_for_a_due_time_is_reported() {
    let pausing = world("restart=OnFailure", |world| {
        world.exits(0, ProcessRole::Worker(0), 1);
        stabilize(world);
    });
    let early = start_worker(&pausing, 0, 0, 1);
    assert_reported(
        &pausing,
        |plan| plan.effects.push(early),
        |broken| matches!(broken, BrokenPlan::DuringBackOff { .. }),
    );
    let deadline = scripted("deadline=60", "settle");
    let finished = scripted("keep=10", "settle, worker 0/0 exits 0, pass");
    for world in [pausing, deadline, finished] {
        assert_reported(
            &world,
            |plan| plan.requeue_after = None,
            |broken| matches!(broken, BrokenPlan::NoRequeue { .. }),
        );
    }
}

#[test]
fn a_partition_that_is_not_of_the_job_is_reported() {
    let fresh = JobWorld::new(["ipus=4"]).unwrap();
    let larger = JobWorld::new(["ipus=8"]).unwrap();
    for (index, spec) in [(1, fresh.job.partition()), (0, larger.job.partition())] {
        let ensure = Effect::EnsurePartition {
            instance: 0,
            attempt: 0,
            partition: fresh.job.partition_id(index),
            spec: spec.clone(),
        };
        assert_reported(
            &fresh,
            |plan| plan.effects = vec![ensure],
            |broken| matches!(broken, BrokenPlan::NotOfJob { .. }),
        );
    }
}

#[test]
fn releasing_under_a_process_or_stopping_without_a_verdict_is_reported() {
    let running = world("workers=1", |_| {});
    assert_reported(
        &running,
        |plan| plan.effects.push(release(&running)),
        |broken| matches!(broken, BrokenPlan::UnderProcesses { .. }),
    );
    assert_reported(
        &running,
        |plan| plan.effects.push(STOP),
        |broken| *broken == BrokenPlan::StoppedBeforeVerdict { effect: STOP },
    );
    let done = world("clean=None", |world| {
        world.exits(0, ProcessRole::Worker(0), 0);
        stabilize(world);
    });
    assert_reported(
        &done,
        |plan| plan.effects.push(release(&done)),
        |broken| matches!(broken, BrokenPlan::UnexpectedRelease { .. }),
    );
    let serving = scripted("shape=launcher clean=None", "settle, launcher 0 exits 0, settle");
    for world in [done, serving] {
        assert_reported(
            &world,
            |plan| plan.effects.push(STOP),
            |broken| matches!(broken, BrokenPlan::UnexpectedStop { .. }),
        );
    }
    let judged = world("clean=All", |world| world.exits(0, ProcessRole::Worker(0), 0));
    assert_reported(
        &judged,
        |plan| plan.effects.push(STOP),
        |broken| *broken == BrokenPlan::ActedBeforeRecord { effect: STOP },
    );
}

#[test]
fn an_ended_instance_must_release_its_partition_only_for_a_queued_instance() {
    let with_queued_peer = |clean: &str| {
        world(&format!("instances=1 clean={clean}"), |world| {
            world.capacity = CapacityState::Full;
            world.change(["instances=2"]).unwrap();
            stabilize(world);
            world.exits(0, ProcessRole::Worker(0), 0);
            // This reconciliation records the verdict.
            let _ = reconcile(world);
        })
    };
    for clean in ["None", "Workers", "All"] {
        let queued = with_queued_peer(clean);
        assert!(
            checked_plan(&queued).effects.contains(&release(&queued)),
            "{clean}"
        );
        assert_reported(
            &queued,
            |plan| plan.effects.clear(),
            |broken| *broken == BrokenPlan::BlocksQueue { instance: 0 },
        );
    }
    let unqueued = world("instances=2 clean=None", |world| {
        world.exits(0, ProcessRole::Worker(0), 0);
        stabilize(world);
    });
    assert_reported(
        &unqueued,
        |plan| plan.effects.push(release(&unqueued)),
        |broken| matches!(broken, BrokenPlan::UnexpectedRelease { .. }),
    );
    let serving = world("shape=launcher instances=1 clean=None", |world| {
        world.capacity = CapacityState::Full;
        world.change(["instances=2"]).unwrap();
        stabilize(world);
        world.exits(0, ProcessRole::Launcher, 0);
        let _ = reconcile(world);
    });
    assert_reported(
        &serving,
        |plan| plan.effects.clear(),
        |broken| *broken == BrokenPlan::ProcessesRemain { instance: 0 },
    );
}

#[test]
fn a_launcher_that_is_started_again_has_the_whole_start_deadline() {
    let script = "pass, ready, pass, worker 0/0 runs, pass, after 30s, launcher 0 vanishes, pass, after 59s";
    let mut world = scripted("shape=launcher start=60", script);
    for attempt in [0, 1] {
        assert_eq!(checked_plan(&world).status.instances[0].attempt, attempt);
        world.after(Duration::from_secs(1));
    }
}

#[test]
fn a_deleted_job_must_be_finalized_exactly_when_it_holds_nothing() {
    let deleted = world("workers=1", |world| world.observation.deleted = true);
    assert_reported(
        &deleted,
        |plan| plan.effects.clear(),
        |broken| *broken == BrokenPlan::ResourcesRemain { instance: 0 },
    );
    assert_reported(
        &deleted,
        |plan| plan.effects.push(Effect::Finalize),
        |broken| *broken == BrokenPlan::FinalizedEarly,
    );
    let mut empty = JobWorld::new([""; 0]).unwrap();
    empty.observation.deleted = true;
    assert_reported(
        &empty,
        |plan| plan.effects.clear(),
        |broken| *broken == BrokenPlan::NotFinalized,
    );
    assert_reported(
        &empty,
        |plan| plan.effects.insert(0, STOP),
        |broken| *broken == BrokenPlan::FinalizedEarly,
    );
}

#[test]
fn a_job_must_expire_exactly_when_its_retention_is_over_and_it_holds_nothing() {
    let running = world("workers=1 keep=10", |_| ());
    let finished = world("workers=1 keep=10", |world| {
        world.exits(0, ProcessRole::Worker(0), 0);
        let _ = reconcile(world);
        world.after(Duration::from_secs(10));
    });
    for early in [running, finished.clone()] {
        assert_reported(
            &early,
            |plan| plan.expired = true,
            |broken| *broken == BrokenPlan::WrongExpiry,
        );
    }
    let mut over = finished;
    over.observation.instances.clear();
    assert_reported(
        &over,
        |plan| plan.expired = false,
        |broken| *broken == BrokenPlan::WrongExpiry,
    );
}

#[test]
fn surplus_instances_must_be_removed_highest_first_and_processes_before_partitions() {
    let shrinking = world("instances=3", |world| {
        world.change(["instances=0"]).unwrap();
        let _ = reconcile(world);
    });
    assert_reported(
        &shrinking,
        |plan| plan.effects.reverse(),
        |broken| matches!(broken, BrokenPlan::OutOfOrder { .. }),
    );
    assert_reported(
        &shrinking,
        |plan| plan.effects.extend(plan.effects.clone()),
        |broken| matches!(broken, BrokenPlan::Duplicate { .. }),
    );
}

#[test]
fn a_status_that_is_wrong_in_one_field_or_has_no_reason_is_reported() {
    let worlds = [
        "pending | instances=2 |",
        "running | instances=2 | settle",
        "deleted | instances=1 | settle, delete",
        "suspended | instances=1 | settle, change suspend=yes",
        "failing | restart=OnFailure | settle, worker 0/0 exits 1",
        "restarted | restart=OnFailure backoff=0 | settle, worker 0/0 exits 1, settle",
        "ending | clean=None | settle, worker 0/0 exits 0",
        "done | clean=None | settle, worker 0/0 exits 0, settle",
        "failed | instances=2 workers=2 | settle, worker 1/0 exits 3, after 10s, worker 0/1 exits 4",
        "over | ttl=60 | settle, after 60s",
        "missing | workers=2 | settle, worker 0/0 is taken away",
        "preempted | instances=1 | pass, ready, partition 0 preempted",
        "pausing | restart=OnFailure | settle, worker 0/0 exits 1, settle",
        "late | start=60 | pass, ready, pass, after 61s",
        "released | start=60 | pass, ready, pass, after 61s, settle",
    ]
    .map(|text| {
        let fields: Vec<&str> = text.split('|').map(str::trim).collect();
        (fields[0], scripted(fields[1], fields[2]))
    });
    // The world, the changed field of the status, its new value, and a part of the expected text.
    let faults = r#"
        running    /instances/0/index    1              its instances are not sorted
        done       /instances/0/outcome  null           an attempt or an outcome is lost
        restarted  /instances/0/attempt  0              an attempt or an outcome is lost
        done       /phase                "Running"      a finished job is no longer finished
        done       /finished             null           a finished job is no longer finished
        ending     /instances/0/outcome  null           the finished job lacks
        ending     /finished             1              the finished job lacks
        ending     /conclusion           null           the finished job lacks
        ending     /exitCode             1              the finished job lacks
        done       /restarts             1              its restart count exceeds the limit
        restarted  /restarts             0              its restart count exceeds the limit
        failing    /restartsAfterFailure 4              its restart count exceeds the limit
        failing    /restarts             2              its restart counts do not match
        failing    /instances/0/retryAt  0              the back-off of the restarted instances
        running    /preemptions          1              its count of preemptions
        running    /started              null           its start time
        done       /ipusHeld             0              its number of held IPUs
        running    /desiredInstances     1              its number of instances
        running    /currentInstances     3              its number of instances
        running    /message              ""             its message is empty
        running    /phase                "Terminating"  its phase contradicts
        running    /phase                "Suspended"    its phase contradicts
        deleted    /phase                "Running"      its phase contradicts
        suspended  /phase                "Pending"      its phase contradicts
        pending    /phase                "Running"      its phase is Running
        running    /firstFailure         FAILURE        wrong first failure: a failure is reported
        failed     /firstFailure         null           wrong first failure: it is not the earliest
        failed     /firstFailure         FAILURE        wrong first failure: it is not the earliest
        failed     /firstFailure/worker  1              wrong first failure: it is not the earliest
        failed     /firstFailure/attempt 1              wrong first failure: it is not the earliest
        running    /instances/0/attempt  1              its attempt continues
        ending     /instances/0/outcome  null           although all its processes succeeded
        ending     /instances/0/outcome  {"failed":3}   its attempt has succeeded
        failed     /instances/0/outcome  null           although its attempt has failed
        failing    /instances/0/outcome  {"failed":1}   it failed permanently although restarts remain
        over       /instances/0/outcome  "succeeded"    on instance 0: its session is over
        missing    /instances/0/outcome  {"failed":3}   a process is missing, which is not a failure
        missing    /instances/0/attempt  0              although one of its processes is missing
        late       /instances/0/outcome  {"failed":3}   no process could start on its partition
        preempted  /instances/0/attempt  0              although its partition is preempted
        pausing    /instances/0/retryAt  null           its back-off is not the recorded one
        suspended  /instances/0/retryAt  5              a suspended job backs off
        suspended  /instances/0/givenBack 1             a suspended job backs off
        released   /instances/0/givenBack 0             the number of unused releases
        released   /instances/0/givenBack 2             the number of unused releases"#;
    // A failure of the world `failed`, though not its first one.
    let failure =
        r#"{"instance":0,"culprit":"worker","worker":1,"attempt":0,"exit":{"code":4},"at":10000,"cause":""}"#;
    for row in faults.trim().lines() {
        let fields: Vec<&str> = row.split_whitespace().collect();
        let (_, world) = worlds.iter().find(|(name, _)| *name == fields[0]).unwrap();
        let (parent, field) = fields[1].rsplit_once('/').unwrap();
        let mut plan = checked_plan(world);
        let mut status = serde_json::to_value(&plan.status).unwrap();
        status.pointer_mut(parent).unwrap()[field] =
            serde_json::from_str::<Value>(&fields[2].replace("FAILURE", failure)).unwrap();
        plan.status = serde_json::from_value(status).unwrap();
        let broken = check_plan(&world.job, &world.observation, &plan);
        let expected = fields[3..].join(" ");
        assert!(
            broken.iter().any(|broken| broken.to_string().contains(&expected)),
            "{row}: {broken:?}"
        );
    }
    let ended = checked_plan(&scripted("instances=1", "settle, worker 0/0 exits 0")).status;
    assert_reported(
        &scripted("instances=0", ""),
        |plan| {
            plan.status = JobStatus {
                desired_instances: 0,
                ..ended
            }
        },
        |broken| broken.to_string().contains("the finished job lacks"),
    );
    assert_reported(
        &scripted("instances=1", "settle"),
        |plan| plan.reasons.clear(),
        |broken| *broken == BrokenPlan::NoReason,
    );
}

/// Returns all effects of an attempt of an instance, even of a worker that its job does not have.
fn effects(world: &JobWorld, instance: u32, attempt: u32) -> Vec<Effect> {
    let effect = |(kind, worker): &(&str, u32)| {
        let (partition, spec) = (world.job.partition_id(instance), world.job.partition());
        let fields = json!({
            "do": kind, "instance": instance, "worker": worker, "attempt": attempt,
            "partition": partition, "spec": spec
        });
        serde_json::from_value(fields).unwrap()
    };
    let mut kinds = vec![
        ("resetPartition", 0),
        ("releasePartition", 0),
        ("startLauncher", 0),
        ("stopLauncher", 0),
    ];
    // A partition that exists may be requested again.
    let mut facts = world.observation.instances.iter();
    if facts.all(|facts| facts.index != instance || facts.partition == PartitionFacts::Absent) {
        kinds.push(("ensurePartition", 0));
    }
    kinds.extend((0..3).flat_map(|worker| [("startWorker", worker), ("stopWorker", worker)]));
    kinds.iter().map(effect).collect()
}

/// Returns the ends of a process that failed within three seconds.
fn failures() -> impl Strategy<Value = ProcessPhase> {
    let text = |other: &'static str| select(vec!["", other]).prop_map(String::from);
    let exits = select(vec![1, 3, 137, 143]).prop_map(Exit::Code);
    let at = || (0_u64..3).prop_map(|second| Timestamp::from_millis(second * 1000));
    prop_oneof![
        4 => (exits, at(), text("the end"), text("OOMKilled")).prop_map(|(exit, at, last_lines, cause)| {
            ProcessPhase::Exited { exit, at, last_lines, cause }
        }),
        1 => (at(), text("OOMKilled")).prop_map(|(at, cause)| ProcessPhase::Lost { at, cause }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300, rng_seed: RngSeed::Fixed(0), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn a_plan_with_an_effect_too_many_or_too_few_is_reported(
        fields in job_dsl(), observation in consistent_observations()
    ) {
        let mut world = JobWorld::new(fields).unwrap();
        world.observation = observation;
        let plan = plan(&world.job, &world.observation);
        let is_valid = |plan: &Plan| check_plan(&world.job, &world.observation, plan).is_empty();
        for instance in 0..3 {
            for effect in (0..2).flat_map(|attempt| effects(&world, instance, attempt)) {
                let mut wrong = plan.clone();
                wrong.effects.push(effect);
                prop_assert!(!is_valid(&wrong), "{:?}", wrong.effects);
            }
        }
        for (index, effect) in plan.effects.iter().enumerate() {
            let mut wrong = plan.clone();
            let _ = wrong.effects.remove(index);
            // The others may wait until a later reconciliation.
            let is_due = matches!(
                effect,
                Effect::StopWorker { .. } | Effect::StopLauncher { .. } | Effect::Finalize
            );
            prop_assert!(!is_due || !is_valid(&wrong), "without {:?}", effect);
        }
    }

    #[test]
    fn the_check_finds_the_first_failure_of_the_planner_among_simultaneous_ones(
        shape in select(vec!["shape=workers", "shape=launcher"]),
        failures in vec(failures(), 5),
        resolution in 0_u64..3
    ) {
        let mut world = scripted(&format!("{shape} workers=4"), "settle, after 3s");
        world.observation.timestamp_resolution = Duration::from_secs(resolution);
        let roles = (0..4).map(ProcessRole::Worker).chain([ProcessRole::Launcher]);
        for (role, phase) in roles.zip(failures) {
            if let Some(process) = world.process(0, role) {
                process.phase = phase;
            }
        }
        let first = checked_plan(&world).status.first_failure.unwrap();
        let role = match first.component {
            FailedComponent::Worker { worker } => ProcessRole::Worker(worker),
            _ => ProcessRole::Launcher,
        };
        if let ProcessPhase::Exited { cause, .. } | ProcessPhase::Lost { cause, .. } =
            &world.process(0, role).unwrap().phase
        {
            prop_assert!(!first.cause.is_empty() && first.cause.ends_with(cause), "{}", first.cause);
        }
    }
}
