//! IPUs in Slurm's accounting: a real slurmdbd, a limit of a QOS, and reports.

use ipu_test_slurm::{BED, BedOptions, Daemon, slurm_version};

use crate::cluster::Cluster;

/// Starts a cluster whose accounting counts the licenses of the IPUs.
fn start(test: &str) -> Option<Cluster> {
    let options = BedOptions::new()
        .accounting()
        .line("AccountingStorageTRES=license/pod64");
    Cluster::start_with(test, 60, "", options)
}

fn manage(cluster: &Cluster, words: &[&str]) {
    cluster.bed.succeed("sacctmgr", &[&["-i"], words].concat());
}

/// Adds the account `ml` with the user of the jobs.
fn add_user(cluster: &Cluster) {
    manage(cluster, &["add", "account", "ml", "Cluster=testbed"]);
    manage(
        cluster,
        &["add", "user", "daemon", "Account=ml", "Cluster=testbed"],
    );
    // slurmdbd reports them to slurmctld in this order.
    cluster.bed.wait_until("slurmctld knows the user", || {
        let users = ["show", "assoc_mgr", "flags=assoc", "users=daemon"];
        cluster
            .bed
            .run("scontrol", &users)
            .stdout
            .contains("UserName=daemon")
    });
}

#[test]
fn sacct_shows_the_ipus_of_a_job_and_a_limit_of_a_qos_holds() {
    let name = "sacct_shows_the_ipus_of_a_job_and_a_limit_of_a_qos_holds";
    let Some(cluster) = start(name) else { return };
    let limit = "MaxTRESPerUser=license/pod64=8";
    manage(&cluster, &["modify", "qos", "normal", "set", limit]);
    add_user(&cluster);

    let script = "env | grep PARTITION_ID; echo started; exec tail -f /dev/null";
    let first = cluster.submit(&["--licenses=pod64:8", "--time=5"], script);
    cluster.wait_for_line(&first, "started");
    // The proxy charges the account, and shows other owners until when the job may run.
    let entry = &cluster.ledger()[0];
    assert_eq!(entry["account"], "ml", "{entry}");
    assert_eq!(entry["maxRuntimeSeconds"], 300, "{entry}");
    let second = cluster.submit(&["--licenses=pod64:4"], script);
    cluster.bed.wait_until("the second job pends for the limit", || {
        let state = cluster.job_value(&second, "JobState");
        assert!(!state.starts_with("RUNNING"), "{}", cluster.ledger().len());
        state.starts_with("PENDING Reason=QOSMaxLicensePerUser")
    });
    assert_eq!(cluster.ledger().len(), 1);

    cluster.bed.succeed("scancel", &[&first]);
    cluster.wait_for_line(&second, "started");
    cluster.bed.succeed("scancel", &[&second]);
    for (job, ipus) in [(&first, 8), (&second, 4)] {
        cluster.wait_for_end(job);
        let words = ["-X", "-n", "-P", "-j", job, "--format=State,Account,AllocTRES"];
        let tres = format!("license/pod64={ipus}");
        cluster.bed.wait_until("sacct shows the end of the job", || {
            let line = cluster.bed.run("sacct", &words).stdout;
            line.starts_with("CANCELLED") && line.contains("|ml|") && line.contains(&tres)
        });
    }
    cluster.assert_nothing_left();
}

