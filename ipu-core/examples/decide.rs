//! Runs one job from its JSON text to its end, one reconciliation at a time. Every effect succeeds at once.
#![expect(clippy::print_stdout, reason = "an example prints its progress")]

use std::error::Error;
use std::time::Duration;

use ipu_core::Timestamp;
use ipu_core::job::{
    Effect, Exit, InstanceFacts, Limits, Observation, PartitionFacts, ProcessFacts, ProcessPhase, RawJob,
    check_plan, plan,
};

const JOB: &str = r#"{"metadata": {"name": "mnist", "uid": "1"},
    "spec": {"ipusPerJobInstance": "4", "cleanPodPolicy": "All"}}"#;

/// Simulates the environment: partitions are ready at once, workers succeed at once, and releases remove
/// partitions.
fn apply(facts: &mut InstanceFacts, effect: &Effect, now: Timestamp) -> Result<(), Box<dyn Error>> {
    match effect {
        Effect::EnsurePartition { attempt, .. } => {
            facts.partition = PartitionFacts::Active {
                attempt: *attempt,
                since: now,
                controller: "vipu:8090".parse()?,
            };
        }
        Effect::StartWorker { worker, attempt, .. } => facts.workers.push(ProcessFacts {
            index: *worker,
            attempt: *attempt,
            phase: ProcessPhase::Exited {
                exit: Exit::Code(0),
                at: now,
                last_lines: "done".into(),
                cause: String::new(),
            },
        }),
        Effect::StopWorker { worker, .. } => facts.workers.retain(|known| known.index != *worker),
        Effect::ReleasePartition { .. } => facts.partition = PartitionFacts::Absent,
        _ => return Err(format!("this example needs no {effect:?}").into()),
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let raw: RawJob = serde_json::from_str(JOB)?;
    let job = raw
        .parse(&Limits::default())
        .map_err(|violations| format!("{violations:?}"))?
        .spec;
    let mut seen = Observation::for_new_job(Timestamp::from_millis(0));
    seen.instances.push(InstanceFacts::empty(0));
    loop {
        let plan = plan(&job, &seen);
        assert_eq!(
            check_plan(&job, &seen, &plan),
            [],
            "a plan that must not be applied"
        );
        for reason in &plan.reasons {
            println!("{:>5} ms  {reason}", seen.now.as_millis());
        }
        for effect in &plan.effects {
            println!("{:>5} ms    {effect:?}", seen.now.as_millis());
            apply(&mut seen.instances[0], effect, seen.now)?;
        }
        seen.status = plan.status;
        if plan.effects.is_empty() && plan.requeue_after != Some(Duration::ZERO) {
            return Ok(());
        }
        seen.now = seen.now.plus(Duration::from_millis(100));
    }
}

#[test]
fn it_runs() {
    main().expect("the job comes to its end");
}
