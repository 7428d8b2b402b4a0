//! Output of `scontrol`, captured from Slurm 22.05, 24.11 and 26.05.

mod allocated;
mod properties;

use std::time::Duration;

use ipu_slurm::{
    AdminComment, JobState, LicenseCounts, SlurmJob, SlurmctldConfig, admin_comment_in, parse_job, parse_jobs,
};

pub(crate) const VERSIONS: [&str; 3] = ["22.05", "24.11", "26.05"];

/// Returns a captured output.
pub(crate) fn captured(version: &str, name: &str) -> String {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
    let path = format!("{directory}/scontrol-{version}/{name}.txt");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns all jobs of a captured output.
fn jobs(version: &str, name: &str) -> Vec<SlurmJob> {
    let records = parse_jobs(&captured(version, name)).expect("the output is a list");
    let jobs = records.into_iter().collect::<Result<_, _>>();
    jobs.unwrap_or_else(|error| panic!("{version}/{name}: {error}"))
}

/// Returns the only job of a captured output.
fn job(version: &str, name: &str) -> SlurmJob {
    let mut jobs = jobs(version, name);
    assert_eq!(jobs.len(), 1, "{version}/{name}");
    jobs.remove(0)
}

#[test]
fn a_running_job_is_read_alike_on_every_version() {
    for version in VERSIONS {
        let job = job(version, "running");
        assert_eq!(
            (job.name.as_str(), job.user.as_str(), job.uid),
            ("plain", "root", 0)
        );
        assert_eq!((job.state, job.reason.as_str()), (JobState::Running, "None"));
        assert_eq!(
            (job.account, job.array, job.het, job.restarts),
            (None, None, None, 0)
        );
        assert_eq!(job.node_list.as_deref(), Some("ipu-host-1"));
        assert_eq!(job.time_limit, Some(((2 * 24 + 3) * 60 + 5) * 60));
        assert_eq!(job.licenses, "pod64:8");
        assert_eq!(job.admin_comment, AdminComment::Absent);
        assert!(job.submit_time.starts_with("2026-11-25T07:5") || version == "22.05");
    }
}

#[test]
fn every_state_of_a_job_is_read() {
    let cases = [
        ("pending", JobState::Pending, None),
        ("held", JobState::Pending, None),
        ("configuring", JobState::Configuring, Some("ipu-host-[1-2]")),
        ("suspended", JobState::Suspended, Some("ipu-host-3")),
        ("completing", JobState::Completing, Some("ipu-host-3")),
        (
            "completing-two-nodes",
            JobState::Completing,
            Some("ipu-host-[1-2]"),
        ),
        ("requeue-completing", JobState::Completing, Some("ipu-host-3")),
        ("requeued", JobState::Pending, None),
        ("failed", JobState::Failed, Some("ipu-host-3")),
        ("completed", JobState::Completed, Some("ipu-host-3")),
        ("cancelled", JobState::Cancelled, Some("ipu-host-3")),
    ];
    for (name, state, nodes) in cases {
        let job = job("22.05", name);
        assert_eq!((&job.state, job.node_list.as_deref()), (&state, nodes), "{name}");
        assert!(job.time_limit.is_none_or(|limit| limit > 0), "{name}");
    }
}

#[test]
fn a_requeue_keeps_the_submission_until_the_run_is_over() {
    let over = job("22.05", "requeue-completing");
    let next = job("22.05", "requeued");
    assert_eq!((over.id, over.restarts), (next.id, next.restarts));
    assert_ne!(over.submit_time, next.submit_time);
}

#[test]
fn texts_of_users_with_keys_do_not_change_a_record() {
    for version in VERSIONS {
        let job = job(version, "name-with-keys");
        assert_eq!(job.state, JobState::Running, "{version}");
        assert_eq!(job.node_list.as_deref(), Some("ipu-host-1"), "{version}");
        assert!(
            job.name.ends_with("JobState=COMPLETED NodeList= "),
            "{:?}",
            job.name
        );
    }
    assert!(
        job("22.05", "name-with-controls")
            .name
            .starts_with("\t tab \u{1}")
    );
}

#[test]
fn a_comment_with_keys_leaves_the_state_and_makes_the_admin_comment_ambiguous() {
    for version in VERSIONS {
        let job = job(version, "comments");
        assert_eq!((job.name.as_str(), job.state), ("two words", JobState::Running));
        assert_eq!(job.admin_comment, AdminComment::Ambiguous);
        assert_eq!(job.licenses, "pod64:32,pod16:2");
    }
    let text = captured("22.05", "comments").replace(" AdminComment=x ", " ");
    let job = parse_job(&text, 8).unwrap();
    let expected = "vipu: 8 of 64 free, largest block 8 NodeList= JobState=COMPLETED";
    assert_eq!(job.admin_comment, AdminComment::Text(expected.to_owned()));
}

#[test]
fn a_name_that_repeats_a_whole_record_is_ambiguous() {
    for version in VERSIONS {
        let records = parse_jobs(&captured(version, "forged-part")).unwrap();
        let [Err(error)] = records.as_slice() else {
            panic!("{version}: {records:?}");
        };
        assert!(error.to_string().contains("can be read in two ways"), "{error}");
    }
}

#[test]
fn a_line_feed_in_a_name_spoils_the_own_record_only() {
    for version in VERSIONS {
        let text = captured(version, "name-with-newline");
        let records = parse_jobs(&text).unwrap();
        assert!(records[0].is_err(), "{version}: {records:?}");
        let id = text["JobId=".len()..].split(' ').next().unwrap();
        assert!(parse_job(&text, id.split('\n').next().unwrap().parse().unwrap()).is_err());
    }
}

#[test]
fn a_name_with_a_whole_record_and_a_line_feed_forges_nothing() {
    for version in VERSIONS {
        let true_text = captured(version, "running");
        let id = id_of(&true_text);
        let forged = true_text
            .trim_end()
            .replace("NodeList=ipu-host-1", "NodeList=")
            .replace("JobState=RUNNING", "JobState=COMPLETED")
            .replace("Licenses=pod64:8", "Licenses=pod64:64");
        let (_, name) = forged.split_once("JobName=").unwrap();
        // The true core follows in the record of another job.
        let name = format!("{name}\nJobId=999999 JobName=x");
        let text = true_text.replacen("JobName=plain", &format!("JobName={name}"), 1);
        assert!(
            parse_jobs(&text)
                .unwrap()
                .iter()
                .any(|job| job.as_ref().is_ok_and(|job| job.id == id))
        );
        let error = parse_job(&text, id).unwrap_err().to_string();
        assert!(error.contains("several lines"), "{error}");
    }
}

#[test]
fn the_admin_comment_of_a_task_is_that_of_its_only_record() {
    let text = captured("24.11", "array");
    let id = id_of(&text);
    assert_eq!(admin_comment_in(&text, id), AdminComment::Absent);
    let with = |first: &str, second: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines[0].push_str(&format!(" AdminComment={first} "));
        lines[1].push_str(&format!(" AdminComment={second} "));
        admin_comment_in(&lines.join("\n"), id)
    };
    let own = AdminComment::Text("vipu: a".to_owned());
    assert_eq!(with("vipu: a", "vipu: b"), own);
    assert_eq!(with("vipu: a", "of an administrator"), own);
    let foreign = AdminComment::Text("of an administrator".to_owned());
    assert_eq!(with("of an administrator", "vipu: b"), foreign);
    let twice = |comment: &str| {
        let line = text.lines().next().unwrap();
        admin_comment_in(
            &format!("{line} AdminComment=vipu: a \n{line} AdminComment={comment} "),
            id,
        )
    };
    assert_eq!(twice("vipu: b"), own);
    assert_eq!(twice("of an administrator"), AdminComment::Ambiguous);
}

