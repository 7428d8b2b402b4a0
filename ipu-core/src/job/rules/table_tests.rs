//! Exhaustive tests of the documented rule tables: each combination matches exactly one row and has its
//! verdict.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::cleanup::{self, QueuedPeers, ResourceRole, Retention};
use super::restart::{self, AttemptEnd, GiveUp};
use super::{backoff, finalize, reset};
use crate::ids::ControllerName;
use crate::job::exit::ExitCodeSet;
use crate::job::observation::PartitionFacts;
use crate::job::status::JobPhase;
use crate::job::{CleanPodPolicy, RestartPolicy};
use crate::reason::{Reason, ReasonCode};
use crate::units::Timestamp;

/// A row of the restart table: its name, the predicate over policy, end and used restarts, and the verdict.
type RestartCase = (
    &'static str,
    fn(PolicyKind, AttemptEnd, u32) -> bool,
    restart::RestartDecision,
);

#[derive(Clone, Copy, Debug, PartialEq)]
enum PolicyKind {
    Never,
    Always,
    OnFailure,
    ExitCode,
}

const LIMIT: u32 = 3;

const ROWS: [RestartCase; 9] = [
    (
        "success completes, unless Always",
        |kind, end, _| kind != PolicyKind::Always && end == AttemptEnd::Success,
        restart::RestartDecision::Done,
    ),
    (
        "Always restarts after success",
        |kind, end, _| kind == PolicyKind::Always && end == AttemptEnd::Success,
        restart::RestartDecision::RestartAfterSuccess,
    ),
    (
        "Never gives up",
        |kind, end, _| kind == PolicyKind::Never && end != AttemptEnd::Success,
        restart::RestartDecision::GiveUp(GiveUp::Policy),
    ),
    (
        "Always and OnFailure restart after any failure",
        |kind, end, used| {
            matches!(kind, PolicyKind::Always | PolicyKind::OnFailure)
                && end != AttemptEnd::Success
                && used < LIMIT
        },
        restart::RestartDecision::RestartAfterFailure,
    ),
    (
        "Always and OnFailure give up at the limit",
        |kind, end, used| {
            matches!(kind, PolicyKind::Always | PolicyKind::OnFailure)
                && end != AttemptEnd::Success
                && used >= LIMIT
        },
        restart::RestartDecision::GiveUp(GiveUp::LimitReached),
    ),
    (
        "codes 1 to 127 are permanent",
        |kind, end, _| kind == PolicyKind::ExitCode && matches!(end, AttemptEnd::Failure(Some(..=127))),
        restart::RestartDecision::GiveUp(GiveUp::Permanent),
    ),
    (
        "codes 128 to 255 are retryable",
        |kind, end, used| {
            kind == PolicyKind::ExitCode && matches!(end, AttemptEnd::Failure(Some(128..))) && used < LIMIT
        },
        restart::RestartDecision::RestartAfterFailure,
    ),
    (
        "a lost process is retryable",
        |kind, end, used| kind == PolicyKind::ExitCode && end == AttemptEnd::Failure(None) && used < LIMIT,
        restart::RestartDecision::RestartAfterFailure,
    ),
    (
        "ExitCode gives up at the limit",
        |kind, end, used| {
            kind == PolicyKind::ExitCode
                && matches!(end, AttemptEnd::Failure(None | Some(128..)))
                && used >= LIMIT
        },
        restart::RestartDecision::GiveUp(GiveUp::LimitReached),
    ),
];

#[test]
fn each_policy_end_and_restart_count_matches_exactly_one_row_of_the_restart_table() {
    let back_off_limit = LIMIT;
    let policies = [
        (PolicyKind::Never, RestartPolicy::Never),
        (PolicyKind::Always, RestartPolicy::Always { back_off_limit }),
        (PolicyKind::OnFailure, RestartPolicy::OnFailure { back_off_limit }),
        (
            PolicyKind::ExitCode,
            RestartPolicy::ExitCode {
                retryable: ExitCodeSet::default_retryable(),
                back_off_limit,
            },
        ),
    ];
    let ends = (0..=255).map(|code| {
        if code == 0 {
            AttemptEnd::Success
        } else {
            AttemptEnd::Failure(Some(code))
        }
    });
    let ends: Vec<AttemptEnd> = ends.chain([AttemptEnd::Failure(None)]).collect();
    for (kind, policy) in &policies {
        for end in &ends {
            for used in 0..=LIMIT + 1 {
                let rows = ROWS.iter().filter(|(_, applies, _)| applies(*kind, *end, used));
                let verdicts: Vec<_> = rows.map(|(_, _, verdict)| *verdict).collect();
                let verdict = restart::decide(policy, *end, used);
                assert_eq!(verdicts, [verdict], "{kind:?} {end:?} used {used}");
            }
        }
    }
}

