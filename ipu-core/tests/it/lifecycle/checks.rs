//! The checks find what they are for: a sound plan, spoilt in one place, is found broken there.

use core::time::Duration;

use ipu_core::{
    BrokenPlan, Effect, InstanceOutcome, JobPhase, PartitionFacts, Plan, ProcessPhase, check_plan,
};

use ipu_testkit::{CapacityState, JobWorld, ProcessRole};

use super::{pass, plan_of};

/// A world in which the job of `words` has come to rest after `events`.
fn world(words: &str, events: impl FnOnce(&mut JobWorld)) -> JobWorld {
    let mut world = JobWorld::new(words.split_whitespace()).unwrap();
    rest(&mut world);
    events(&mut world);
    world
}

fn rest(world: &mut JobWorld) {
    for _ in 0..20 {
        let _ = pass(world);
        world.progress();
    }
}

#[track_caller]
fn found(world: &JobWorld, spoil: impl FnOnce(&mut Plan), expected: impl Fn(&BrokenPlan) -> bool) {
    let mut plan = plan_of(world);
    spoil(&mut plan);
    let broken = check_plan(&world.job, &world.seen, &plan);
    assert!(broken.iter().any(expected), "{broken:?}\n{plan:#?}");
}

fn start(world: &JobWorld, instance: u32, worker: u32, attempt: u32) -> Effect {
    Effect::StartWorker {
        instance,
        worker,
        attempt,
        partition: world.job.partition_id(instance),
    }
}

