//! Identities of runs, and their states in the output of `squeue`.

use ipu_slurm::{
    JobState, ListedState, RunId, RunKey, RunList, RunStart, parse_squeue_gres, parse_squeue_job,
};
use proptest::prelude::*;

fn listed(version: &str) -> RunList {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/squeue");
    let text = std::fs::read_to_string(format!("{directory}/{version}.txt")).expect("it is captured");
    RunList::parse(&text).expect("it is a list")
}

fn key(job_id: u32, run: RunId) -> RunKey {
    RunKey { job_id, run }
}

fn same(state: JobState, has_nodes: bool) -> ListedState {
    ListedState::SameRun { state, has_nodes }
}

#[test]
fn a_job_is_read_without_the_texts_of_its_user() {
    let text = include_str!("../data/squeue/jobs-22.05.txt");
    let job = |id| parse_squeue_job(text, id).unwrap();
    let running = job(2);
    assert_eq!(
        (running.state, running.node_list.as_deref()),
        (JobState::Running, Some("ipu-host-1"))
    );
    assert_eq!(
        (running.submit_time.as_str(), running.time_limit),
        ("1795617923", Some(93_840))
    );
    let array = running.array.unwrap();
    assert_eq!((array.job_id, array.task_id.as_str()), (1, "1"));
    assert_eq!(running.admin_comment, None);
    let pending = job(1);
    assert_eq!(
        (pending.node_list, pending.reason.as_str()),
        (None, "JobArrayTaskLimit")
    );
    assert_eq!(pending.array.unwrap().task_id, "2-3%1");
    let ended = job(4);
    assert_eq!(
        (&ended.array, ended.time_limit, ended.licenses.as_str()),
        (&None, Some(60), "(null)")
    );
    assert!(ended.license_list().is_empty());
    assert_eq!(ended.admin_comment.as_deref(), Some("ticket 4711 || of Ada"));
    let first = job(5);
    assert_eq!(first.licenses, "other:1|pod64:2");
    assert_eq!(first.admin_comment.as_deref(), Some("vipu: waits for 2 IPUs"));
    // squeue shows no limit above 365 days.
    let text = text.replace("UNLIMITED", "INVALID");
    assert_eq!(parse_squeue_job(&text, 5).unwrap().time_limit, None);
}

#[test]
fn a_task_of_an_array_is_addressed_without_the_other_tasks() {
    let text = include_str!("../data/squeue/jobs-22.05.txt");
    let id_of = |task: &str| {
        let mut pending = parse_squeue_job(text, 1).unwrap();
        pending.array.as_mut().unwrap().task_id = task.to_owned();
        pending.scontrol_id()
    };
    assert_eq!(id_of("2").as_deref(), Some("1_2"));
    assert_eq!(id_of("3-5,9%2").as_deref(), Some("1_[3-5,9]"));
    assert_eq!(id_of("3,5,..."), None);
    assert_eq!(
        parse_squeue_job(text, 5).unwrap().scontrol_id().as_deref(),
        Some("5")
    );
}

#[test]
fn a_line_of_squeue_that_cannot_be_read_is_refused() {
    let line = include_str!("../data/squeue/jobs-22.05.txt")
        .lines()
        .next()
        .unwrap();
    for (text, id) in [
        (line.to_owned(), 7),
        (format!("{line}\n{line}\n"), 1),
        (line.replace("|1795617923|", "|2026-11-25T14:00:00|"), 1),
        (line.replace("|PENDING|", "||"), 1),
        (line.replace("||", "|"), 1),
        ("1|2|\n".to_owned(), 1),
    ] {
        assert!(parse_squeue_job(&text, id).is_err(), "{text}");
    }
}

#[test]
fn the_requested_partitions_are_read_without_the_texts_of_the_user() {
    let gres = |line: &str| parse_squeue_gres(line, 7).map(|list| list.to_string());
    for (line, expected) in [
        ("7|N/A|N/A|N/A|gres:vipu:2:1|\n", "vipu:2:1"),
        (
            "7|gres/gpu:1|N/A|cpu=1|gres/vipu:2:4,gres/gpu:1|\n",
            "vipu:2:4,gpu:1",
        ),
        ("7|N/A|N/A|N/A|gres/gpu:1|\n", "(null)"),
        ("7|N/A|N/A|N/A|N/A|\n8|N/A|N/A|N/A|gres/vipu:2:1|\n", "(null)"),
    ] {
        assert_eq!(gres(line).as_deref(), Ok(expected), "{line}");
    }
    for line in [
        "7|N/A|N/A|N/A|gres/vipu:2|\n",
        "7|N/A|N/A|gres/vipu:2:1|N/A|\n",
        "7|N/A|N/A|N/A|gres/vipu:2:1|\n7|N/A|N/A|N/A|gres/vipu:2:1|\n",
        "7|N/A|N/A|N/A|gres/vipu:2:1\n",
        "7|N/A|N/A|gres/vipu:2:1|\n",
        "8|N/A|N/A|N/A|gres/vipu:2:1|\n",
        "",
    ] {
        assert!(gres(line).is_err(), "{line}");
    }
}