#[test]
fn each_policy_role_and_phase_matches_exactly_one_row_of_the_clean_up_table() {
    use CleanPodPolicy::{All, None, Workers};
    let phases = [
        JobPhase::Pending,
        JobPhase::Running,
        JobPhase::Restarting,
        JobPhase::Suspended,
        JobPhase::Completed,
        JobPhase::Failed,
        JobPhase::Terminating,
    ];
    let retentions = [
        Retention::UntilDeleted,
        Retention::Until(Timestamp::default()),
        Retention::Over,
    ];
    for phase in phases {
        for policy in [None, Workers, All] {
            for role in [
                ResourceRole::Worker,
                ResourceRole::Launcher,
                ResourceRole::Partition,
            ] {
                for retention in retentions {
                    let finished = matches!(phase, JobPhase::Completed | JobPhase::Failed);
                    let rows = [
                        (!finished, cleanup::CleanupDecision::Keep),
                        (
                            finished && retention == Retention::Over,
                            cleanup::CleanupDecision::Remove,
                        ),
                        (
                            finished && retention != Retention::Over && policy == All,
                            cleanup::CleanupDecision::Remove,
                        ),
                        (
                            finished
                                && retention != Retention::Over
                                && policy == Workers
                                && role == ResourceRole::Worker,
                            cleanup::CleanupDecision::Remove,
                        ),
                        (
                            finished
                                && retention != Retention::Over
                                && policy == Workers
                                && role != ResourceRole::Worker,
                            cleanup::CleanupDecision::Keep,
                        ),
                        (
                            finished && retention != Retention::Over && policy == None,
                            cleanup::CleanupDecision::Keep,
                        ),
                    ];
                    let rows: Vec<_> = rows
                        .into_iter()
                        .filter_map(|(applies, verdict)| applies.then_some(verdict))
                        .collect();
                    let verdict = cleanup::decide(policy, role, phase, retention);
                    assert_eq!(rows, [verdict], "{policy:?} {role:?} {phase:?} {retention:?}");
                }
            }
        }
    }
}

#[test]
fn an_ended_instance_keeps_its_partition_unless_it_or_a_peer_is_queued() {
    for partition in partitions() {
        let is_queued = matches!(partition, PartitionFacts::Waiting { .. });
        let without_peers = cleanup::decide_ended(&partition, QueuedPeers::Absent);
        assert_eq!(
            without_peers == cleanup::CleanupDecision::Remove,
            is_queued,
            "{partition:?}"
        );
        let with_peers = cleanup::decide_ended(&partition, QueuedPeers::Present);
        assert_eq!(with_peers, cleanup::CleanupDecision::Remove, "{partition:?}");
    }
}

fn partitions() -> [PartitionFacts; 6] {
    [
        PartitionFacts::Absent,
        PartitionFacts::Waiting {
            reason: Reason::new(ReasonCode::NotEnoughFree, "2 IPUs are free"),
            attempt: 1,
        },
        PartitionFacts::Pending { attempt: 1 },
        PartitionFacts::Active {
            attempt: 1,
            since: Timestamp::default(),
            controller: ControllerName::new("vipu:8090").unwrap(),
        },
        PartitionFacts::Failed {
            attempt: 1,
            errors: Vec::new(),
        },
        PartitionFacts::Releasing,
    ]
}

#[test]
fn a_partition_is_never_released_under_a_process_and_never_leaked() {
    use finalize::{FinalizeStep, Processes};
    for partition in partitions() {
        for processes in [Processes::Alive, Processes::Ended, Processes::None] {
            let step = finalize::decide(processes, &partition);
            assert!(
                step != FinalizeStep::Release || processes != Processes::Alive,
                "{partition:?}"
            );
            let expected = processes == Processes::None && partition == PartitionFacts::Absent;
            assert_eq!(
                step == FinalizeStep::Done,
                expected,
                "{processes:?} {partition:?}"
            );
        }
    }
}

#[test]
fn a_partition_is_used_only_by_the_attempt_it_was_created_for() {
    for partition in partitions() {
        for attempt in 1..4 {
            for usage in [reset::Usage::Unused, reset::Usage::InUse] {
                let verdict = reset::decide(&partition, attempt, usage);
                let fresh = matches!(partition, PartitionFacts::Active { .. }) && attempt == 1;
                assert_eq!(
                    verdict == reset::ResetDecision::Use,
                    fresh,
                    "{partition:?} {attempt}"
                );
                assert_ne!(
                    verdict,
                    reset::ResetDecision::RestartAttempt,
                    "{partition:?} {attempt}"
                );
            }
            let missing = reset::decide(&partition, attempt, reset::Usage::ProcessMissing);
            assert_eq!(
                missing,
                reset::ResetDecision::RestartAttempt,
                "{partition:?} {attempt}"
            );
        }
    }
}

proptest! {
    #[test]
    fn the_back_off_never_shrinks_and_never_exceeds_its_maximum(base in 0_u64..1000, used: u32) {
        let base = core::time::Duration::from_secs(base);
        let back_off = backoff::decide(base, used);
        prop_assert!(back_off >= base);
        prop_assert!(back_off <= backoff::MAX_BACKOFF.max(base));
        prop_assert!(backoff::decide(base, used.saturating_add(1)) >= back_off);
    }
}
