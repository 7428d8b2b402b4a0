//! The agent: reservations and reasons of pending jobs.

use crate::cluster::Cluster;

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
    // One job that exists, and one that does not.
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
