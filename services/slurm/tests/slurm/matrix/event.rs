//! Events in the life of a job.

use ipu_test_slurm::Daemon;

use super::cell::{Cell, Command, Event};
use super::job::Job;
use super::way::WayCluster;

/// Runs a job with the event of a cell, and checks what the job saw and how it ended.
pub(crate) fn run(cluster: &mut WayCluster, cell: Cell, number: usize) {
    if cell.event == Event::CancelEarly {
        cancel_early(cluster, cell, number);
        return;
    }
    let mut job = Job::submit(cluster, cell, number);
    let variables = job.wait_for_variables(&cluster.cluster.bed, 0);
    assert_eq!(variables, cluster.expected_variables(), "{}", job.output());
    let state = match cell.event {
        Event::Success => finish(&job, 0),
        Event::Failure => finish(&job, 3),
        Event::CancelEarly | Event::CancelLate => cancel(cluster, &job),
        Event::Requeue => requeue(cluster, &job, cell.command),
        Event::NodeDown | Event::NodeLost => lose_node(cluster, &job, cell),
        Event::SlurmctldKilled => {
            cluster.cluster.wait_for_saved_state(&job.id);
            cluster.cluster.bed.kill_daemon(&Daemon::Slurmctld);
            cluster.cluster.start_slurmctld();
            continue_after_restart(cluster, &job)
        }
        Event::SlurmctldRestarted => {
            cluster.cluster.bed.restart_slurmctld();
            continue_after_restart(cluster, &job)
        }
        Event::SlurmdKilled => {
            let slurmd = Daemon::Slurmd(node_of(cluster, &job));
            cluster.cluster.bed.kill_daemon(&slurmd);
            cluster.cluster.bed.start_daemon(slurmd);
            continue_after_restart(cluster, &job)
        }
        Event::TimeLimit => {
            let id = format!("JobId={}", job.id);
            cluster
                .cluster
                .bed
                .succeed("scontrol", &["update", &id, "EndTime=now+1"]);
            "TIMEOUT"
        }
    };
    wait_for_end(cluster, &mut job, state);
}

/// Waits until the job has ended in a state. The client of a job that Slurm ended may report success, and
/// `salloc` of 24.11 sometimes outlives a job whose node was lost.
fn wait_for_end(cluster: &WayCluster, job: &mut Job, state: &str) {
    cluster.cluster.wait_for_end(&job.id);
    let shown = cluster.cluster.job_value(&job.id, "JobState");
    assert_eq!(shown.split(' ').next(), Some(state), "{}", job.output());
    if ["COMPLETED", "FAILED"].contains(&state)
        && let Some(success) = job.wait_for_client()
    {
        assert_eq!(success, state == "COMPLETED", "{}", job.output());
    }
}

fn finish(job: &Job, code: i32) -> &'static str {
    job.release(code);
    if code == 0 { "COMPLETED" } else { "FAILED" }
}

fn cancel(cluster: &WayCluster, job: &Job) -> &'static str {
    cluster.cluster.bed.succeed("scancel", &[&job.id]);
    "CANCELLED"
}

/// Cancels a job while the hooks of its start run. No other owner leaves IPUs to a partition of the job.
fn cancel_early(cluster: &WayCluster, cell: Cell, number: usize) {
    let slurm = &cluster.cluster;
    let is_waiting = cell.way.has_partition_per_job();
    if is_waiting {
        slurm.take("mnist", 64);
    }
    let mut job = Job::submit(cluster, cell, number);
    slurm.bed.wait_until("the job is being started", || {
        let comment = slurm.job_value(&job.id, "AdminComment");
        !slurm.job_value(&job.id, "JobState").starts_with("PENDING")
            && (!is_waiting || comment.starts_with("vipu: waits"))
    });
    let state = cancel(cluster, &job);
    wait_for_end(cluster, &mut job, state);
    if is_waiting {
        assert!(
            !job.has_started(),
            "a task started without a partition: {}",
            job.output()
        );
        slurm.release("mnist");
    }
}

