//! Starts of runs, which own the partitions.

use ipu_slurm::{JobState, ListedState, RunId, RunKey, RunList, RunStart};
use proptest::prelude::*;

fn start(uid: &str) -> RunStart {
    RunStart::from_uid(uid).expect("it is a uid")
}

fn starts(uids: &[&str]) -> Vec<RunStart> {
    uids.iter().map(|uid| start(uid)).collect()
}

/// Returns the uid of the start that a hook of the run `7.100` chooses.
fn chosen(unused: Option<&str>, known: &[&str]) -> String {
    let key = RunKey::from_uid("7.100").expect("it is a uid");
    RunStart::choose(&key, unused.map(start).as_ref(), &starts(known)).to_string()
}

#[test]
fn a_start_that_may_have_been_used_is_not_handed_out_again() {
    assert_eq!(chosen(None, &[]), "7.100");
    assert_eq!(chosen(None, &["7.100"]), "7.100.1");
    assert_eq!(chosen(None, &["7.100.1", "7.100", "7.100.4"]), "7.100.5");
    assert_eq!(chosen(None, &["7.101.3", "8.100.3"]), "7.100");
}

#[test]
fn a_hook_goes_on_with_the_start_of_a_killed_one_that_no_task_has_used() {
    assert_eq!(chosen(Some("7.100"), &["7.100"]), "7.100");
    assert_eq!(chosen(Some("7.100.2"), &["7.100", "7.100.2"]), "7.100.2");
    // The file of the killed hook is older than the ledger.
    assert_eq!(chosen(Some("7.100"), &["7.100.1"]), "7.100.2");
    // The job id had another run before.
    assert_eq!(chosen(Some("7.99"), &["7.99"]), "7.100");
}

#[test]
fn a_sluid_proves_that_a_start_is_a_repetition() {
    let key = RunKey::from_uid("7.s7CHM891470500").unwrap();
    let first = RunStart::first(key.clone());
    assert_eq!(RunStart::choose(&key, None, [&first]), first);
    // The second start has requested something else than the first.
    let second = first.next();
    assert_eq!(second.to_string(), "7.s7CHM891470500.1");
    assert_eq!(RunStart::choose(&key, None, [&second, &first]), second);
    assert_eq!(RunStart::choose(&key, Some(&second), [&first]), second);
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
    fn no_choice_is_a_start_that_may_have_been_used(
        known in prop::collection::vec((1_u64..3, 0_u32..5), 0..8),
        unused in prop::option::of((1_u64..3, 0_u32..5)),
    ) {
        let start = |(at, number)| RunStart { key: key(at), number };
        let known: Vec<RunStart> = known.into_iter().map(start).collect();
        let unused = unused.map(start);
        let chosen = RunStart::choose(&key(1), unused.as_ref(), &known);
        prop_assert_eq!(&chosen.key, &key(1));
        prop_assert!(!known.contains(&chosen) || unused.as_ref() == Some(&chosen));
        prop_assert!(!known.iter().any(|start| chosen.is_followed_by(start)));
    }

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