fn launch(world: &JobWorld) -> Effect {
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
fn a_process_is_not_started_twice_nor_without_partition_nor_for_another_attempt() {
    let running = world("workers=2", |_| {});
    let again = start(&running, 0, 0, 0);
    found(
        &running,
        |plan| plan.effects.push(again.clone()),
        |broken| {
            *broken
                == BrokenPlan::StartedTwice {
                    effect: again.clone(),
                }
        },
    );
    let newer = start(&running, 0, 0, 1);
    found(
        &running,
        |plan| plan.effects.push(newer),
        |broken| matches!(broken, BrokenPlan::WrongAttempt { attempt: 0, .. }),
    );
    let fresh = JobWorld::new(["workers=1"]).unwrap();
    let early = start(&fresh, 0, 0, 0);
    found(
        &fresh,
        |plan| plan.effects.push(early),
        |broken| matches!(broken, BrokenPlan::WithoutPartition { .. }),
    );
    let surplus = start(&running, 7, 0, 0);
    found(
        &running,
        |plan| plan.effects.push(surplus),
        |broken| matches!(broken, BrokenPlan::StartedForNothing { .. }),
    );
}

#[test]
fn a_launcher_waits_for_its_workers_and_an_attempt_for_the_one_before() {
    let starting = world("shape=launcher workers=2", |world| {
        let since = world.seen.now;
        world.forget(0, ProcessRole::Launcher);
        world.seen.status.instances[0].launched = None;
        world.process(0, ProcessRole::Worker(1)).unwrap().phase = ProcessPhase::Starting {
            since,
            cause: String::new(),
        };
    });
    let early = launch(&starting);
    found(
        &starting,
        |plan| plan.effects.push(early),
        |broken| matches!(broken, BrokenPlan::LauncherBeforeWorkers { .. }),
    );
    let ending = world("workers=2 restart=OnFailure", |world| {
        world.exits(0, ProcessRole::Worker(1), 1);
        let _ = pass(world);
        world.process(0, ProcessRole::Worker(0)).unwrap().phase = ProcessPhase::Stopping;
        if let PartitionFacts::Active { attempt, .. } = &mut world.instance(0).partition {
            *attempt = 1;
        }
        world.forget(0, ProcessRole::Worker(1));
    });
    let beside = start(&ending, 0, 1, 1);
    found(
        &ending,
        |plan| plan.effects.push(beside),
        |broken| matches!(broken, BrokenPlan::BesideOldProcesses { .. }),
    );
}

#[test]
fn a_back_off_is_waited_for_and_looked_at_again() {
    let pausing = world("restart=OnFailure", |world| {
        world.exits(0, ProcessRole::Worker(0), 1);
        rest(world);
    });
    let early = start(&pausing, 0, 0, 1);
    found(
        &pausing,
        |plan| plan.effects.push(early),
        |broken| matches!(broken, BrokenPlan::DuringBackOff { .. }),
    );
    found(
        &pausing,
        |plan| plan.requeue_after = None,
        |broken| matches!(broken, BrokenPlan::SleepsForEver { .. }),
    );
}

#[test]
fn nothing_is_taken_away_under_a_process_or_without_a_verdict() {
    let running = world("workers=1", |_| {});
    found(
        &running,
        |plan| plan.effects.push(release(&running)),
        |broken| matches!(broken, BrokenPlan::UnderProcesses { .. }),
    );
    found(
        &running,
        |plan| plan.effects.push(STOP),
        |broken| *broken == BrokenPlan::StoppedBeforeVerdict { effect: STOP },
    );
    let done = world("clean=None", |world| {
        world.exits(0, ProcessRole::Worker(0), 0);
        rest(world);
    });
    found(
        &done,
        |plan| plan.effects.push(release(&done)),
        |broken| matches!(broken, BrokenPlan::ReleasedForNothing { .. }),
    );
    found(
        &done,
        |plan| plan.effects.push(STOP),
        |broken| matches!(broken, BrokenPlan::StoppedForNothing { .. }),
    );
    let judged = world("clean=All", |world| world.exits(0, ProcessRole::Worker(0), 0));
    found(
        &judged,
        |plan| plan.effects.push(STOP),
        |broken| *broken == BrokenPlan::ActedBeforeRecord { effect: STOP },
    );
}

#[test]
fn an_instance_that_has_ended_makes_room_for_one_in_the_line_and_not_without() {
    let in_line = |clean: &str| {
        world(&format!("instances=1 clean={clean}"), |world| {
            world.capacity = CapacityState::Full;
            world.change(["instances=2"]).unwrap();
            rest(world);
            world.exits(0, ProcessRole::Worker(0), 0);
            // The verdict is recorded.
            let _ = pass(world);
        })
    };
    for clean in ["None", "Workers", "All"] {
        let waits = in_line(clean);
        assert!(plan_of(&waits).effects.contains(&release(&waits)), "{clean}");
        found(
            &waits,
            |plan| plan.effects.clear(),
            |broken| *broken == BrokenPlan::LeftInLine { instance: 0 },
        );
    }
    let alone = world("instances=2 clean=None", |world| {
        world.exits(0, ProcessRole::Worker(0), 0);
        rest(world);
    });
    found(
        &alone,
        |plan| plan.effects.push(release(&alone)),
        |broken| matches!(broken, BrokenPlan::ReleasedForNothing { .. }),
    );
    let serving = world("shape=launcher instances=1 clean=None", |world| {
        world.capacity = CapacityState::Full;
        world.change(["instances=2"]).unwrap();
        rest(world);
        world.exits(0, ProcessRole::Launcher, 0);
        let _ = pass(world);
    });
    found(
        &serving,
        |plan| plan.effects.clear(),
        |broken| *broken == BrokenPlan::LeftRunning { instance: 0 },
    );
}

#[test]
fn a_deleted_job_is_let_go_of_when_and_only_when_nothing_is_left() {
    let deleted = world("workers=1", |world| world.seen.deleted = true);
    found(
        &deleted,
        |plan| plan.effects.clear(),
        |broken| *broken == BrokenPlan::LeftBehind { instance: 0 },
    );
    found(
        &deleted,
        |plan| plan.effects.push(Effect::Finalize),
        |broken| *broken == BrokenPlan::FinalizedEarly,
    );
    let mut gone = JobWorld::new([""; 0]).unwrap();
    gone.seen.deleted = true;
    found(
        &gone,
        |plan| plan.effects.clear(),
        |broken| *broken == BrokenPlan::NotFinalized,
    );
}

#[test]
fn a_job_expires_when_and_only_when_its_time_is_over_and_nothing_is_left() {
    let running = world("workers=1 keep=10", |_| ());
    let finished = world("workers=1 keep=10", |world| {
        world.exits(0, ProcessRole::Worker(0), 0);
        let _ = pass(world);
        world.after(Duration::from_secs(10));
    });
    for early in [running, finished.clone()] {
        found(
            &early,
            |plan| plan.expired = true,
            |broken| *broken == BrokenPlan::WrongExpiry,
        );
    }
    let mut over = finished;
    over.seen.instances.clear();
    found(
        &over,
        |plan| plan.expired = false,
        |broken| *broken == BrokenPlan::WrongExpiry,
    );
}

#[test]
fn surplus_instances_go_highest_first_and_processes_before_partitions() {
    let shrinking = world("instances=3", |world| {
        world.change(["instances=0"]).unwrap();
        let _ = pass(world);
    });
    found(
        &shrinking,
        |plan| plan.effects.reverse(),
        |broken| matches!(broken, BrokenPlan::OutOfOrder { .. }),
    );
    found(
        &shrinking,
        |plan| plan.effects.extend(plan.effects.clone()),
        |broken| matches!(broken, BrokenPlan::Twice { .. }),
    );
}

#[test]
fn a_status_neither_forgets_nor_contradicts_itself_and_says_why() {
    let done = world("clean=None", |world| {
        world.exits(0, ProcessRole::Worker(0), 0);
        rest(world);
    });
    let spoil: [fn(&mut Plan); 5] = [
        |plan| plan.status.phase = JobPhase::Running,
        |plan| plan.status.ipus_held = 0,
        |plan| plan.status.instances[0].outcome = Some(InstanceOutcome::Failed(1)),
        |plan| plan.status.restarts += 1,
        |plan| plan.status.message.clear(),
    ];
    for spoil in spoil {
        found(&done, spoil, |broken| matches!(broken, BrokenPlan::Status { .. }));
    }
    found(
        &done,
        |plan| plan.reasons.clear(),
        |broken| *broken == BrokenPlan::NoReason,
    );
}
