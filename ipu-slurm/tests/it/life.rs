//! Whether a run may still use its partition.

use std::time::{Duration, Instant};

use ipu_slurm::{
    Hold, JobState, Life, LifeFacts, ListedState, RunStart, SlurmctldConfig, SlurmctldWatch, life_of,
};
use proptest::prelude::*;

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

/// Returns the life by the table of the module, if slurmctld has seen the begin of the hold.
fn expected(state: &str, has_nodes: bool) -> Life {
    match (state, has_nodes) {
        ("CONFIGURING" | "RUNNING" | "SUSPENDED", _) | ("COMPLETING", true) => Life::Live,
        ("PENDING" | "REQUEUED" | "STAGE_OUT" | "RESIZING", _) => Life::Unknown,
        _ => Life::Dead,
    }
}

/// The facts of a run whose hold slurmctld has seen begin.
fn facts(answer: ListedState) -> LifeFacts {
    LifeFacts {
        answer,
        saw_begin: true,
        has_settled: true,
    }
}

fn same_run(state: &str, has_nodes: bool) -> ListedState {
    let state = JobState::parse(state).expect("it is a word");
    ListedState::SameRun { state, has_nodes }
}

/// Every answer with its life, if slurmctld has seen the begin of the hold.
fn answers() -> Vec<(ListedState, Life)> {
    let mut answers = vec![
        (ListedState::Unlisted, Life::Dead),
        (ListedState::Indistinguishable, Life::Unknown),
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
fn dead_is_unknown_until_a_later_slurmctld_has_settled() {
    for (answer, life) in answers() {
        for has_settled in [false, true] {
            let facts = LifeFacts {
                saw_begin: false,
                has_settled,
                ..facts(answer.clone())
            };
            let expected = match life {
                Life::Dead if !has_settled => Life::Unknown,
                Life::Unknown if has_settled && answer == same_run("PENDING", false) => Life::StartForgotten,
                life => life,
            };
            assert_eq!(life_of(&facts), expected, "{facts:?}");
        }
    }
}

#[test]
fn a_forgotten_run_is_not_dead_while_its_job_id_has_nodes() {
    for (has_settled, has_nodes, life) in [
        (false, false, Life::Unknown),
        (false, true, Life::Unknown),
        (true, false, Life::Dead),
        (true, true, Life::Superseded),
    ] {
        let life_if = |saw_begin, listed| {
            life_of(&LifeFacts {
                answer: listed,
                saw_begin,
                has_settled,
            })
        };
        assert_eq!(life_if(false, ListedState::OtherRun { has_nodes }), life);
        // A repeated start proves that slurmctld has lost control meanwhile.
        for saw_begin in [false, true] {
            assert_eq!(life_if(saw_begin, ListedState::LaterStart { has_nodes }), life);
        }
    }
}

#[test]
fn a_run_that_slurmctld_has_not_forgotten_is_dead_once_its_job_id_has_another_run() {
    for has_nodes in [false, true] {
        let facts = facts(ListedState::OtherRun { has_nodes });
        assert_eq!(life_of(&facts), Life::Dead);
    }
}

/// `BOOT_TIME` of a slurmctld.
const BOOT_TIME: u64 = 10_000;
/// The time after which a slurmctld of these tests has settled.
const SETTLE: Duration = Duration::from_secs(27);

fn config(boot_time: u64, has_backup: bool) -> SlurmctldConfig {
    let text = config_text(boot_time, has_backup) + "Slurmctld(primary) at ctl is UP\n";
    SlurmctldConfig::parse(&text).expect("the text has every key")
}

/// Returns the output of `scontrol show config` without its last lines.
fn config_text(boot_time: u64, has_backup: bool) -> String {
    let backup = if has_backup {
        "SlurmctldHost[1] = ctl2\n"
    } else {
        ""
    };
    format!(
        "BOOT_TIME = {boot_time}\nKillWait = 2 sec\nSlurmctldHost[0] = ctl\n{backup}SlurmdTimeout = 20 sec\n\
         UnkillableStepTimeout = 5 sec\n\n"
    )
}

fn hold(uid: &str, since: Option<u64>) -> Hold {
    Hold {
        start: RunStart::from_uid(uid).expect("the uid is one of a start"),
        since,
    }
}

#[test]
fn a_slurmctld_that_gets_control_has_seen_no_older_hold_and_settles_after_its_first_answer() {
    // By the clocks, all holds are later than its start, which was long ago.
    let now = BOOT_TIME + 1_000_000;
    for (first, second) in [
        (config(BOOT_TIME, false), config(BOOT_TIME + 100, false)),
        // The clock was set back.
        (config(BOOT_TIME, false), config(BOOT_TIME - 1_800, false)),
        // A standby that has started before, or in the same second, takes over.
        (config(BOOT_TIME, true), config(BOOT_TIME - 5, true)),
        (
            config(BOOT_TIME, true),
            SlurmctldConfig::parse(&format!(
                "{}Slurmctld(primary) at ctl is DOWN\nSlurmctld(backup) at ctl2 is UP\n",
                config_text(BOOT_TIME, true)
            ))
            .expect("the text has every key"),
        ),
    ] {
        let (mut watch, begin) = (SlurmctldWatch::default(), Instant::now());
        watch.take_over(&first, [], begin, now);
        let old = hold("7.9000", Some(BOOT_TIME + 5_000));
        assert!(watch.knows(&first, begin) && watch.saw_begin(&old.start));
        assert!(!watch.knows(&second, begin));
        watch.take_over(&second, [old.clone()], begin, now);
        assert!(!watch.saw_begin(&old.start));
        assert!(watch.saw_begin(&hold("8.9000", None).start));
        assert!(!watch.has_settled(&second, begin + SETTLE));
        assert!(watch.has_settled(&second, begin + SETTLE + Duration::from_millis(1)));
    }
}

#[test]
fn a_backup_that_was_not_seen_for_long_may_have_taken_over_twice() {
    let minute = Duration::from_secs(60);
    for (has_backup, silence, is_known) in [
        (true, minute, true),
        // The primary may have come back, and started a run that it has not saved.
        (true, minute + Duration::from_millis(1), false),
        // No other slurmctld has the same start.
        (false, 10 * minute, true),
    ] {
        let config = config(BOOT_TIME, has_backup);
        let (mut watch, begin) = (SlurmctldWatch::default(), Instant::now());
        watch.take_over(&config, [], begin, BOOT_TIME);
        // Each answer counts.
        assert!(watch.knows(&config, begin + minute));
        let again = begin + minute + silence;
        // The takeover is not forgotten before it is taken.
        for _ in 0..2 {
            assert_eq!(watch.knows(&config, again), is_known, "{has_backup} {silence:?}");
        }
    }
}

#[test]
fn the_clocks_decide_at_the_start_of_the_agent_only_and_without_a_backup_only() {
    let begin = Instant::now();
    let settled = BOOT_TIME + SETTLE.as_secs();
    for (since, now, has_backup, saw_begin, has_settled) in [
        (BOOT_TIME + 11, settled + 1, false, true, true),
        (BOOT_TIME + 11, settled, false, true, false),
        // Within the skew of clocks.
        (BOOT_TIME + 10, settled + 1, false, false, true),
        // In the future.
        (BOOT_TIME + 50, BOOT_TIME + 49, false, false, true),
        (BOOT_TIME + 11, settled + 1, true, false, false),
    ] {
        let config = config(BOOT_TIME, has_backup);
        let (mut watch, hold) = (SlurmctldWatch::default(), hold("7.9000", Some(since)));
        watch.take_over(&config, [hold.clone()], begin, now);
        let found = (watch.saw_begin(&hold.start), watch.has_settled(&config, begin));
        assert_eq!(found, (saw_begin, has_settled), "{since} {now} {has_backup}");
    }
    let watch = SlurmctldWatch::default();
    let start = hold("7.9000", None).start;
    assert!(!watch.saw_begin(&start) && !watch.has_settled(&config(BOOT_TIME, false), begin));
}

proptest! {
    #[test]
    fn a_run_that_may_have_processes_is_never_dead(
        state in prop::sample::select(&STATES[..]),
        has_nodes: bool,
        saw_begin: bool,
        has_settled: bool,
    ) {
        let facts = LifeFacts { answer: same_run(state, has_nodes), saw_begin, has_settled };
        let runs = matches!(state, "CONFIGURING" | "RUNNING" | "SUSPENDED")
            || (state == "COMPLETING" && has_nodes);
        if runs {
            prop_assert_ne!(life_of(&facts), Life::Dead);
        }
        // Time alone does not bring a dead run back.
        if life_of(&facts) == Life::Dead {
            let later = LifeFacts { has_settled: true, ..facts };
            prop_assert_eq!(life_of(&later), Life::Dead);
        }
    }
}
