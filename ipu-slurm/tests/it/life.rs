//! Whether a run may still use its partition.

use std::time::Duration;

use ipu_slurm::{JobState, Life, LifeFacts, ListedState, SlurmctldReply, life_of};
use proptest::prelude::*;

const HELD_SINCE: u64 = 10_000;
const NOW: u64 = 20_000;
const SETTLE: u64 = 27;

const STATES: [&str; 17] = [
    "PENDING",
    "CONFIGURING",
    "RUNNING",
    "SUSPENDED",
    "COMPLETING",
    "COMPLETED",
    "CANCELLED",
    "FAILED",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPTED",
    "BOOT_FAIL",
    "DEADLINE",
    "OUT_OF_MEMORY",
    "REQUEUED",
    "STAGE_OUT",
    "RESIZING",
];

/// Returns the life by the table of the module, without regard to a start of slurmctld.
fn expected(state: &str, has_nodes: bool) -> Life {
    match (state, has_nodes) {
        ("CONFIGURING" | "RUNNING" | "SUSPENDED", _) | ("COMPLETING", true) => Life::Live,
        ("PENDING" | "REQUEUED" | "STAGE_OUT" | "RESIZING", _) => Life::Unknown,
        _ => Life::Dead,
    }
}

fn facts(answer: SlurmctldReply) -> LifeFacts {
    LifeFacts {
        answer,
        slurmctld_started: Some(HELD_SINCE - 1_000),
        settle_time: Duration::from_secs(SETTLE),
        held_since: HELD_SINCE,
        now: NOW,
    }
}

fn same_run(state: &str, has_nodes: bool) -> SlurmctldReply {
    let state = JobState::parse(state).expect("it is a word");
    SlurmctldReply::Complete(ListedState::SameRun { state, has_nodes })
}

/// Every answer with its life, if slurmctld has not started since the hold began.
fn answers() -> Vec<(SlurmctldReply, Life)> {
    let mut answers = vec![
        (SlurmctldReply::Incomplete, Life::Unknown),
        (SlurmctldReply::Complete(ListedState::Unlisted), Life::Dead),
        (
            SlurmctldReply::Complete(ListedState::Indistinguishable),
            Life::Unknown,
        ),
    ];
    for state in STATES {
        for has_nodes in [false, true] {
            answers.push((same_run(state, has_nodes), expected(state, has_nodes)));
        }
    }
    answers
}

#[test]
fn every_answer_has_the_life_of_the_table() {
    for (answer, life) in answers() {
        assert_eq!(life_of(&facts(answer.clone())), life, "{answer:?}");
    }
}

#[test]
fn dead_is_unknown_until_a_restarted_slurmctld_has_settled() {
    for (answer, life) in answers() {
        let started = HELD_SINCE + 5;
        for (now, settled) in [
            (started, false),
            (started + SETTLE, false),
            (started + SETTLE + 1, true),
        ] {
            let facts = LifeFacts {
                slurmctld_started: Some(started),
                now,
                ..facts(answer.clone())
            };
            let expected = match life {
                Life::Dead if !settled => Life::Unknown,
                Life::Unknown if settled && answer == same_run("PENDING", false) => Life::StartForgotten,
                life => life,
            };
            assert_eq!(life_of(&facts), expected, "{facts:?}");
        }
    }
}

/// Returns the life of a run whose hold began before slurmctld started, `age` seconds after that start.
fn life_after_restart(listed: ListedState, age: u64) -> Life {
    let started = HELD_SINCE + 5;
    life_of(&LifeFacts {
        slurmctld_started: Some(started),
        now: started + age,
        ..facts(SlurmctldReply::Complete(listed))
    })
}

#[test]
fn a_forgotten_run_is_not_dead_while_its_job_id_has_nodes() {
    for (age, without_nodes, with_nodes) in [
        (SETTLE, Life::Unknown, Life::Unknown),
        (SETTLE + 1, Life::Dead, Life::BesideLaterRun),
        (1_000_000, Life::Dead, Life::BesideLaterRun),
    ] {
        for (has_nodes, life) in [(false, without_nodes), (true, with_nodes)] {
            let other = ListedState::OtherRun { has_nodes };
            assert_eq!(life_after_restart(other, age), life, "{age} {has_nodes}");
            let later = ListedState::LaterStart { has_nodes };
            assert_eq!(life_after_restart(later, age), life, "{age} {has_nodes}");
        }
    }
}

