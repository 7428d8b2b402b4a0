//! The tables of the documents, written out: every combination has exactly the one verdict that the table gives it.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::cleanup::{self, QueuedPeers, ResourceRole, Retention};
use super::restart::{self, End, GiveUp};
use super::{backoff, finalize, reset};
use crate::exit_status::ExitCodeSet;
use crate::ids::ControllerName;
use crate::job::{CleanPodPolicy, RestartPolicy};
use crate::observation::PartitionFacts;
use crate::plan::JobPhase;
use crate::reason::Reason;
use crate::units::Timestamp;

/// The rows of the restart table: which policy, which end, which attempts, and the verdict; each a sentence of its own.
type RestartCase = (
    &'static str,
    fn(FailureKind, End, u32) -> bool,
    restart::RestartDecision,
);

#[derive(Clone, Copy, Debug, PartialEq)]
enum FailureKind {
    Never,
    Always,
    OnFailure,
    ExitCode,
}

const LIMIT: u32 = 3;

const ROWS: [RestartCase; 9] = [
    (
        "success ends it, unless Always",
        |kind, end, _| kind != FailureKind::Always && end == End::Success,
        restart::RestartDecision::Done,
    ),
    (
        "Always goes on after success",
        |kind, end, _| kind == FailureKind::Always && end == End::Success,
        restart::RestartDecision::RestartAfterSuccess,
    ),
    (
        "Never gives up",
        |kind, end, _| kind == FailureKind::Never && end != End::Success,
        restart::RestartDecision::GiveUp(GiveUp::Policy),
    ),
    (
        "Always and OnFailure restart whatever the cause",
        |kind, end, used| {
            matches!(kind, FailureKind::Always | FailureKind::OnFailure)
                && end != End::Success
                && used < LIMIT
        },
        restart::RestartDecision::RestartAfterFailure,
    ),
    (
        "up to the limit",
        |kind, end, used| {
            matches!(kind, FailureKind::Always | FailureKind::OnFailure)
                && end != End::Success
                && used >= LIMIT
        },
        restart::RestartDecision::GiveUp(GiveUp::LimitReached),
    ),
    (
        "1 to 127 are permanent",
        |kind, end, _| kind == FailureKind::ExitCode && matches!(end, End::Failure(Some(..=127))),
        restart::RestartDecision::GiveUp(GiveUp::Permanent),
    ),
    (
        "128 to 255 are retryable",
        |kind, end, used| {
            kind == FailureKind::ExitCode && matches!(end, End::Failure(Some(128..))) && used < LIMIT
        },
        restart::RestartDecision::RestartAfterFailure,
    ),
    (
        "and so is what was lost",
        |kind, end, used| kind == FailureKind::ExitCode && end == End::Failure(None) && used < LIMIT,
        restart::RestartDecision::RestartAfterFailure,
    ),
    (
        "up to the limit, too",
        |kind, end, used| {
            kind == FailureKind::ExitCode && matches!(end, End::Failure(None | Some(128..))) && used >= LIMIT
        },
        restart::RestartDecision::GiveUp(GiveUp::LimitReached),
    ),
];

#[test]
fn every_policy_exit_and_attempt_has_exactly_one_row_of_the_restart_table() {
    let back_off_limit = LIMIT;
    let policies = [
        (FailureKind::Never, RestartPolicy::Never),
        (FailureKind::Always, RestartPolicy::Always { back_off_limit }),
        (
            FailureKind::OnFailure,
            RestartPolicy::OnFailure { back_off_limit },
        ),
        (
            FailureKind::ExitCode,
            RestartPolicy::ExitCode {
                retryable: ExitCodeSet::default_retryable(),
                back_off_limit,
            },
        ),
    ];
    let ends = (0..=255).map(|code| {
        if code == 0 {
            End::Success
        } else {
            End::Failure(Some(code))
        }
    });
    let ends: Vec<End> = ends.chain([End::Failure(None)]).collect();
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
fn every_policy_role_and_phase_has_exactly_one_row_of_the_clean_up_table() {
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
    let kept_for = [
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
                for retention in kept_for {
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
fn an_instance_that_has_ended_keeps_its_partition_unless_it_is_in_the_line_or_another_one_is() {
    for partition in partitions() {
        let in_line = matches!(partition, PartitionFacts::Waiting { .. });
        let alone = cleanup::of_ended(&partition, QueuedPeers::Empty);
        assert_eq!(
            alone == cleanup::CleanupDecision::Remove,
            in_line,
            "{partition:?}"
        );
        let beside = cleanup::of_ended(&partition, QueuedPeers::Waits);
        assert_eq!(beside, cleanup::CleanupDecision::Remove, "{partition:?}");
    }
}

fn partitions() -> [PartitionFacts; 6] {
    [
        PartitionFacts::Absent,
        PartitionFacts::Waiting {
            reason: Reason::new("NotEnoughFree", "2 IPUs are free"),
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
fn a_partition_is_never_released_under_a_process_and_never_forgotten() {
    use finalize::{FinalizeStep, Processes};
    for partition in partitions() {
        for processes in [Processes::Alive, Processes::Ended, Processes::None] {
            let step = finalize::decide(processes, &partition);
            assert!(
                step != FinalizeStep::Release || processes != Processes::Alive,
                "{partition:?}"
            );
            let gone = processes == Processes::None && partition == PartitionFacts::Absent;
            assert_eq!(step == FinalizeStep::Gone, gone, "{processes:?} {partition:?}");
        }
    }
}

#[test]
fn a_partition_is_used_by_the_attempt_that_it_was_made_for_and_by_no_other() {
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
                    reset::ResetDecision::BeginAnew,
                    "{partition:?} {attempt}"
                );
            }
            let torn = reset::decide(&partition, attempt, reset::Usage::Torn);
            assert_eq!(torn, reset::ResetDecision::BeginAnew, "{partition:?} {attempt}");
        }
    }
}

proptest! {
    #[test]
    fn a_pause_never_shrinks_and_never_exceeds_the_bound(base in 0_u64..1000, used: u32) {
        let base = core::time::Duration::from_secs(base);
        let pause = backoff::decide(base, used);
        prop_assert!(pause >= base);
        prop_assert!(pause <= backoff::MAX_BACKOFF.max(base));
        prop_assert!(backoff::decide(base, used.saturating_add(1)) >= pause);
    }
}
