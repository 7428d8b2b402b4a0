//! Cost of one planner decision for one job, at typical points of its life cycle.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use ipu_core::job::{JobPhase, plan};

#[allow(dead_code, reason = "the benchmark uses a part of the model")]
#[path = "../../ipu-core/tests/it/lifecycle/world.rs"]
mod world;

use world::{JobWorld, ProcessRole};

/// Reconciles until the job is stable.
fn settle(mut world: JobWorld) -> JobWorld {
    for _ in 0..20 {
        let plan = plan(&world.job, &world.observation);
        world.reconcile(&plan).expect("a plan that shares nothing");
        world.progress();
    }
    world
}

fn running(options: &str) -> JobWorld {
    let world = settle(JobWorld::new(options.split(' ')).expect("a job"));
    assert_eq!(world.observation.status.phase, JobPhase::Running, "{options}");
    world
}

/// Returns a job with a failed worker, at the reconciliation that stops the rest of the attempt.
fn restarting() -> JobWorld {
    let mut world = running("workers=4 restart=OnFailure");
    world.after(Duration::from_secs(60));
    world.exits(0, ProcessRole::Worker(2), 1);
    let plan = plan(&world.job, &world.observation);
    world.reconcile(&plan).expect("a plan that shares nothing");
    assert_eq!(world.observation.status.phase, JobPhase::Restarting);
    world
}

fn finished() -> JobWorld {
    let mut world = running("workers=2");
    for worker in 0..2 {
        world.exits(0, ProcessRole::Worker(worker), 0);
    }
    let world = settle(world);
    assert_eq!(world.observation.status.phase, JobPhase::Completed);
    world
}

fn benchmark_states(criterion: &mut Criterion) {
    let new = JobWorld::new(["workers=2"]).expect("a job");
    let mut group = criterion.benchmark_group("plan");
    for (state, world) in [
        ("new job", new),
        ("running, 1 instance of 2 workers", running("workers=2")),
        ("running, 64 instances of 1 worker", running("instances=64")),
        ("restart after a failure, 4 workers", restarting()),
        ("finished", finished()),
    ] {
        group.bench_function(state, |bencher| {
            bencher.iter(|| plan(black_box(&world.job), black_box(&world.observation)));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = ipu_bench::short();
    targets = benchmark_states
}
criterion_main!(benches);