#[test]
fn a_start_is_forgotten_if_its_run_pends_after_a_start_of_slurmctld() {
    let pending = |has_nodes| ListedState::SameRun {
        state: JobState::Pending,
        has_nodes,
    };
    assert_eq!(life_after_restart(pending(false), SETTLE), Life::Unknown);
    assert_eq!(
        life_after_restart(pending(false), SETTLE + 1),
        Life::StartForgotten
    );
    assert_eq!(life_after_restart(pending(true), SETTLE + 1), Life::Unknown);
    // It may be the hook of the run that has begun the hold.
    assert_eq!(life_of(&facts(same_run("PENDING", false))), Life::Unknown);
}

#[test]
fn a_run_that_slurmctld_has_not_forgotten_is_dead_once_its_job_id_has_another_run() {
    for has_nodes in [false, true] {
        let facts = facts(SlurmctldReply::Complete(ListedState::OtherRun { has_nodes }));
        assert_eq!(life_of(&facts), Life::Dead);
    }
}

#[test]
fn a_repeated_start_proves_a_start_of_slurmctld_whatever_the_clocks_say() {
    for (now, has_nodes, life) in [
        (HELD_SINCE - 1_000 + SETTLE, false, Life::Unknown),
        (NOW, false, Life::Dead),
        (NOW, true, Life::BesideLaterRun),
    ] {
        let listed = ListedState::LaterStart { has_nodes };
        let facts = LifeFacts {
            now,
            ..facts(SlurmctldReply::Complete(listed))
        };
        assert_eq!(life_of(&facts), life, "{facts:?}");
    }
}

#[test]
fn a_start_in_the_same_second_or_within_the_skew_of_clocks_counts_as_later() {
    let unlisted = || facts(SlurmctldReply::Complete(ListedState::Unlisted));
    for (started, life) in [
        (HELD_SINCE, Life::Unknown),
        (HELD_SINCE - 10, Life::Unknown),
        (HELD_SINCE - 11, Life::Dead),
    ] {
        let facts = LifeFacts {
            slurmctld_started: Some(started),
            now: HELD_SINCE + 1,
            ..unlisted()
        };
        assert_eq!(life_of(&facts), life, "{facts:?}");
    }
}

#[test]
fn without_the_start_of_slurmctld_no_run_is_dead() {
    let others = [false, true].into_iter().flat_map(|has_nodes| {
        [
            ListedState::OtherRun { has_nodes },
            ListedState::LaterStart { has_nodes },
        ]
    });
    let others = others.map(|listed| (SlurmctldReply::Complete(listed), Life::Dead));
    for (answer, _) in answers().into_iter().chain(others) {
        let facts = LifeFacts {
            slurmctld_started: None,
            ..facts(answer)
        };
        assert_ne!(life_of(&facts), Life::Dead, "{facts:?}");
    }
}

proptest! {
    #[test]
    fn a_forgotten_run_is_dead_only_if_its_job_id_has_no_nodes(
        is_later_start: bool,
        has_nodes: bool,
        started in any::<u32>().prop_map(u64::from),
        settle in any::<u32>().prop_map(u64::from),
        held_since in any::<u32>().prop_map(u64::from),
        now in any::<u64>(),
    ) {
        let listed = if is_later_start {
            ListedState::LaterStart { has_nodes }
        } else {
            ListedState::OtherRun { has_nodes }
        };
        let facts = LifeFacts {
            answer: SlurmctldReply::Complete(listed),
            slurmctld_started: Some(started),
            settle_time: Duration::from_secs(settle),
            held_since,
            now,
        };
        if is_later_start || started + 10 >= held_since {
            let is_dead = now > started + settle && !has_nodes;
            prop_assert_eq!(life_of(&facts) == Life::Dead, is_dead);
        }
    }

    #[test]
    fn a_run_that_may_have_processes_is_never_dead(
        state in prop::sample::select(&STATES[..]),
        has_nodes: bool,
        answered: bool,
        started in proptest::option::of(any::<u64>()),
        settle in any::<u64>(),
        held_since in any::<u64>(),
        now in any::<u64>(),
    ) {
        let answer = if answered { same_run(state, has_nodes) } else { SlurmctldReply::Incomplete };
        let facts = LifeFacts {
            answer,
            slurmctld_started: started,
            settle_time: Duration::from_secs(settle),
            held_since,
            now,
        };
        let runs = matches!(state, "CONFIGURING" | "RUNNING" | "SUSPENDED")
            || (state == "COMPLETING" && has_nodes);
        if !answered || runs {
            prop_assert_ne!(life_of(&facts), Life::Dead);
        }
        // Time alone does not bring a dead run back.
        if life_of(&facts) == Life::Dead {
            let later = LifeFacts { now: now.saturating_add(1), ..facts };
            prop_assert_eq!(life_of(&later), Life::Dead);
        }
    }
}
