//! Kills `ipuctl run` at its system calls: after `ipuctl gc` no partition is held, no process runs, and no
//! IPU was held twice. A file lock detects the latter: a worker and its descendants share it while they use
//! the partition, and a worker that finds it locked has received IPUs that another one still uses.

#[expect(dead_code, reason = "the proxy's tests also attach to running processes")]
#[path = "../../../vipu-proxy/tests/it/kill_points/tracer.rs"]
mod tracer;

use std::process::Command;
use std::time::Duration;

use self::tracer::Tracing;
use crate::harness::{Home, Running, finish, job};

/// Returns a script that holds the lock during `command`, and records a partition whose lock was held.
fn locking(home: &Home, command: &str) -> String {
    let (lock, twice) = (home.path("lock"), home.path("twice"));
    format!(
        "exec 9>>'{}'; flock -n 9 || echo \"$IPUOF_VIPU_API_PARTITION_ID\" >> '{}'; {command}",
        lock.display(),
        twice.display()
    )
}

/// Returns a command that traces `ipuctl` with its threads, but not the programs that it starts.
fn traced(tracing: &Tracing, ipuctl: &Command) -> Command {
    let mut strace = tracing.command().into_std();
    strace
        .args(["--detach-on=execve", "--"])
        .arg(ipuctl.get_program())
        .args(ipuctl.get_args());
    for (name, value) in ipuctl.get_envs() {
        match value {
            Some(value) => strace.env(name, value),
            None => strace.env_remove(name),
        };
    }
    strace
}

#[test]
fn a_kill_at_any_system_call_leaves_no_process_and_no_ipu_is_held_twice() {
    if !tracer::is_available("a_kill_at_any_system_call_leaves_no_process_and_no_ipu_is_held_twice") {
        return;
    }
    let home = Home::new();
    let detached = locking(&home, "setsid sleep 600 & (setsid sleep 600 &); sleep 0.2");
    let victim = home.file("victim.yaml", &job("victim", 16, &detached));
    let next = home.file("next.yaml", &job("next", 16, &locking(&home, "true")));
    let run = home.command(&["run", victim.to_str().unwrap()]);
    let trace = home.path("trace");
    let counted = finish(traced(&Tracing::Count(trace.clone()), &run));
    assert_eq!(counted.code, 0, "{counted:?}");
    let all = tracer::injections(&std::fs::read_to_string(trace).unwrap());
    let mut killed = 0;
    for (number, injection) in all.iter().enumerate() {
        let (code, _) = Running::start(traced(&Tracing::Kill(injection.clone()), &run)).end();
        killed += usize::from(code == 128 + 9);
        if number % 2 == 1 {
            kill_supervisors(&home);
        }
        // The next run, or `gc`, finds an arbitrary state.
        if number % 4 < 2 {
            let after = home.run(&["run", next.to_str().unwrap(), "--grace", "1"]);
            assert_eq!(after.code, 0, "kill at {injection}: {after:?}");
        }
        let swept = home.run(&["gc"]);
        assert_eq!(swept.code, 0, "kill at {injection}: {swept:?}");
        let is_held_twice = home.path("twice").exists();
        assert!(!is_held_twice, "kill at {injection}: IPUs were held twice");
        home.assert_nothing_held();
        assert_eq!(home.processes(), Vec::<String>::new(), "kill at {injection}");
    }
    println!("{} points, {killed} killed", all.len());
    // On a busy machine, the counted run makes more calls than the killed ones.
    assert!(killed > all.len() / 3, "many points must be reached");
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