/// Returns the id of the first record.
fn id_of(text: &str) -> u32 {
    let (id, _) = text["JobId=".len()..]
        .split_once(' ')
        .expect("a key follows the id");
    id.parse().expect("JobId is a number")
}

#[test]
fn tasks_of_an_array_and_components_have_ids_of_their_own() {
    for version in VERSIONS {
        let tasks = jobs(version, "array");
        let array = tasks[0].array.as_ref().unwrap().job_id;
        assert_eq!(tasks[0].id, array);
        assert_eq!(tasks[0].array.as_ref().unwrap().task_id, "3-5%2");
        assert!(tasks[1..].iter().all(|task| task.id != array));
        let components = jobs(version, "het");
        let names: Vec<&str> = components.iter().map(|job| job.name.as_str()).collect();
        assert_eq!(names, ["het lead", "het second"]);
        let leader = components[0].id;
        for (i, job) in components.iter().enumerate() {
            let het = job.het.unwrap();
            assert_eq!((het.job_id, het.offset as usize), (leader, i));
        }
        // A user may have forged one of several lines: squeue is asked instead.
        assert!(parse_job(&captured(version, "het"), leader).is_err());
    }
}

#[test]
fn two_records_of_one_job_are_refused() {
    let text = captured("24.11", "running").repeat(2);
    let error = parse_job(&text, 1).unwrap_err().to_string();
    assert!(error.contains("several lines"), "{error}");
    let error = parse_job(&text, 2).unwrap_err().to_string();
    assert!(error.contains("no record"), "{error}");
}

