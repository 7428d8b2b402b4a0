//! `ipuctl run` of a job whose one worker is `true`, from exec to exit, against plain `true`.
//!
//! It runs on the simulated Pod, whose state is a file, with a state directory that earlier runs have used. The `ipuctl` is
//! the one that the variable IPUCTL names, or else one that is built in release mode now.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use criterion::{Criterion, SamplingMode, criterion_group, criterion_main};

const JOB: &str = "apiVersion: graphcore.ai/v1alpha1
kind: IPUJob
metadata:
  name: bench
spec:
  jobInstances: 1
  ipusPerJobInstance: \"1\"
  workers:
    replicas: 1
    template:
      spec:
        containers:
          - name: worker
            image: none
            command: [\"true\"]
";

/// The program that is measured.
fn ipuctl() -> PathBuf {
    if let Some(path) = std::env::var_os("IPUCTL") {
        return path.into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--release", "--package", "ipuctl"])
        .current_dir(&root)
        .status();
    assert!(built.is_ok_and(|status| status.success()), "ipuctl is built");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    target.join("release/ipuctl")
}

fn run(command: &mut Command) {
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(
        status.as_ref().is_ok_and(std::process::ExitStatus::success),
        "{command:?}: {status:?}"
    );
}

fn runs(criterion: &mut Criterion) {
    let home = tempfile::tempdir().expect("a directory");
    let job = home.path().join("job.yaml");
    std::fs::write(&job, JOB).expect("a file");
    let ipuctl = ipuctl();
    let mut with_ipu = Command::new(&ipuctl);
    with_ipu
        .arg("--state-dir")
        .arg(home.path().join("state"))
        .arg("run")
        .arg(&job);
    with_ipu.env_remove("IPUOF_VIPU_API_HOST");
    let mut group = criterion.benchmark_group("run");
    // One run to a sample, so that the samples have a 95th percentile.
    group
        .sampling_mode(SamplingMode::Flat)
        .sample_size(100)
        .measurement_time(Duration::from_millis(100));
    group.bench_function("true", |bencher| bencher.iter(|| run(&mut Command::new("true"))));
    group.bench_function("ipuctl run of true", |bencher| {
        bencher.iter(|| run(&mut with_ipu))
    });
    group.finish();
}

criterion_group!(benches, runs);
criterion_main!(benches);
