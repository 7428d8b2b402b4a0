//! Runs the example scheduler as a separate process and kills it.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// Returns the path of the example, which cargo builds before it runs the tests of this crate.
fn example() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let target = test
        .ancestors()
        .find(|path| path.join("examples").is_dir())
        .unwrap();
    target.join("examples").join("scheduler")
}

fn scheduler(directory: &Path, jobs: &[&str]) -> Command {
    let mut command = Command::new(example());
    command.arg(directory).args(jobs).stdout(Stdio::piped());
    command
}

fn finish(directory: &Path, jobs: &[&str]) -> String {
    let Output { status, stdout, .. } = scheduler(directory, jobs).output().unwrap();
    let text = String::from_utf8(stdout).unwrap();
    assert!(status.success(), "{text}");
    text
}

/// Starts the scheduler, reads its output up to `line`, and kills it.
fn kill_at(directory: &Path, jobs: &[&str], line: &str) {
    let mut child: Child = scheduler(directory, jobs).spawn().unwrap();
    let is_printed = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .any(|text| text.unwrap().contains(line));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(is_printed, "the output has no {line:?}");
}

#[test]
fn competing_jobs_run_one_after_another_and_leave_no_partition() {
    let directory = tempfile::tempdir().unwrap();
    let output = finish(directory.path(), &["a:16", "b:16", "c:16"]);
    assert_eq!(output.matches("is done").count(), 3, "{output}");
    assert!(output.contains(" waits at 1: "), "{output}");
    assert!(output.ends_with("partitions left: 0\n"), "{output}");
}

#[test]
fn a_restarted_scheduler_releases_the_partitions_of_the_killed_one() {
    let directory = tempfile::tempdir().unwrap();
    for line in ["a runs on", "waits at", "a runs on", "is done"] {
        kill_at(directory.path(), &["a:8", "b:8", "c:8"], line);
    }
    // It needs all IPUs.
    let output = finish(directory.path(), &["d:16"]);
    assert!(output.contains("d runs on"), "{output}");
    assert!(output.ends_with("partitions left: 0\n"), "{output}");
}
