//! Names of jobs that imitate the output of Slurm: the job gets its own partition, or says why not.

use crate::cluster::Cluster;

/// A core of a record, as `scontrol show job` prints it.
const CORE: &str = "x JobState=PENDING Reason=None Dep=1 Restarts=0 TimeLimit=1:00 SubmitTime=5 StartTime=5 NodeList= \
                    Licenses=pod64:1 Network=";

#[test]
fn a_job_whose_name_imitates_a_record_has_its_partition() {
    let Some(cluster) = Cluster::start("a_job_whose_name_imitates_a_record_has_its_partition", 60) else {
        return;
    };
    let begin = "a\nJobId=1 JobName=z";
    let second = "a\nJobId=7 JobName=z UserId=root(0) JobState=RUNNING Reason=None";
    // The true core follows in the record of another job.
    let whole = format!(
        "x UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=1 Nice=0 Account=(null) QOS=(null) {}(null)\n\
         JobId=999999 JobName=z",
        CORE.trim_start_matches("x ")
    );
    for name in [CORE, begin, second, &whole] {
        let name = format!("--job-name={name}");
        let job = cluster.submit(&["--licenses=pod64:4", &name], "env | grep PARTITION_ID");
        cluster.wait_for_line(&job, "IPUOF_VIPU_API_PARTITION_ID=p-slurm-");
        cluster.wait_for_end(&job);
        cluster.assert_nothing_left();
    }
    let name = format!("--job-name={CORE}");
    let job = cluster.submit(&["--licenses=pod64:3", &name], "true");
    cluster.bed.wait_until("the job is held", || {
        let reason = cluster.bed.run("squeue", &["-h", "-j", &job, "-o", "%r"]).stdout;
        reason.trim() == "job requeued in held state"
    });
    let comment = cluster.job_value(&job, "AdminComment");
    assert!(
        comment.starts_with("vipu: ") && comment.contains("ask for 4"),
        "{comment}"
    );
    cluster.bed.succeed("scancel", &[&job]);
}
