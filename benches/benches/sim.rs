//! Cost of a simulation run of a small system: schedulers, ledgers, controllers and jobs with faults, from
//! the seed to the end of all jobs.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ipu_testkit::{SimOptions, simulate};

/// Seeds per run: simulated systems differ much in size.
const SEEDS: u64 = 64;

fn benchmark_simulation(criterion: &mut Criterion) {
    let options = SimOptions::default();
    let jobs: u64 = (0..SEEDS)
        .map(|seed| simulate(seed, &options).expect("the simulation passes").jobs)
        .sum();
    let mut group = criterion.benchmark_group("simulated");
    group.sample_size(10);
    group.throughput(Throughput::Elements(jobs));
    group.bench_function("job life", |bencher| {
        bencher.iter(|| {
            for seed in 0..SEEDS {
                black_box(simulate(black_box(seed), &options).expect("the simulation is deterministic"));
            }
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = ipu_bench::short();
    targets = benchmark_simulation
}
criterion_main!(benches);
