//! IPUJobs at once on a real control plane with nodes that run nothing: how fast they run, and what is written for each.
//!
//! Operator and proxy are processes of this machine with the rights of `deploy/kubernetes` and its webhooks, built in release
//! mode now, or those that `IPU_OPERATOR` and `VIPU_PROXY` name. Beside them, in the same run, Kubernetes Pods that nobody
//! works on, and IPUJobs for which a program of this benchmark does as little as it can.
//! `IPU_BENCH_JOBS` (1000) says how many. `cargo xtask bench-cluster` runs it.

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ipu_bench::cluster::{Crowd, Installed, Least, LoadKind, Took, Writes};
use ipu_bench::percentile;

/// How often a single object is created on an idle system.
const SINGLE: u32 = 10;
/// How long nothing is written when all is written.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// A program of this workspace.
fn program(package: &str, variable: &str) -> PathBuf {
    if let Some(path) = std::env::var_os(variable) {
        return path.into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--release", "--package", package])
        .current_dir(&root)
        .status();
    assert!(built.is_ok_and(|status| status.success()), "{package} is built");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    target.join("release").join(package)
}

async fn measure(installed: &Installed, kind: LoadKind, many: u32) {
    let crowd = Crowd::of(installed, kind).await;
    let from = Writes::end(&installed.audit());
    let before = [installed.operator.spent(), installed.proxy.spent()];
    let took = crowd.run(many).await;
    print(kind, many, &took);
    // Events are written when nothing else is to be done.
    let rest = quiet(installed).await;
    let after = [installed.operator.spent(), installed.proxy.spent()];
    let writes = Writes::since(&installed.audit(), from);
    println!("  the last write {:.1} s after the last ran", rest.as_secs_f64());
    for (name, before, after) in [("operator", before[0], after[0]), ("proxy", before[1], after[1])] {
        println!(
            "  {name}: {:.1} s of processor time, at most {:.0} MiB",
            after.cpu - before.cpu,
            after.peak
        );
    }
    let per_job = |count: u64| f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / f64::from(many);
    println!(
        "  writes a job by operator and proxy: {:.2}",
        per_job(ours(&writes))
    );
    let list = |writes: &Writes| {
        for ((who, what), count) in &writes.0 {
            println!("    {:8.3}  {who}: {what}", per_job(*count));
        }
    };
    list(&writes);
    let from = Writes::end(&installed.audit());
    println!("  all gone after {:.1} s", crowd.delete().await.as_secs_f64());
    quiet(installed).await;
    let writes = Writes::since(&installed.audit(), from);
    println!(
        "  writes for its end by operator and proxy: {:.2}",
        per_job(ours(&writes))
    );
}

fn ours(writes: &Writes) -> u64 {
    writes.by("ipu-operator-controller") + writes.by("ipu-operator-vipu-proxy")
}

/// Waits until operator and proxy have written nothing for [`QUIET`]; how long they went on.
async fn quiet(installed: &Installed) -> Duration {
    let begun = Instant::now();
    let from = Writes::end(&installed.audit());
    let (mut written, mut last) = (0, begun);
    while last.elapsed() < SETTLE_TIME {
        tokio::time::sleep(SETTLE_TIME / 10).await;
        let now = ours(&Writes::since(&installed.audit(), from));
        if now > written {
            (written, last) = (now, Instant::now());
        }
    }
    last - begun
}

fn print(kind: LoadKind, many: u32, took: &Took) {
    println!(
        "{kind:?}: {many} run after {:.1} s, {:.1}/s; each after p50 {:.2} s, p99 {:.2} s",
        took.all.as_secs_f64(),
        f64::from(many) / took.all.as_secs_f64(),
        percentile(&took.each, 0.5).as_secs_f64(),
        percentile(&took.each, 0.99).as_secs_f64(),
    );
}

async fn single(installed: &Installed, kind: LoadKind) {
    let crowd = Crowd::of(installed, kind).await;
    let mut all: Vec<Duration> = Vec::new();
    for _ in 0..SINGLE {
        all.push(crowd.run(1).await.all);
        crowd.delete().await;
    }
    all.sort_unstable();
    println!(
        "{kind:?} alone, {SINGLE} times: runs after p50 {:.0} ms, at most {:.0} ms",
        percentile(&all, 0.5).as_secs_f64() * 1000.0,
        percentile(&all, 1.0).as_secs_f64() * 1000.0,
    );
}

#[tokio::main]
async fn main() {
    // `cargo test` asks for what is no test.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let many = std::env::var("IPU_BENCH_JOBS").map_or(1000, |text| text.parse().expect("a number"));
    let operator = program("ipu-operator", "IPU_OPERATOR");
    let proxy = program("vipu-proxy", "VIPU_PROXY");
    let Some(installed) = Installed::start(&operator, &proxy).await else {
        return;
    };
    for kind in [LoadKind::Pod, LoadKind::Worker, LoadKind::Launcher] {
        single(&installed, kind).await;
    }
    for kind in [LoadKind::Pod, LoadKind::Worker] {
        measure(&installed, kind, many).await;
    }
    {
        let _least = Least::start(&installed).await;
        measure(&installed, LoadKind::Least, many).await;
    }
    for kind in [LoadKind::Launcher, LoadKind::Pod] {
        measure(&installed, kind, many).await;
    }
}