/// Requeues a job. A batch job starts again, with a partition of the new run.
fn requeue(cluster: &WayCluster, job: &Job, command: Command) -> &'static str {
    let output = cluster.cluster.bed.run("scontrol", &["requeue", &job.id]);
    if command != Command::Sbatch {
        assert!(!output.success, "Slurm requeues batch jobs only: {output:?}");
        assert_runs(cluster, job);
        return finish(job, 0);
    }
    assert!(output.success, "{output:?}");
    cluster.cluster.bed.wait_until("the job runs again", || {
        let state = cluster.cluster.job_value(&job.id, "JobState");
        assert!(!state.contains("held"), "{state}");
        state.starts_with("RUNNING")
    });
    let variables = job.wait_for_variables(&cluster.cluster.bed, 1);
    assert_eq!(variables, cluster.expected_variables(), "{}", job.output());
    cancel(cluster, job)
}

/// Takes the node away from a job. Slurm requeues a batch job, and ends others.
fn lose_node(cluster: &mut WayCluster, job: &Job, cell: Cell) -> &'static str {
    let node = node_of(cluster, job);
    let name = format!("nodename={node}");
    let slurmd = Daemon::Slurmd(node.clone());
    if cell.event == Event::NodeDown {
        let arguments = ["update", &name, "state=down", "reason=test"];
        cluster.cluster.bed.succeed("scontrol", &arguments);
    } else {
        let bed = &mut cluster.cluster.bed;
        bed.kill_daemon(&slurmd);
        // slurmstepd before its tasks: it would report their end.
        let steps = bed.run("pgrep", &["slurmstepd"]).stdout;
        let steps: Vec<&str> = steps.lines().collect();
        let tasks = bed.run("pgrep", &["-P", &steps.join(",")]).stdout;
        let processes: Vec<&str> = steps.into_iter().chain(tasks.lines()).collect();
        let _ = bed.run("kill", &[&["-KILL"], processes.as_slice()].concat());
    }
    let slurm = &cluster.cluster;
    slurm.bed.wait_until("Slurm has given the node up", || {
        let state = slurm.job_value(&job.id, "JobState");
        !state.starts_with("RUNNING") && !state.starts_with("COMPLETING")
    });
    let ended = slurm.job_value(&job.id, "JobState");
    let state = match (cell.command, cell.event) {
        (Command::Sbatch, _) => cancel(cluster, job),
        // The client sees that its step is gone before Slurm misses the node.
        (_, Event::NodeLost) if ended.starts_with("FAILED") => "FAILED",
        (_, Event::NodeLost) if ended.starts_with("CANCELLED") => "CANCELLED",
        _ => "NODE_FAIL",
    };
    let bed = &mut cluster.cluster.bed;
    if cell.event == Event::NodeDown {
        // Slurm refuses that if the node has registered meanwhile, and is back.
        let _ = bed.run("scontrol", &["update", &name, "state=resume"]);
    } else {
        bed.start_daemon(slurmd);
    }
    state
}

/// Ends the job after a restart of a daemon, if it still runs.
fn continue_after_restart(cluster: &WayCluster, job: &Job) -> &'static str {
    cluster.cluster.bed.wait_until("the node of the job is back", || {
        cluster
            .cluster
            .bed
            .node_states()
            .iter()
            .all(|state| !state.contains('*') && !state.contains("unk"))
    });
    assert_runs(cluster, job);
    finish(job, 0)
}

fn assert_runs(cluster: &WayCluster, job: &Job) {
    let state = cluster.cluster.job_value(&job.id, "JobState");
    assert!(state.starts_with("RUNNING"), "{state}: {}", job.output());
}

fn node_of(cluster: &WayCluster, job: &Job) -> String {
    cluster
        .cluster
        .bed
        .succeed("squeue", &["-h", "-j", &job.id, "-o", "%N"])
}
