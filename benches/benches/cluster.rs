//! Throughput of concurrent IPUJobs on a real control plane with fake nodes: start rate, latency, and API
//! writes per job.
//!
//! Operator and proxy are local processes with the RBAC and webhooks of `deploy/kubernetes`. They are built
//! in release mode, or named by `IPU_OPERATOR` and `VIPU_PROXY`. The same run measures two baselines: Pods
//! without a controller, and IPUJobs managed by a minimal program of this benchmark. `IPU_BENCH_JOBS`
//! (1000) sets the number of jobs, and the arguments `Pod`, `Worker`, `Minimal` and `Launcher` choose loads.
//! `cargo xtask bench-cluster` runs the benchmark.

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::time::{Duration, Instant};

use ipu_bench::cluster::{Installed, LoadFixture, LoadKind, MinimalController, RunTimings, Writes};
use ipu_bench::{percentile, program};

/// Repetitions of a single creation on an idle system.
const SINGLE_REPETITIONS: u32 = 10;
/// Time without a write after which writing counts as finished.
const SETTLE_TIME: Duration = Duration::from_secs(1);

async fn measure(installed: &Installed, kind: LoadKind, count: u32) {
    let load = LoadFixture::of(installed, kind).await;
    let from = Writes::end(&installed.audit());
    let before = [installed.operator.usage(), installed.proxy.usage()];
    let timings = load.run(count).await;
    print(kind, count, &timings);
    // Events are written last.
    let tail = wait_until_quiet(installed).await;
    let after = [installed.operator.usage(), installed.proxy.usage()];
    let writes = Writes::since(&installed.audit(), from);
    println!("  last write {:.1} s after the last start", tail.as_secs_f64());
    for (name, before, after) in [("operator", before[0], after[0]), ("proxy", before[1], after[1])] {
        println!(
            "  {name}: {:.1} s CPU time, peak {:.0} MiB",
            after.cpu - before.cpu,
            after.peak
        );
    }
    let per_job = |writes: u64| f64::from(u32::try_from(writes).unwrap_or(u32::MAX)) / f64::from(count);
    println!(
        "  writes per job by operator and proxy: {:.2}",
        per_job(product_writes(&writes))
    );
    let list = |writes: &Writes| {
        for ((account, operation), number) in &writes.0 {
            println!("    {:8.3}  {account}: {operation}", per_job(*number));
        }
    };
    list(&writes);
    let from = Writes::end(&installed.audit());
    println!("  all deleted after {:.1} s", load.delete().await.as_secs_f64());
    wait_until_quiet(installed).await;
    let writes = Writes::since(&installed.audit(), from);
    println!(
        "  writes per deletion by operator and proxy: {:.2}",
        per_job(product_writes(&writes))
    );
    list(&writes);
}

fn product_writes(writes: &Writes) -> u64 {
    writes.count_of("ipu-operator-controller") + writes.count_of("ipu-operator-vipu-proxy")
}

/// Waits until operator and proxy have written nothing for [`SETTLE_TIME`]; returns the time until the last
/// write.
async fn wait_until_quiet(installed: &Installed) -> Duration {
    let started = Instant::now();
    let from = Writes::end(&installed.audit());
    let (mut written, mut last_write) = (0, started);
    while last_write.elapsed() < SETTLE_TIME {
        tokio::time::sleep(SETTLE_TIME / 10).await;
        let now = product_writes(&Writes::since(&installed.audit(), from));
        if now > written {
            (written, last_write) = (now, Instant::now());
        }
    }
    last_write - started
}

fn print(kind: LoadKind, count: u32, timings: &RunTimings) {
    println!(
        "{kind:?}: {count} running after {:.1} s, {:.1}/s; latency p50 {:.2} s, p99 {:.2} s",
        timings.all.as_secs_f64(),
        f64::from(count) / timings.all.as_secs_f64(),
        percentile(&timings.each, 0.5).as_secs_f64(),
        percentile(&timings.each, 0.99).as_secs_f64(),
    );
}

async fn single(installed: &Installed, kind: LoadKind) {
    let load = LoadFixture::of(installed, kind).await;
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..SINGLE_REPETITIONS {
        times.push(load.run(1).await.all);
        load.delete().await;
    }
    times.sort_unstable();
    println!(
        "{kind:?} alone, {SINGLE_REPETITIONS} times: latency p50 {:.0} ms, maximum {:.0} ms",
        percentile(&times, 0.5).as_secs_f64() * 1000.0,
        percentile(&times, 1.0).as_secs_f64() * 1000.0,
    );
}

#[tokio::main]
async fn main() {
    // `cargo test` must not run the benchmark.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let count = std::env::var("IPU_BENCH_JOBS").map_or(1000, |text| text.parse().expect("a number"));
    let operator = program("ipu-operator", "IPU_OPERATOR");
    let proxy = program("vipu-proxy", "VIPU_PROXY");
    let Some(installed) = Installed::start(&operator, &proxy).await else {
        return;
    };
    let names: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let is_chosen =
        |kind: &LoadKind| names.is_empty() || names.iter().any(|name| format!("{kind:?}") == *name);
    let singles = [LoadKind::Pod, LoadKind::Worker, LoadKind::Launcher];
    for kind in singles.into_iter().filter(is_chosen) {
        single(&installed, kind).await;
    }
    let all = [
        LoadKind::Pod,
        LoadKind::Worker,
        LoadKind::Minimal,
        LoadKind::Launcher,
        LoadKind::Pod,
    ];
    for kind in all.into_iter().filter(is_chosen) {
        let controller = match kind {
            LoadKind::Minimal => Some(MinimalController::start(&installed).await),
            _ => None,
        };
        measure(&installed, kind, count).await;
        drop(controller);
    }
}
