//! kill -9 of `ipuctl run` at random points: after `ipuctl gc` nothing is held, nothing runs, and nothing was ever held
//! twice. It is the kernel's file lock that says so: a worker and all that it started share it while they use the
//! partition, and whoever finds it taken has been given IPUs that another one still uses.

use std::process::Command;
use std::time::Duration;

use crate::harness::{Home, Running, finish, job};

/// How often a run is killed.
const POINTS: u64 = 20;
/// The longest time from start to kill: past the start of the workers, which takes some ten milliseconds on an idle host.
const LATEST_MILLIS: u64 = 250;

/// Numbers that look random and are the same each time (SplitMix64).
fn number(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn locking(home: &Home, then: &str) -> String {
    let (lock, twice) = (home.path("lock"), home.path("twice"));
    format!(
        "exec 9>>'{}'; flock -n 9 || echo \"$IPUOF_VIPU_API_PARTITION_ID\" >> '{}'; {then}",
        lock.display(),
        twice.display()
    )
}

#[test]
fn twenty_kills_leave_nothing_behind_and_nothing_is_held_twice() {
    let home = Home::new();
    let stays = locking(&home, "setsid sleep 600 & (setsid sleep 600 &); sleep 600");
    let victim = home.file("victim.yaml", &job("victim", 16, &stays));
    let next = home.file("next.yaml", &job("next", 16, &locking(&home, "true")));
    for point in 0..POINTS {
        let delay = Duration::from_millis(number(point) % LATEST_MILLIS);
        let mut killed = Running::start(home.command(&["run", victim.to_str().unwrap()]));
        // Not a wait for something: the point of the kill is what is varied.
        std::thread::sleep(delay);
        killed.process.kill().unwrap();
        // A process that is still dying lives, and `gc` leaves it alone.
        killed.process.wait().unwrap();
        if point % 2 == 1 {
            kill_supervisors(&home);
        }
        // The next run, or `gc`, has to cope with whatever there is at this moment.
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
    assert!(files.is_empty(), "files of runs are left: {files:?}");
}

#[test]
fn a_run_that_waits_goes_on_by_itself_when_the_one_ahead_is_killed() {
    let home = Home::new();
    let stays = locking(&home, "setsid sleep 600 & echo ready; sleep 600");
    let ahead = home.file("ahead.yaml", &job("ahead", 16, &stays));
    let behind = home.file("behind.yaml", &job("behind", 16, &locking(&home, "true")));
    let mut killed = Running::start(home.command(&["run", ahead.to_str().unwrap()]));
    killed.wait_for("worker-0 | ready");
    let mut waiting = Running::start(home.command(&["run", behind.to_str().unwrap()]));
    waiting.wait_for("position 1");
    killed.process.kill().unwrap();
    kill_supervisors(&home);
    let (code, seen) = waiting.end();
    assert_eq!(code, 0, "{seen:#?}");
    assert!(!home.path("twice").exists(), "IPUs were held twice");
    assert_eq!(home.processes(), Vec::<String>::new());
    home.assert_nothing_held();
}

fn kill_supervisors(home: &Home) {
    for process in home.processes() {
        if process.contains("__supervise") {
            let pid = process.split(' ').next().unwrap().to_owned();
            // It may have ended by itself meanwhile.
            finish({
                let mut kill = Command::new("kill");
                kill.args(["-9", &pid]);
                kill
            });
        }
    }
}

#[test]
fn a_killed_supervisor_does_not_leave_its_worker_behind() {
    let home = Home::new();
    let file = home.file(
        "job.yaml",
        &job("lost", 4, "setsid sleep 600 & echo ready; sleep 600"),
    );
    let mut run = Running::start(home.command(&["run", file.to_str().unwrap()]));
    run.wait_for("worker-0 | ready");
    kill_supervisors(&home);
    let (code, seen) = run.end();
    assert_ne!(code, 0, "{seen:#?}");
    assert_eq!(home.processes(), Vec::<String>::new());
    home.assert_nothing_held();
}
