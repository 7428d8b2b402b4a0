//! Arbitrary observations of a job, contradictions included. Most of them never occur in practice; a planner
//! must still return a plan for each.

use std::time::Duration;

use ipu_core::job::{
    Exit, FailedComponent, FirstFailure, InstanceFacts, InstanceOutcome, InstanceStatus, JobPhase, JobStatus,
    MissingProcess, Observation, PartitionFacts, ProcessFacts, ProcessPhase,
};
use ipu_core::{ControllerName, Reason, ReasonCode, Timestamp};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

/// Returns any observation, contradictions included: duplicate instances, processes that the job does not
/// have, attempts missing from the status. All times lie within the first 1,000 seconds; `now` is the last.
pub fn observations() -> impl Strategy<Value = Observation> {
    let deleted = prop_oneof![4 => Just(false), 1 => Just(true)];
    (timestamps(), deleted, statuses(), vec(instance_facts(), 0..5)).prop_map(
        |(now, deleted, status, instances)| Observation {
            deleted,
            timestamp_resolution: resolution(now),
            status,
            instances,
            ..Observation::for_new_job(now)
        },
    )
}

/// Returns observations in which every instance and each of its processes appears once.
pub fn consistent_observations() -> impl Strategy<Value = Observation> {
    observations().prop_map(without_duplicates)
}

/// Removes duplicate instances and processes.
fn without_duplicates(mut observation: Observation) -> Observation {
    observation.instances.sort_by_key(|facts| facts.index);
    observation.instances.dedup_by_key(|facts| facts.index);
    for facts in &mut observation.instances {
        facts.workers.sort_by_key(|worker| worker.index);
        facts.workers.dedup_by_key(|worker| worker.index);
        if let Some(launcher) = &mut facts.launcher {
            launcher.index = 0;
        }
    }
    observation
}

/// Returns job statuses: any phase, up to three instances.
pub fn statuses() -> impl Strategy<Value = JobStatus> {
    let phase = select(vec![
        JobPhase::Pending,
        JobPhase::Running,
        JobPhase::Restarting,
        JobPhase::Suspended,
        JobPhase::Completed,
        JobPhase::Failed,
    ]);
    let failure = timestamps().prop_map(|at| FirstFailure {
        instance: 0,
        component: FailedComponent::Worker { worker: 1 },
        attempt: 0,
        exit: Some(Exit::Code(3)),
        at,
        cause: "exit code 3".into(),
        last_lines: String::new(),
    });
    (
        phase,
        vec(instance_statuses(), 0..4),
        0_u32..4,
        option::of(timestamps()),
        timestamps(),
        option::of(failure),
    )
        .prop_map(
            |(phase, instances, used, started, finished, first_failure)| JobStatus {
                phase,
                instances,
                restarts: used + 1,
                restarts_after_failure: used,
                started,
                finished: phase.is_finished().then_some(finished),
                first_failure,
                exit_code: phase.is_finished().then_some(u8::from(phase == JobPhase::Failed)),
                conclusion: phase
                    .is_finished()
                    .then(|| Reason::new(ReasonCode::Completed, "the job completed")),
                ..JobStatus::default()
            },
        )
}

/// Returns the status of one of five instances.
fn instance_statuses() -> impl Strategy<Value = InstanceStatus> {
    let outcome = option::weighted(
        0.3,
        select(vec![
            InstanceOutcome::Succeeded,
            InstanceOutcome::SessionOver,
            InstanceOutcome::Failed(3),
        ]),
    );
    let times = (
        option::of(timestamps()),
        option::of(timestamps()),
        option::of(timestamps()),
    );
    (
        0_u32..5,
        attempts(),
        outcome,
        times,
        vec(0_u32..2, 0..2),
        0_u32..2,
    )
        .prop_map(
            |(index, attempt, outcome, (retry_at, running_since, launched), done, unused_releases)| {
                let mut status = InstanceStatus::new(index);
                status.attempt = attempt;
                status.outcome = outcome;
                status.retry_at = retry_at;
                status.running_since = running_since;
                status.launched = launched;
                status.done = done;
                status.unused_releases = unused_releases;
                status.unused_release_reason = (unused_releases > 0 && attempt != 1).then(late);
                status
            },
        )
}

