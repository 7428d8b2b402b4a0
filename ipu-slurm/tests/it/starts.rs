//! Starts of runs, which own the partitions.

use ipu_slurm::{JobState, ListedState, RunId, RunKey, RunList, RunStart};
use proptest::prelude::*;

fn start(uid: &str) -> RunStart {
    RunStart::from_uid(uid).expect("it is a uid")
}

fn starts(uids: &[&str]) -> Vec<RunStart> {
    uids.iter().map(|uid| start(uid)).collect()
}

#[test]
fn a_start_that_tasks_may_have_used_is_repeated_only_with_a_sluid() {
    for (key, used, chosen) in [
        ("7.100", None, "7.100"),
        ("7.100", Some("7.100"), "7.100.1"),
        ("7.100", Some("7.100.4"), "7.100.5"),
        // Another run of the job id, and another job.
        ("7.100", Some("7.99.3"), "7.100"),
        ("7.100", Some("8.100.3"), "7.100"),
        ("7.s7CHM891470500", None, "7.s7CHM891470500"),
        (
            "7.s7CHM891470500",
            Some("7.s7CHM891470500.1"),
            "7.s7CHM891470500.1",
        ),
        ("7.s7CHM891470500", Some("7.s7CHM891470501.1"), "7.s7CHM891470500"),
    ] {
        let key = RunKey::from_uid(key).expect("it is a uid");
        let used = used.map(start);
        assert_eq!(
            RunStart::choose(&key, used.as_ref()).to_string(),
            chosen,
            "{used:?}"
        );
    }
}

#[test]
fn the_list_of_slurmctld_is_about_the_latest_start_of_a_run() {
    let runs = RunList::parse("7|RUNNING|100||n1|\n").unwrap();
    let known = starts(&["7.100", "7.100.1", "8.100.9"]);
    let state = |uid: &str| start(uid).listed_in(&runs, &known);
    let running = ListedState::SameRun {
        state: JobState::Running,
        has_nodes: true,
    };
    assert_eq!(state("7.100"), ListedState::LaterStart { has_nodes: true });
    assert_eq!(state("7.100.1"), running);
    assert_eq!(state("7.101"), ListedState::OtherRun { has_nodes: true });
    assert_eq!(state("9.100"), ListedState::Unlisted);
    assert_eq!(start("7.100").listed_in(&runs, []), running);
}

#[test]
fn a_later_run_or_start_without_processes_has_no_nodes() {
    for (line, has_nodes) in [
        ("7|RUNNING|100||n1|", true),
        ("7|CONFIGURING|100||n1|", true),
        ("7|COMPLETING|100||n1|", true),
        ("7|COMPLETING|100|||", false),
        ("7|PENDING|100||(null)|", false),
        // It is listed with the nodes that it had.
        ("7|COMPLETED|100||n1|", false),
    ] {
        let runs = RunList::parse(&format!("{line}\n")).unwrap();
        let known = starts(&["7.100.1"]);
        let later = ListedState::LaterStart { has_nodes };
        assert_eq!(start("7.100").listed_in(&runs, &known), later, "{line}");
        let other = ListedState::OtherRun { has_nodes };
        assert_eq!(start("7.99").listed_in(&runs, &known), other, "{line}");
    }
}

#[test]
fn a_uid_with_another_form_is_refused() {
    for bad in [
        "",
        "7",
        "7.100.",
        "7.100.0",
        "7.100.01",
        "7.100.x",
        "7.100.1.1",
        ".100.1",
        "7..1",
    ] {
        assert!(RunStart::from_uid(bad).is_err(), "{bad:?}");
    }
}

proptest! {
    #[test]
    fn a_uid_parses_back_and_each_start_has_a_partition_of_its_own(
        at in 1_u64..3, number in 0_u32..5, other_at in 1_u64..3, other_number in 0_u32..5,
    ) {
        let a = RunStart { key: key(at), number };
        let b = RunStart { key: key(other_at), number: other_number };
        prop_assert_eq!(RunStart::from_uid(&a.to_string()), Ok(a.clone()));
        prop_assert!(a.is_followed_by(&a.next()) && !a.next().is_followed_by(&a));
        let partition = |start: &RunStart| start.owner("testbed").unwrap().job.partition_id(0);
        prop_assert_eq!(a == b, partition(&a) == partition(&b));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "[0-9.]{0,12}|\\PC{0,20}") {
        let _ = RunStart::from_uid(&text);
    }
}

fn key(submitted: u64) -> RunKey {
    RunKey {
        job_id: 7,
        run: RunId::Submitted(submitted),
    }
}