#[test]
fn runs_are_distinguished_by_their_submission_on_every_version() {
    for (version, submitted, waiting, running) in [
        ("22.05", 1_795_599_477, 10, 7),
        ("24.11", 1_795_599_478, 10, 7),
        ("26.05", 1_795_599_506, 9, 6),
    ] {
        let runs = listed(version);
        let state = |id, at| runs.state_of(&key(id, RunId::Submitted(at)));
        assert_eq!(state(waiting, submitted), same(JobState::Pending, false));
        assert_eq!(state(running, submitted), same(JobState::Running, true));
        assert_eq!(
            state(1, submitted),
            same(JobState::Finished("COMPLETED".to_owned()), true)
        );
        let finished = ListedState::OtherRun { has_nodes: false };
        assert_eq!(state(1, submitted - 1), finished);
        let active = ListedState::OtherRun { has_nodes: true };
        assert_eq!(state(running, submitted - 1), active);
        assert_eq!(state(9_999, submitted), ListedState::Unlisted);
        assert!(runs.may_have_nodes(running) && !runs.may_have_nodes(waiting) && !runs.may_have_nodes(1));
        let key = runs.key_of(running).unwrap();
        assert_eq!(runs.state_of(&key), same(JobState::Running, true));
        assert_eq!(matches!(key.run, RunId::Sluid(_)), version == "26.05");
        assert_eq!(runs.key_of(9_999), None);
    }
}

#[test]
fn a_sluid_tells_runs_apart_where_slurm_prints_it() {
    let sluid = |text| RunId::from_sluid(text).unwrap();
    let runs = listed("26.05");
    let state = runs.state_of(&key(6, sluid("s7CHM891470500")));
    assert_eq!(state, same(JobState::Running, true));
    assert_eq!(
        runs.state_of(&key(6, sluid("s7CHM891470501"))),
        ListedState::OtherRun { has_nodes: true }
    );
    let before = listed("24.11").state_of(&key(6, sluid("s7CHM891470500")));
    assert_eq!(before, ListedState::Indistinguishable);
}

#[test]
fn a_list_that_is_not_whole_is_refused() {
    let good = "1|RUNNING|1795599506||n1|\n";
    assert_eq!(RunList::parse(good).unwrap().len(), 1);
    assert!(RunList::parse("").unwrap().is_empty());
    for bad in [
        "1|RUNNING|1795599506||n1|",
        "1|RUNNING|1795599506||n1|\n2|RUNN",
        "1|RUNNING|1795599506||n1|\n\n",
        "1|RUNNING|1795599506|n1|\n",
        "1|RUNNING|2026-11-25T09:38:26||n1|\n",
        "1|RUNNING|1795599506|a/b|n1|\n",
        "1|Running|1795599506||n1|\n",
        "1_2|RUNNING|1795599506||n1|\n",
        "1|RUNNING|1795599506||n1|\n1|PENDING|1795599507|||\n",
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
    ] {
        let error = RunList::parse(bad).unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn the_owner_of_a_run_has_the_documented_form() {
    let owner = |at, cluster| RunStart::first(key(7, RunId::Submitted(at))).owner(cluster);
    let requeued = owner(1_795_599_507, "testbed").unwrap();
    assert!(owner(1, "a b").is_err());
    let owner = owner(1_795_599_506, "testbed").unwrap();
    assert_eq!(owner.kind, "SlurmJob");
    assert_eq!(
        (
            owner.job.namespace.as_str(),
            owner.job.name.as_str(),
            owner.job.uid.as_str()
        ),
        ("testbed", "slurm-7", "7.1795599506")
    );
    assert_ne!(owner.job.partition_id(0), requeued.job.partition_id(0));
}

#[test]
fn times_of_the_local_zone_are_no_identity() {
    let error = RunId::from_submit_time("2026-11-25T07:49:16").unwrap_err();
    assert!(error.to_string().contains("SLURM_TIME_FORMAT=%s"), "{error}");
    for bad in ["", "0", "-1", "+1", "01", "1 ", "Unknown", "99999999999999999999"] {
        assert!(RunId::from_submit_time(bad).is_err(), "{bad:?}");
    }
    for bad in ["", "1", "a b", "a/b", "a.b", "é", &"a".repeat(33)] {
        assert!(RunId::from_sluid(bad).is_err(), "{bad:?}");
    }
    for bad in ["", "7", "7.", ".7", "x.7", "7.7.7", "07.7", "7.07"] {
        assert!(RunKey::from_uid(bad).is_err(), "{bad:?}");
    }
}

proptest! {
    #[test]
    fn a_uid_parses_back_and_differs_between_runs(
        job_id: u32,
        other_id: u32,
        run in run_id(),
        other_run in run_id(),
    ) {
        let (a, b) = (key(job_id, run), key(other_id, other_run));
        prop_assert_eq!(RunKey::from_uid(&a.to_string()), Ok(a.clone()));
        prop_assert_eq!(a == b, a.to_string() == b.to_string());
    }

    #[test]
    fn no_text_makes_the_parsers_panic(text in "([0-9]{1,3}\\||RUNNING\\||[a-z0-9]{0,3}\\||\n|\\PC){0,20}") {
        let _ = RunList::parse(&text);
        let _ = RunKey::from_uid(&text);
    }
}

fn run_id() -> impl Strategy<Value = RunId> {
    prop_oneof![
        (1..=u64::MAX).prop_map(RunId::Submitted),
        "[a-zA-Z][a-zA-Z0-9]{0,31}".prop_map(RunId::Sluid),
    ]
}
