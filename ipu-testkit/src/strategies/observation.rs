//! Observations: anything that could be reported of a job, contradictions included. No world would lead to most of these;
//! a planner has an answer to all of them.

use std::time::Duration;

use ipu_core::{
    ControllerName, Exit, FailedComponent, FirstFailure, InstanceFacts, InstanceOutcome, InstanceStatus,
    JobPhase, JobStatus, MissingProcess, Observation, PartitionFacts, ProcessFacts, ProcessPhase, Reason,
    Timestamp,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

/// Any observation, contradictions included: instances that are reported twice, processes that the job does not have,
/// attempts that the record never heard of. All times lie within the first 1,000 seconds, the last of which is `now`.
pub fn observations() -> impl Strategy<Value = Observation> {
    let deleted = prop_oneof![4 => Just(false), 1 => Just(true)];
    (moments(), deleted, statuses(), vec(instance_facts(), 0..5)).prop_map(
        |(now, deleted, status, instances)| Observation {
            deleted,
            timestamp_resolution: blur(now),
            status,
            instances,
            ..Observation::for_new_job(now)
        },
    )
}

/// Observations that a world could show: every instance, and every process of it, is reported once.
pub fn consistent_observations() -> impl Strategy<Value = Observation> {
    observations().prop_map(without_doubles)
}

/// A world has one of everything.
fn without_doubles(mut seen: Observation) -> Observation {
    seen.instances.sort_by_key(|facts| facts.index);
    seen.instances.dedup_by_key(|facts| facts.index);
    for facts in &mut seen.instances {
        facts.workers.sort_by_key(|worker| worker.index);
        facts.workers.dedup_by_key(|worker| worker.index);
        if let Some(launcher) = &mut facts.launcher {
            launcher.index = 0;
        }
    }
    seen
}

/// What is recorded of a job: any phase, up to three instances.
pub fn statuses() -> impl Strategy<Value = JobStatus> {
    let phase = select(vec![
        JobPhase::Pending,
        JobPhase::Running,
        JobPhase::Restarting,
        JobPhase::Suspended,
        JobPhase::Completed,
        JobPhase::Failed,
    ]);
    let failure = moments().prop_map(|at| FirstFailure {
        instance: 0,
        culprit: FailedComponent::Worker { worker: 1 },
        attempt: 0,
        exit: Some(Exit::Code(3)),
        at,
        cause: "exit code 3".into(),
        last_lines: String::new(),
    });
    (
        phase,
        vec(memories(), 0..4),
        0_u32..4,
        option::of(moments()),
        moments(),
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
                    .then(|| Reason::new("Completed", "it is done")),
                ..JobStatus::default()
            },
        )
}

/// What is recorded of one of five instances.
fn memories() -> impl Strategy<Value = InstanceStatus> {
    let outcome = option::weighted(
        0.3,
        select(vec![
            InstanceOutcome::Succeeded,
            InstanceOutcome::SessionOver,
            InstanceOutcome::Failed(3),
        ]),
    );
    let times = (
        option::of(moments()),
        option::of(moments()),
        option::of(moments()),
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
            |(index, attempt, outcome, (retry_at, running_since, launched), done, given_back)| {
                let mut memory = InstanceStatus::new(index);
                memory.attempt = attempt;
                memory.outcome = outcome;
                memory.retry_at = retry_at;
                memory.running_since = running_since;
                memory.launched = launched;
                memory.done = done;
                memory.unused_releases = given_back;
                memory.unused_release_reason = (given_back > 0 && attempt != 1).then(late);
                memory
            },
        )
}

fn late() -> Reason {
    Reason::new("WorkersUnschedulable", "only 0 of 1 workers of it started")
}

/// What exists of one of five instances.
pub fn instance_facts() -> impl Strategy<Value = InstanceFacts> {
    (
        0_u32..5,
        partition_facts(),
        option::of(process_facts()),
        vec(process_facts(), 0..4),
        prop_oneof![3 => Just(vec![]), 1 => vec(gone(), 1..3)],
    )
        .prop_map(|(index, partition, launcher, workers, gone)| InstanceFacts {
            index,
            partition,
            launcher,
            workers,
            missing: gone,
        })
}

/// One of four workers that was taken away.
fn gone() -> impl Strategy<Value = MissingProcess> {
    (option::of(0_u32..4), attempts()).prop_map(|(worker, attempt)| MissingProcess { worker, attempt })
}

/// What is known of a partition: any state, mostly active.
pub fn partition_facts() -> impl Strategy<Value = PartitionFacts> {
    let controller = ControllerName::new("vipu:8090").expect("this is a controller's name");
    prop_oneof![
        1 => Just(PartitionFacts::Absent),
        1 => attempts().prop_map(|attempt| PartitionFacts::Waiting {
            reason: Reason::new("NotEnoughFree", "2 IPUs are free"),
            attempt,
        }),
        1 => attempts().prop_map(|attempt| PartitionFacts::Pending { attempt }),
        4 => (attempts(), moments()).prop_map(move |(attempt, since)| PartitionFacts::Active {
            attempt,
            since,
            controller: controller.clone(),
        }),
        1 => attempts().prop_map(|attempt| PartitionFacts::Failed { attempt, errors: vec!["link down".into()] }),
        1 => Just(PartitionFacts::Releasing),
    ]
}

/// What is known of a process: any phase, of one of three numbers and attempts.
pub fn process_facts() -> impl Strategy<Value = ProcessFacts> {
    let phase = prop_oneof![
        moments().prop_map(|since| ProcessPhase::Starting {
            since,
            cause: if one_in(2, since) { "" } else { "no node fits" }.into(),
        }),
        moments().prop_map(|since| ProcessPhase::Running { since }),
        Just(ProcessPhase::Stopping),
        (exits(), moments()).prop_map(|(exit, at)| ProcessPhase::Exited {
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
        moments().prop_map(|at| ProcessPhase::Lost {
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

/// How a process ended: well, by any code, or by any signal.
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

fn moments() -> impl Strategy<Value = Timestamp> {
    (0_u64..1000).prop_map(|seconds| Timestamp::from_millis(seconds * 1000))
}

/// As random as the moment.
const fn one_in(n: u64, at: Timestamp) -> bool {
    (at.as_millis() / 1000).is_multiple_of(n)
}

/// How far apart times must be to be told apart: as random as the moment, too.
const fn blur(now: Timestamp) -> Duration {
    match now.as_millis() / 1000 % 3 {
        0 => Duration::ZERO,
        1 => Duration::from_secs(1),
        _ => Duration::from_secs(300),
    }
}
