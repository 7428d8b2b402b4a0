//! `ipuctl run` of a job whose one worker is `true`, from exec to exit, against plain `true`.
//!
//! The job runs on the simulated IPU-POD, whose state is a file, with a state directory of earlier runs.
//! The variable IPUCTL names the `ipuctl`; the default is a release build.

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

fn benchmark_run(criterion: &mut Criterion) {
    let directory = tempfile::tempdir().expect("a directory");
    let job = directory.path().join("job.yaml");
    std::fs::write(&job, JOB).expect("a file");
    let ipuctl = ipu_bench::program("ipuctl", "IPUCTL");
    let mut with_ipu = Command::new(&ipuctl);
    with_ipu
        .arg("--state-dir")
        .arg(directory.path().join("state"))
        .arg("run")
        .arg(&job);
    with_ipu.env_remove("IPUOF_VIPU_API_HOST");
    let mut group = criterion.benchmark_group("run");
    // One run per sample, so that the samples have a 95th percentile.
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

criterion_group!(benches, benchmark_run);
criterion_main!(benches);