fn late() -> Reason {
    Reason::new(
        ReasonCode::WorkersUnschedulable,
        "only 0 of 1 workers of it started",
    )
}

/// Returns facts about one of five instances.
pub fn instance_facts() -> impl Strategy<Value = InstanceFacts> {
    (
        0_u32..5,
        partition_facts(),
        option::of(process_facts()),
        vec(process_facts(), 0..4),
        prop_oneof![3 => Just(vec![]), 1 => vec(missing(), 1..3)],
        prop::bool::weighted(0.1),
    )
        .prop_map(|(index, partition, launcher, workers, missing, preempted)| {
            let is_held = matches!(
                partition,
                PartitionFacts::Active { .. } | PartitionFacts::Failed { .. }
            );
            let reason = || Reason::new(ReasonCode::Preempted, "another request preempts it");
            InstanceFacts {
                index,
                partition,
                launcher,
                workers,
                missing,
                preempted: (preempted && is_held).then(reason),
            }
        })
}

/// Returns one of four missing workers.
fn missing() -> impl Strategy<Value = MissingProcess> {
    (option::of(0_u32..4), attempts()).prop_map(|(worker, attempt)| MissingProcess { worker, attempt })
}

/// Returns facts about a partition: any state, mostly active.
pub fn partition_facts() -> impl Strategy<Value = PartitionFacts> {
    let controller = ControllerName::new("vipu:8090").expect("a valid controller name");
    prop_oneof![
        1 => Just(PartitionFacts::Absent),
        1 => attempts().prop_map(|attempt| PartitionFacts::Waiting {
            reason: Reason::new(ReasonCode::NotEnoughFree, "2 IPUs are free"),
            attempt,
        }),
        1 => attempts().prop_map(|attempt| PartitionFacts::Pending { attempt }),
        4 => (attempts(), timestamps()).prop_map(move |(attempt, since)| PartitionFacts::Active {
            attempt,
            since,
            controller: controller.clone(),
        }),
        1 => attempts().prop_map(|attempt| PartitionFacts::Failed { attempt, errors: vec!["link down".into()] }),
        1 => Just(PartitionFacts::Releasing),
    ]
}

/// Returns facts about a process: any phase, one of three indexes and attempts.
pub fn process_facts() -> impl Strategy<Value = ProcessFacts> {
    let phase = prop_oneof![
        timestamps().prop_map(|since| ProcessPhase::Starting {
            since,
            cause: if one_in(2, since) { "" } else { "no node fits" }.into(),
        }),
        timestamps().prop_map(|since| ProcessPhase::Running { since }),
        Just(ProcessPhase::Stopping),
        (exits(), timestamps()).prop_map(|(exit, at)| ProcessPhase::Exited {
            exit,
            at,
            last_lines: if one_in(5, at) { "" } else { "the end" }.into(),
            cause: if one_in(8, at) {
                ProcessPhase::OUT_OF_MEMORY
            } else {
                ""
            }
            .into(),
        }),
        timestamps().prop_map(|at| ProcessPhase::Lost {
            at,
            cause: "evicted".into()
        }),
    ];
    (0_u32..3, attempts(), phase).prop_map(|(index, attempt, phase)| ProcessFacts {
        index,
        attempt,
        phase,
    })
}

/// Returns process exits: success, any code, or any signal.
pub fn exits() -> impl Strategy<Value = Exit> {
    prop_oneof![
        3 => Just(Exit::Code(0)),
        2 => any::<u8>().prop_map(Exit::Code),
        1 => any::<u8>().prop_map(Exit::Signal),
    ]
}

fn attempts() -> impl Strategy<Value = u32> {
    prop_oneof![3 => Just(0_u32), 3 => Just(1), 1 => Just(2)]
}

fn timestamps() -> impl Strategy<Value = Timestamp> {
    (0_u64..1000).prop_map(|seconds| Timestamp::from_millis(seconds * 1000))
}

/// Returns true for one in `n` times; as random as `at`.
const fn one_in(n: u64, at: Timestamp) -> bool {
    (at.as_millis() / 1000).is_multiple_of(n)
}

/// Returns the timestamp resolution; as random as `now`.
const fn resolution(now: Timestamp) -> Duration {
    match now.as_millis() / 1000 % 3 {
        0 => Duration::ZERO,
        1 => Duration::from_secs(1),
        _ => Duration::from_secs(300),
    }
}
