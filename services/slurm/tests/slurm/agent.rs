//! The agent: reservations and reasons of pending jobs.

use std::time::{Duration, Instant};

use crate::cluster::Cluster;

/// Maximum time of three changes that the agent follows at once: an agent that follows with its passes, every
/// 10 s, needs more. A loaded machine has needed 5 s.
const THREE_CHANGES: Duration = Duration::from_secs(18);
/// Maximum time of three explanations, each of which an idle machine has within 5 s.
const THREE_EXPLANATIONS: Duration = Duration::from_secs(60);

#[test]
fn jobs_pend_for_the_ipus_of_other_owners_and_say_who_has_them() {
    let name = "jobs_pend_for_the_ipus_of_other_owners_and_say_who_has_them";
    let Some(mut cluster) = Cluster::start(name, 60) else {
        return;
    };
    cluster.start_agent();
    cluster.take("mnist", 32);
    cluster.take("resnet", 16);
    cluster.bed.wait_until("48 licenses are withheld", || {
        cluster.reserved() == "Licenses=pod64:48"
    });
    let large = cluster.submit(&["--licenses=pod64:32"], "env | grep PARTITION_ID");
    let sentence = "vipu: waits for 32 IPUs of pod64: 16 free, largest partition 16; held by IPUJob default/mnist (32), \
                    IPUJob default/resnet (16)";
    cluster.bed.wait_until("AdminComment names the holders", || {
        cluster.job_value(&large, "AdminComment") == sentence
    });
    cluster.bed.wait_until("the job pends for licenses", || {
        cluster
            .job_value(&large, "JobState")
            .starts_with("PENDING Reason=Licenses")
    });
    let small = cluster.submit(&["--licenses=pod64:16"], "env | grep PARTITION_ID");
    cluster.wait_for_end(&small);
    assert!(cluster.output(&small).starts_with("IPUOF_VIPU_API_PARTITION_ID="));

    cluster.release("mnist");
    cluster.wait_for_end(&large);
    assert!(cluster.output(&large).starts_with("IPUOF_VIPU_API_PARTITION_ID="));
    cluster.release("resnet");
    cluster
        .bed
        .wait_until("nothing is withheld", || cluster.reserved().is_empty());
    cluster.assert_nothing_left();
}

#[test]
fn a_comment_of_an_administrator_is_kept() {
    let Some(mut cluster) = Cluster::start("a_comment_of_an_administrator_is_kept", 60) else {
        return;
    };
    cluster.take("mnist", 64);
    cluster.start_agent();
    cluster.bed.wait_until("all licenses are withheld", || {
        cluster.reserved() == "Licenses=pod64:64"
    });
    let [first, second] = [(), ()].map(|()| cluster.submit(&["--licenses=pod64:4", "--hold"], "true"));
    let first_id = format!("JobId={first}");
    cluster
        .bed
        .succeed("scontrol", &["update", &first_id, "AdminComment=ask Ada"]);
    cluster.bed.succeed("scontrol", &["release", &first, &second]);
    for job in [&first, &second] {
        // Slurm shows the reason of the first job of the queue only as Licenses.
        cluster.bed.succeed("scontrol", &["top", job]);
    }
    cluster.bed.wait_until("the other job has a sentence", || {
        cluster
            .job_value(&second, "AdminComment")
            .starts_with("vipu: waits for 4 IPUs")
    });
    assert_eq!(cluster.job_value(&first, "AdminComment"), "ask Ada");
    cluster.bed.succeed("scancel", &[&first, &second]);
}

