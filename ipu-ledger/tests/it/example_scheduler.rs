//! The example scheduler as a process of its own, killed for real.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// The example, which cargo builds before it runs the tests of this crate.
fn example() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let target = test
        .ancestors()
        .find(|path| path.join("examples").is_dir())
        .unwrap();
    target.join("examples").join("embed_scheduler")
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

/// Starts the scheduler, reads until `line` is said, and kills it.
fn kill_at(directory: &Path, jobs: &[&str], line: &str) {
    let mut child: Child = scheduler(directory, jobs).spawn().unwrap();
    let said = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .any(|said| said.unwrap().contains(line));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(said, "it never said {line:?}");
}

#[test]
fn competing_jobs_are_served_one_after_the_other_and_nothing_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let said = finish(directory.path(), &["a:16", "b:16", "c:16"]);
    assert_eq!(said.matches("is done").count(), 3, "{said}");
    assert!(said.contains("waits at 1: "), "{said}");
    assert!(said.ends_with("0 partitions are left\n"), "{said}");
}

#[test]
fn a_killed_scheduler_leaves_nothing_that_the_next_one_does_not_give_back() {
    let directory = tempfile::tempdir().unwrap();
    for line in ["a runs on", "waits at", "a runs on", "is done"] {
        kill_at(directory.path(), &["a:8", "b:8", "c:8"], line);
    }
    let said = finish(directory.path(), &["d:16"]);
    assert!(said.contains("repaired: "), "{said}");
    assert!(said.contains("d runs on"), "{said}");
    assert!(said.ends_with("0 partitions are left\n"), "{said}");
}
