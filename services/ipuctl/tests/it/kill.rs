//! Kills `ipuctl run` with SIGKILL at random points: after `ipuctl gc` no partition is held, no process runs,
//! and no IPU was held twice. A file lock detects the latter: a worker and its descendants share it while
//! they use the partition, and a worker that finds it locked has received IPUs that another one still uses.

use std::process::Command;
use std::time::Duration;

use crate::harness::{Home, Running, finish, job};

/// Number of kills.
const KILLS: u64 = 20;
/// Maximum time from start to kill: after the start of the workers, which takes tens of milliseconds on an
/// idle host.
const MAX_DELAY_MILLIS: u64 = 250;

/// Returns reproducible pseudo-random numbers (SplitMix64).
fn random(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns a script that holds the lock during `command`, and records a partition whose lock was held.
fn locking(home: &Home, command: &str) -> String {
    let (lock, twice) = (home.path("lock"), home.path("twice"));
    format!(
        "exec 9>>'{}'; flock -n 9 || echo \"$IPUOF_VIPU_API_PARTITION_ID\" >> '{}'; {command}",
        lock.display(),
        twice.display()
    )
}

#[test]
fn twenty_kills_leave_no_process_and_no_ipu_is_held_twice() {
    let home = Home::new();
    let detached = locking(&home, "setsid sleep 600 & (setsid sleep 600 &); sleep 600");
    let victim = home.file("victim.yaml", &job("victim", 16, &detached));
    let next = home.file("next.yaml", &job("next", 16, &locking(&home, "true")));
    for point in 0..KILLS {
        let delay = Duration::from_millis(random(point) % MAX_DELAY_MILLIS);
        let mut killed = Running::start(home.command(&["run", victim.to_str().unwrap()]));
        // Varies the point of the kill.
        std::thread::sleep(delay);
        killed.process.kill().unwrap();
        // `gc` ignores a run that has not ended yet.
        killed.process.wait().unwrap();
        if point % 2 == 1 {
            kill_supervisors(&home);
        }
        // The next run, or `gc`, finds an arbitrary state.
        if point % 4 < 2 {
            let after = home.run(&["run", next.to_str().unwrap(), "--grace", "1"]);
            assert_eq!(after.code, 0, "kill {point} after {delay:?}: {after:?}");
        }
        let swept = home.run(&["gc"]);
        assert_eq!(swept.code, 0, "kill {point} after {delay:?}: {swept:?}");
        killed.end();
        assert!(
            !home.path("twice").exists(),
            "kill {point} after {delay:?}: IPUs were held twice"
        );
        home.assert_nothing_held();
        assert_eq!(
            home.processes(),
            Vec::<String>::new(),
            "kill {point} after {delay:?}"
        );
    }
    let files: Vec<_> = std::fs::read_dir(home.path(".local/state/ipuctl/runs"))
        .unwrap()
        .collect();
    assert!(files.is_empty(), "files of runs remain: {files:?}");
}

#[test]
fn a_queued_run_starts_once_the_run_ahead_is_killed() {
    let home = Home::new();
    let detached = locking(&home, "setsid sleep 600 & echo ready; sleep 600");
    let ahead = home.file("ahead.yaml", &job("ahead", 16, &detached));
    let behind = home.file("behind.yaml", &job("behind", 16, &locking(&home, "true")));
    let mut killed = Running::start(home.command(&["run", ahead.to_str().unwrap()]));
    killed.wait_for("worker-0 | ready");
    let mut queued = Running::start(home.command(&["run", behind.to_str().unwrap()]));
    queued.wait_for("position 1");
    killed.process.kill().unwrap();
    kill_supervisors(&home);
    let (code, output) = queued.end();
    assert_eq!(code, 0, "{output:#?}");
    assert!(!home.path("twice").exists(), "IPUs were held twice");
    assert_eq!(home.processes(), Vec::<String>::new());
    home.assert_nothing_held();
}

fn kill_supervisors(home: &Home) {
    for process in home.processes() {
        if process.contains("__supervise") {
            let pid = process.split(' ').next().unwrap().to_owned();
            // It may have ended meanwhile.
            finish({
                let mut kill = Command::new("kill");
                kill.args(["-9", &pid]);
                kill
            });
        }
    }
}

#[test]
fn the_worker_of_a_killed_supervisor_is_ended() {
    let home = Home::new();
    let file = home.file(
        "job.yaml",
        &job("lost", 4, "setsid sleep 600 & echo ready; sleep 600"),
    );
    let mut run = Running::start(home.command(&["run", file.to_str().unwrap()]));
    run.wait_for("worker-0 | ready");
    kill_supervisors(&home);
    let (code, output) = run.end();
    assert_ne!(code, 0, "{output:#?}");
    assert_eq!(home.processes(), Vec::<String>::new());
    home.assert_nothing_held();
}

#[test]
fn gc_reports_processes_and_partitions_of_killed_runs_in_one_line() {
    let home = Home::new();
    assert_eq!(
        home.run(&["gc"]).out,
        "0 processes ended, 0 partitions released\n"
    );
    let file = home.file("job.yaml", &job("killed", 4, "echo ready; exec sleep 600"));
    let mut run = Running::start(home.command(&["run", file.to_str().unwrap()]));
    run.wait_for("worker-0 | ready");
    // A stopped `ipuctl` does not handle the end of the supervisor, so that the worker is left.
    run.signal("-STOP");
    kill_supervisors(&home);
    while home
        .processes()
        .iter()
        .any(|process| process.contains("__supervise"))
    {
        std::thread::sleep(Duration::from_millis(5));
    }
    run.process.kill().unwrap();
    run.process.wait().unwrap();
    let swept = home.run(&["gc"]);
    assert_eq!(
        (swept.code, swept.out.as_str(), swept.err.as_str()),
        (0, "1 process ended, 1 partition released\n", ""),
        "{swept:?}"
    );
    run.end();
    home.assert_nothing_held();
    assert_eq!(home.json(&["list"])[0]["phase"], "Killed");
}
