//! Invariants of the plan of any job in any observation, however odd: no world would lead to most of these.

use ipu_core::{
    ControllerName, Culprit, Exit, FirstFailure, InstanceFacts, InstanceStatus, JobPhase, JobStatus,
    Observation, Outcome, PartitionFacts, ProcessFacts, ProcessPhase, Reason, Timestamp, check_plan, plan,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::job::job;

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_plan_of_every_observation_is_sound(words in words(), seen in observation()) {
        let job = job(words.iter().map(String::as_str)).unwrap();
        let plan = plan(&job, &seen);
        let broken = check_plan(&job, &seen, &plan);
        prop_assert!(broken.is_empty(), "{broken:#?}\n{plan:#?}");
    }

    #[test]
    fn a_plan_survives_the_way_through_json(words in words(), seen in observation()) {
        let job = job(words.iter().map(String::as_str)).unwrap();
        let again: Observation = serde_json::from_str(&serde_json::to_string(&seen).unwrap()).unwrap();
        prop_assert_eq!(&again, &seen);
        let made = plan(&job, &seen);
        let read: ipu_core::Plan = serde_json::from_str(&serde_json::to_string(&made).unwrap()).unwrap();
        prop_assert_eq!(read, made);
    }
}

/// Words that describe a job.
pub(super) fn words() -> impl Strategy<Value = Vec<String>> {
    let size = (0_u32..4, 1_u32..3).prop_map(|(instances, workers)| {
        vec![format!("instances={instances}"), format!("workers={workers}")]
    });
    let shape = select(vec!["shape=workers", "shape=launcher", "ttl=60"]);
    let restart = (
        select(vec!["Never", "Always", "OnFailure", "ExitCode"]),
        0_u32..3,
        select(vec!["0", "10", "400"]),
    )
        .prop_map(|(kind, limit, back_off)| {
            vec![
                format!("restart={kind}"),
                format!("limit={limit}"),
                format!("backoff={back_off}"),
            ]
        });
    let clean = select(vec!["clean=None", "clean=Workers", "clean=All"]);
    let times = (
        option::of(select(vec!["keep=0", "keep=100"])),
        option::of(Just("deadline=500")),
        select(vec!["start=30", "start=600"]),
    );
    let suspend = prop_oneof![4 => Just("suspend=no"), 1 => Just("suspend=yes")];
    (size, shape, restart, clean, times, suspend).prop_map(
        |(mut words, shape, restart, clean, (keep, deadline, start), suspend)| {
            words.extend(restart);
            words.extend([shape, clean, start, suspend].map(String::from));
            words.extend([keep, deadline].into_iter().flatten().map(String::from));
            words
        },
    )
}

fn moment() -> impl Strategy<Value = Timestamp> {
    (0_u64..1000).prop_map(|seconds| Timestamp::from_millis(seconds * 1000))
}

fn exit() -> impl Strategy<Value = Exit> {
    prop_oneof![
        3 => Just(Exit::Code(0)),
        2 => any::<u8>().prop_map(Exit::Code),
        1 => any::<u8>().prop_map(Exit::Signal),
    ]
}

fn process() -> impl Strategy<Value = ProcessFacts> {
    let phase = prop_oneof![
        moment().prop_map(|since| ProcessPhase::Starting { since }),
        moment().prop_map(|since| ProcessPhase::Running { since }),
        Just(ProcessPhase::Stopping),
        (exit(), moment()).prop_map(|(exit, at)| ProcessPhase::Exited {
            exit,
            at,
            last_lines: "the end".into()
        }),
        moment().prop_map(|at| ProcessPhase::Lost {
            at,
            cause: "evicted".into()
        }),
    ];
    (0_u32..3, attempt(), phase).prop_map(|(index, attempt, phase)| ProcessFacts {
        index,
        attempt,
        phase,
    })
}

fn attempt() -> impl Strategy<Value = u32> {
    prop_oneof![3 => Just(0_u32), 3 => Just(1), 1 => Just(2)]
}

fn partition() -> impl Strategy<Value = PartitionFacts> {
    prop_oneof![
        1 => Just(PartitionFacts::Absent),
        1 => Just(PartitionFacts::Waiting { reason: Reason::new("NotEnoughFree", "2 IPUs are free") }),
        1 => attempt().prop_map(|attempt| PartitionFacts::Pending { attempt }),
        4 => (attempt(), moment()).prop_map(|(attempt, since)| PartitionFacts::Active {
            attempt,
            since,
            controller: ControllerName::new("vipu:8090").unwrap(),
        }),
        1 => attempt().prop_map(|attempt| PartitionFacts::Failed { attempt, errors: vec!["link down".into()] }),
        1 => Just(PartitionFacts::Releasing),
    ]
}

fn instance() -> impl Strategy<Value = InstanceFacts> {
    (0_u32..5, partition(), option::of(process()), vec(process(), 0..4)).prop_map(
        |(index, partition, launcher, workers)| InstanceFacts {
            index,
            partition,
            launcher,
            workers,
        },
    )
}

fn memory() -> impl Strategy<Value = InstanceStatus> {
    let outcome = option::weighted(
        0.3,
        select(vec![Outcome::Succeeded, Outcome::SessionOver, Outcome::Failed(3)]),
    );
    let times = (option::of(moment()), option::of(moment()), option::of(moment()));
    (0_u32..5, attempt(), outcome, times, vec(0_u32..2, 0..2), 0_u32..2).prop_map(
        |(index, attempt, outcome, (retry_at, running_since, launched), done, given_back)| {
            let mut memory = InstanceStatus::new(index);
            memory.attempt = attempt;
            memory.outcome = outcome;
            memory.retry_at = retry_at;
            memory.running_since = running_since;
            memory.launched = launched;
            memory.done = done;
            memory.given_back = given_back;
            memory
        },
    )
}

fn status() -> impl Strategy<Value = JobStatus> {
    let phase = select(vec![
        JobPhase::Pending,
        JobPhase::Running,
        JobPhase::Restarting,
        JobPhase::Suspended,
        JobPhase::Completed,
        JobPhase::Failed,
    ]);
    let failure = moment().prop_map(|at| FirstFailure {
        instance: 0,
        culprit: Culprit::Worker { worker: 1 },
        attempt: 0,
        exit: Some(Exit::Code(3)),
        at,
        cause: "exit code 3".into(),
        last_lines: String::new(),
    });
    (
        phase,
        vec(memory(), 0..4),
        0_u32..4,
        option::of(moment()),
        moment(),
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

/// Any observation, contradictions included.
pub(super) fn observation() -> impl Strategy<Value = Observation> {
    let deleted = prop_oneof![4 => Just(false), 1 => Just(true)];
    (moment(), deleted, status(), vec(instance(), 0..5)).prop_map(|(now, deleted, status, instances)| {
        Observation {
            deleted,
            status,
            instances,
            ..Observation::of_new_job(now)
        }
    })
}