#[test]
fn a_comment_that_imitates_another_job_changes_nothing() {
    let Some(mut cluster) = Cluster::start("a_comment_that_imitates_another_job_changes_nothing", 60) else {
        return;
    };
    cluster.take("mnist", 64);
    cluster.start_agent();
    cluster.bed.wait_until("all licenses are withheld", || {
        cluster.reserved() == "Licenses=pod64:64"
    });
    let victim = cluster.submit(&[], "echo started; exec tail -f /dev/null");
    cluster.wait_for_line(&victim, "started");
    let ticket = format!("JobId={victim}");
    cluster
        .bed
        .succeed("scontrol", &["update", &ticket, "AdminComment=ticket 4711"]);
    let record = |id: &str| {
        format!(
            "--comment=x\nJobId={id} JobName=w UserId=bin(2) GroupId=bin(2) MCS_label=N/A Priority=1 Nice=0 \
             Account=(null) QOS=(null) JobState=PENDING Reason=Licenses Dependency=(null) Restarts=0 \
             TimeLimit=UNLIMITED SubmitTime=1 StartTime=2 NodeList= Licenses=pod64:64 Network= "
        )
    };
    // A job that exists, and a job that does not.
    let forged: Vec<String> = [victim.as_str(), "99999"]
        .iter()
        .map(|id| cluster.submit(&["--begin=now+1hour", &record(id)], "true"))
        .collect();
    let honest = cluster.submit(&["--licenses=pod64:4"], "true");
    cluster.bed.wait_until("the honest job has its sentence", || {
        cluster
            .job_value(&honest, "AdminComment")
            .starts_with("vipu: waits for 4 IPUs")
    });
    assert_eq!(cluster.job_value(&victim, "AdminComment"), "ticket 4711");
    cluster
        .bed
        .succeed("scancel", &[&victim, &honest, &forged[0], &forged[1]]);
}

#[test]
fn the_agent_follows_the_ledger_at_once_and_explains_a_wait_within_seconds() {
    let name = "the_agent_follows_the_ledger_at_once_and_explains_a_wait_within_seconds";
    let Some(mut cluster) = Cluster::start(name, 60) else {
        return;
    };
    cluster.start_agent();
    cluster.wait_for_agent("agent of the cluster testbed");
    let started = Instant::now();
    for size in [16, 32, 64] {
        cluster.take("mnist", size);
        let expected = format!("Licenses=pod64:{size}");
        cluster
            .bed
            .wait_until("the IPUs are withheld", || cluster.reserved() == expected);
        if size < 64 {
            cluster.release("mnist");
        }
    }
    let withheld = started.elapsed();
    let started = Instant::now();
    for _ in 0..3 {
        let job = cluster.submit(&["--licenses=pod64:4"], "true");
        cluster.bed.wait_until("the job says what it waits for", || {
            let state = cluster.job_value(&job, "JobState");
            let comment = cluster.job_value(&job, "AdminComment");
            state.starts_with("PENDING Reason=Licenses") && comment.starts_with("vipu: waits for 4 IPUs")
        });
        cluster.bed.succeed("scancel", &[&job]);
    }
    let explained = started.elapsed();
    println!("three changes were withheld after {withheld:?}, and three waits explained after {explained:?}");
    assert!(
        withheld < THREE_CHANGES && explained < THREE_EXPLANATIONS,
        "{withheld:?} {explained:?}"
    );

    // The reservation stays without the agent.
    cluster.kill_agent();
    let job = cluster.submit(&["--licenses=pod64:4"], "true");
    cluster.bed.wait_until("the job pends for licenses", || {
        cluster
            .job_value(&job, "JobState")
            .starts_with("PENDING Reason=Licenses")
    });
    assert_eq!(cluster.job_value(&job, "AdminComment"), "");
    cluster.bed.succeed("scancel", &[&job]);
    cluster.release("mnist");
    cluster.assert_nothing_left();
}

#[test]
fn cordoned_ipus_are_withheld_and_a_holder_with_a_time_limit_has_an_end() {
    let name = "cordoned_ipus_are_withheld_and_a_holder_with_a_time_limit_has_an_end";
    let Some(mut cluster) = Cluster::start(name, 60) else {
        return;
    };
    cluster.start_agent();
    let holder = cluster.submit(
        &["--licenses=pod64:32", "--time=5"],
        "echo started; exec tail -f /dev/null",
    );
    cluster.wait_for_line(&holder, "started");
    cluster.cordon(&["a13", "a14", "a15", "a16"]);
    cluster.bed.wait_until("16 licenses are withheld", || {
        cluster.reserved() == "Licenses=pod64:16"
    });
    let job = cluster.submit(&["--licenses=pod64:32"], "true");
    cluster.bed.wait_until("AdminComment has the end of the job", || {
        let comment = cluster.job_value(&job, "AdminComment");
        comment.contains(&format!("SlurmJob testbed/slurm-{holder} (32, until 20"))
    });
    cluster.bed.succeed("scancel", &[&job, &holder]);
    cluster.wait_for_end(&holder);
    cluster
        .bed
        .wait_until("nothing is left", || cluster.ledger().is_empty());
}
