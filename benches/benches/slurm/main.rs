//! Hooks of Slurm against scripts that do the same, jobs with and without the hooks, and `srun true` with
//! and without the SPANK plugin. The two of each pair run in turns; the output has quartiles and ratios.
//!
//! All but the first two rows need root and Slurm; `IPU_TEST_SLURM_TREE` names the tree of another version.
//! `IPU_SLURM` names the program, with `libspank_vipu.so` next to it; the default is a static release build.
//! `IPU_BENCH_PAIRS` (300) is the number of pairs. An argument selects the measurements whose names contain
//! it.

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

mod controller;
mod jobs;
mod node_hooks;
mod node_in_slurm;
mod turns;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ipu_bench::{percentile, target};
use ipu_test_cluster::{build_libraries, build_static};

/// Runs a command that must succeed, and returns its duration. `expected` is a part of its output.
fn time(mut command: Command, expected: &str) -> Duration {
    command.stdin(Stdio::null());
    let started = Instant::now();
    let output = command.output().expect("the command starts");
    let elapsed = started.elapsed();
    assert!(
        output.status.success() && String::from_utf8_lossy(&output.stdout).contains(expected),
        "{command:?}: {output:?}"
    );
    elapsed
}

/// Prints the quartiles of two interleaved series, and the ratio of their medians.
fn print_row(name: &str, mut own: Vec<Duration>, mut other: Vec<Duration>) {
    own.sort_unstable();
    other.sort_unstable();
    let milliseconds = |series: &[Duration], share| percentile(series, share).as_secs_f64() * 1_000.0;
    let quartiles = |series: &[Duration]| {
        let [low, median, high] = [0.25, 0.5, 0.75].map(|share| milliseconds(series, share));
        format!("{median:.2} ({low:.2} to {high:.2})")
    };
    let ratio = milliseconds(&own, 0.5) / milliseconds(&other, 0.5);
    println!(
        "| {name} | {} | {} | {ratio:.2} |",
        quartiles(&own),
        quartiles(&other)
    );
}

/// Returns the program, and builds it as `cargo xtask package slurm` does unless the environment names one.
fn program() -> PathBuf {
    if let Some(path) = std::env::var_os("IPU_SLURM") {
        return path.into();
    }
    let build = std::path::absolute(target())
        .expect("a folder")
        .join("bundle/build");
    let programs = build_static(&build, &["ipu-slurm-hooks"]).unwrap_or_else(|error| panic!("{error}"));
    let libraries = build_libraries(&build, &["ipu-slurm-spank"]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(programs, libraries);
    programs.join("ipu-slurm")
}

fn proxy() -> PathBuf {
    ipu_bench::program("vipu-proxy", "VIPU_PROXY")
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test` runs the program with this argument.
    if arguments.iter().any(|argument| argument == "--test") {
        return;
    }
    let selected = |name: &str| {
        let mut words = arguments.iter().filter(|word| !word.starts_with('-')).peekable();
        words.peek().is_none() || words.any(|word| name.contains(word.as_str()))
    };
    let pairs = std::env::var("IPU_BENCH_PAIRS").map_or(300, |text| text.parse().expect("a number"));
    let program = program();
    println!("| {pairs} pairs | ms, median (quartiles) | against | ratio |\n|---|---|---|---|");
    if selected("hooks") {
        node_hooks::measure(&program, pairs);
    }
    if selected("scontrol") {
        node_in_slurm::measure(&program, pairs);
    }
    if selected("controller") {
        controller::measure(&program, &proxy(), pairs);
    }
    if selected("jobs") {
        jobs::measure_rate(&program, &proxy());
    }
    if selected("srun") {
        jobs::measure_plugin(&program, pairs);
    }
}