#[test]
fn a_job_of_a_higher_qos_takes_the_ipus_of_another_one_from_24_11_on() {
    let name = "a_job_of_a_higher_qos_takes_the_ipus_of_another_one_from_24_11_on";
    let mut options = BedOptions::new()
        .accounting()
        .line("PreemptType=preempt/qos")
        .line("PreemptMode=REQUEUE");
    let frees_licenses = slurm_version().is_ok_and(|version| version >= 2411);
    if frees_licenses {
        options = options.line("PreemptParameters=reclaim_licenses");
    }
    let Some(cluster) = Cluster::start_with(name, 60, "", options) else {
        return;
    };
    manage(&cluster, &["add", "qos", "high", "Preempt=normal"]);
    add_user(&cluster);
    let user = ["modify", "user", "daemon", "set", "QOS=normal,high"];
    manage(&cluster, &user);
    let script = "echo started; env | grep PARTITION_ID; exec tail -f /dev/null";
    let first = cluster.submit(&["--licenses=pod64:64"], script);
    let first_id = cluster.wait_for_line(&first, "IPUOF_VIPU_API_PARTITION_ID=");
    let mut second = String::new();
    cluster.bed.wait_until("slurmctld knows the QOS of the user", || {
        let mut sbatch = cluster.bed.command_as("daemon", "sbatch");
        sbatch.args(["--parsable", "--qos=high", "--licenses=pod64:16"]);
        sbatch.args(["-o", &format!("{BED}/work/%j.out"), "--wrap", script]);
        let output = sbatch.output().unwrap();
        second = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        output.status.success()
    });
    if frees_licenses {
        let second_id = cluster.wait_for_line(&second, "IPUOF_VIPU_API_PARTITION_ID=");
        assert_ne!(first_id, second_id);
        let state = cluster.job_value(&first, "JobState");
        assert!(state.starts_with("PENDING"), "{state}");
        let ids: Vec<_> = cluster.ledger().iter().map(|entry| entry["id"].clone()).collect();
        assert_eq!(ids, [second_id]);
    } else {
        // The documented limit.
        cluster.bed.wait_until("the second job pends for licenses", || {
            let state = cluster.job_value(&second, "JobState");
            state.starts_with("PENDING Reason=Licenses")
        });
        assert!(cluster.job_value(&first, "JobState").starts_with("RUNNING"));
    }
    cluster.bed.succeed("scancel", &[&first, &second]);
    cluster
        .bed
        .wait_until("no job is left", || cluster.bed.job_ids().is_empty());
    cluster.collect_until_nothing_is_left();
}

/// Moves all records three hours into the past, and makes the ended jobs half an hour long.
const AGE_RECORDS: &str = "\
UPDATE testbed_event_table SET time_start = time_start - 10800;
UPDATE testbed_last_ran_table SET hourly_rollup = hourly_rollup - 10800,
  daily_rollup = daily_rollup - 10800, monthly_rollup = monthly_rollup - 10800;
UPDATE testbed_job_table SET time_submit = time_start - 10800, time_eligible = time_start - 10800,
  time_start = time_start - 10800, time_end = time_start + 1800;
";

#[test]
fn sreport_shows_the_ipu_hours_of_an_account_after_the_roll_up() {
    let name = "sreport_shows_the_ipu_hours_of_an_account_after_the_roll_up";
    let Some(mut cluster) = start(name) else { return };
    add_user(&cluster);
    let job = cluster.submit(&["--licenses=pod64:8"], "true");
    cluster.wait_for_end(&job);
    let words = ["-X", "-n", "-P", "-j", &job, "--format=State,AllocTRES"];
    cluster.bed.wait_until("slurmdbd has the end of the job", || {
        let line = cluster.bed.run("sacct", &words).stdout;
        line.starts_with("COMPLETED") && line.contains("license/pod64=8")
    });
    // slurmdbd counts complete hours, when it starts and at each full hour.
    cluster.bed.stop_daemon(&Daemon::Slurmdbd);
    let database = [
        "--no-defaults",
        "--socket=/run/mysqld/mysqld.sock",
        "slurm_acct_db",
        "-e",
    ];
    cluster
        .bed
        .succeed("mariadb", &[&database[..], &[AGE_RECORDS]].concat());
    cluster.bed.start_daemon(Daemon::Slurmdbd);
    let report = ["-P", "-n", "-t", "Hours", "--tres=license/pod64", "cluster"];
    let period = ["Start=now-1days", "End=now+1days"];
    let accounts = [&report[..], &["AccountUtilizationByUser", "Accounts=ml"], &period].concat();
    cluster
        .bed
        .wait_until("sreport shows the IPU hours of the account", || {
            // 8 IPUs for half an hour.
            let text = cluster.bed.run("sreport", &accounts).stdout;
            text.contains("testbed|ml|daemon|daemon|license/pod64|4")
        });
    cluster.assert_nothing_left();
}