#[test]
fn other_output_is_refused() {
    assert_eq!(parse_jobs("No jobs in the system\n"), Ok(vec![]));
    assert!(parse_jobs("slurm_load_jobs error: Unable to contact slurm controller\n").is_err());
    let whole = captured("26.05", "running");
    let cut = &whole[..whole.find(" Licenses=").unwrap()];
    assert!(parse_job(cut, 1).is_err(), "a truncated record");
}

#[test]
fn an_account_with_blanks_is_refused_instead_of_guessed() {
    let text = captured("22.05", "running").replace("Account=(null)", "Account=a QOS=b");
    assert!(parse_job(&text, 7).is_err());
}

#[test]
fn licenses_are_counted() {
    for version in VERSIONS {
        let counts = LicenseCounts::parse_list(&captured(version, "licenses"));
        let pod64 = counts.iter().find(|license| license.name == "pod64").unwrap();
        assert_eq!(
            (pod64.total, pod64.used, pod64.free, pod64.reserved),
            (64, 41, 23, 0)
        );
    }
    let counts = LicenseCounts::parse_list(&captured("22.05", "licenses-reserved"));
    assert_eq!(
        (counts[1].free, counts[1].reserved, counts[1].remote),
        (59, 48, false)
    );
    let other = "LicenseName=a Total=1 Used=x Free=1 Reserved=0 Remote=no\n";
    let read = LicenseCounts::parse_list(&format!("{other}{}", captured("22.05", "licenses-reserved")));
    assert_eq!(read, counts, "an unreadable license does not hide the others");
}

#[test]
fn the_start_of_slurmctld_and_its_timeouts_are_read() {
    for version in VERSIONS {
        let config = SlurmctldConfig::parse(&captured(version, "config")).unwrap();
        assert!(config.started > 1_795_599_000);
        assert_eq!(config.settle_time(), Duration::from_secs(82));
    }
    let text = captured("22.05", "config").replace("1795599477", "2026-11-25T09:37:57");
    let error = SlurmctldConfig::parse(&text).unwrap_err().to_string();
    assert!(
        error.contains("BOOT_TIME") && error.contains("SLURM_TIME_FORMAT=%s"),
        "{error}"
    );
}

#[test]
fn a_task_of_an_array_is_addressed_without_the_other_tasks() {
    for version in VERSIONS {
        let mut pending = jobs(version, "array").remove(0);
        let array = pending.id;
        let mut id_of = |task: &str| {
            pending.array.as_mut().unwrap().task_id = task.to_owned();
            pending.scontrol_id()
        };
        assert_eq!(id_of("2"), Some(format!("{array}_2")));
        assert_eq!(id_of("3-5,9%2"), Some(format!("{array}_[3-5,9]")));
        assert_eq!(id_of("3,5,..."), None);
        let component = jobs(version, "het").remove(0);
        assert_eq!(component.scontrol_id(), Some(component.id.to_string()));
    }
}
