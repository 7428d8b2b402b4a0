//! Invariants of every replay, derived from job outcomes alone, and tests of this audit.

use std::time::Duration;

use ipu_core::hardware::{Block, Topology};
use ipu_core::placement::BestFit;
use ipu_testkit::{JobOutcome, ScoreOptions, Trace, TraceJob, replay_trace};

use super::policies::job;

/// Outcomes of the jobs of a trace.
#[derive(Clone, Debug)]
pub(crate) struct ReplayRecord<'a> {
    pub(crate) trace: &'a Trace,
    pub(crate) outcomes: Vec<JobOutcome>,
    pub(crate) started: Vec<usize>,
}

/// Job that ran.
struct Run<'a> {
    index: usize,
    job: &'a TraceJob,
    start: Duration,
    end: Duration,
    block: &'a Block,
}

/// Returns the first violated invariant.
pub(crate) fn audit(record: &ReplayRecord<'_>, topology: &Topology, limit: u32) -> Result<(), String> {
    let jobs = record.trace.jobs();
    if record.outcomes.len() != jobs.len() {
        return Err(format!("{} jobs, {} outcomes", jobs.len(), record.outcomes.len()));
    }
    let runs: Vec<Run<'_>> = jobs
        .iter()
        .zip(&record.outcomes)
        .enumerate()
        .filter_map(|(index, (job, outcome))| match outcome {
            JobOutcome::Ran { start, end, block } => Some(Run {
                index,
                job,
                start: *start,
                end: *end,
                block,
            }),
            _ => None,
        })
        .collect();
    each_ran_as_it_was_submitted(&runs, topology)?;
    no_ipu_is_used_twice(&runs)?;
    order_is_complete(&runs, &record.started)?;
    equal_jobs_start_in_order(&runs, record)?;
    no_job_is_overtaken_too_often(record, limit)
}

fn each_ran_as_it_was_submitted(runs: &[Run<'_>], topology: &Topology) -> Result<(), String> {
    for run in runs {
        let exists = run
            .block
            .masks()
            .all(|(domain, mask)| mask & !topology.ipu_mask(domain) == 0);
        if run.start < run.job.submit {
            return Err(format!("job {} started before its submission", run.index));
        }
        if run.end != run.start + run.job.runtime {
            return Err(format!("job {} ran for the wrong time", run.index));
        }
        if run.block.size() != Some(run.job.size) || !exists {
            return Err(format!("job {} ran on {}", run.index, run.block));
        }
    }
    Ok(())
}

fn no_ipu_is_used_twice(runs: &[Run<'_>]) -> Result<(), String> {
    for (place, one) in runs.iter().enumerate() {
        for other in &runs[place + 1..] {
            let together = one.start < other.end && other.start < one.end;
            let meet = one
                .block
                .masks()
                .any(|(domain, mask)| other.block.masks().any(|(d, m)| d == domain && m & mask != 0));
            if together && meet {
                return Err(format!(
                    "jobs {} and {} held the same IPU",
                    one.index, other.index
                ));
            }
        }
    }
    Ok(())
}

fn order_is_complete(runs: &[Run<'_>], started: &[usize]) -> Result<(), String> {
    let mut listed = started.to_vec();
    listed.sort_unstable();
    if !listed.iter().copied().eq(runs.iter().map(|run| run.index)) {
        return Err("the start order does not list the jobs that ran".into());
    }
    let start = |index: &usize| runs.iter().find(|run| run.index == *index).map(|run| run.start);
    if !started.is_sorted_by_key(start) {
        return Err("the start order does not match the start times".into());
    }
    Ok(())
}

fn equal_jobs_start_in_order(runs: &[Run<'_>], record: &ReplayRecord<'_>) -> Result<(), String> {
    let place = |index: usize| record.started.iter().position(|other| *other == index);
    let jobs = record.trace.jobs();
    for later in runs {
        for (index, earlier) in jobs.iter().enumerate().take(later.index) {
            let equal = earlier.size == later.job.size && earlier.priority == later.job.priority;
            let refused = matches!(record.outcomes[index], JobOutcome::Refused(_));
            if equal && !refused && place(index).is_none_or(|first| Some(first) > place(later.index)) {
                return Err(format!("job {index} was overtaken by its equal {}", later.index));
            }
        }
    }
    Ok(())
}

/// Checks jobs that the hardware can hold and that ran: a policy may never accept a size, and holding back
/// others for it would not help.
fn no_job_is_overtaken_too_often(record: &ReplayRecord<'_>, limit: u32) -> Result<(), String> {
    let jobs = record.trace.jobs();
    for (place, index) in record.started.iter().enumerate() {
        let one = &jobs[*index];
        let passed = record.started[..place]
            .iter()
            .filter(|other| {
                let job = &jobs[**other];
                let behind = job.priority < one.priority || (job.priority == one.priority && *other > index);
                let start = match &record.outcomes[**other] {
                    JobOutcome::Ran { start, .. } => *start,
                    _ => Duration::ZERO,
                };
                behind && start >= one.submit
            })
            .count();
        if passed > limit as usize {
            return Err(format!(
                "job {index} was overtaken {passed} times, but the limit is {limit}"
            ));
        }
    }
    Ok(())
}

/// Returns a replayed trace in which small jobs overtake a large one.
fn correct_replay() -> (Trace, Topology) {
    let mut jobs = vec![job(0, 10, 2), job(1, 20, 4)];
    jobs.extend((2..8).map(|second| job(second, 3, 1)));
    (Trace::of_jobs(jobs), Topology::pod4())
}

/// Corrupts a correct replay and returns the message of the audit.
#[track_caller]
fn audit_error(limit: u32, corrupt: impl FnOnce(&mut ReplayRecord<'_>)) -> String {
    let (trace, topology) = correct_replay();
    let inventory = ipu_core::hardware::Inventory::new(&topology);
    let mut options = ScoreOptions::default();
    options.overtake_limit = 3;
    let replay = replay_trace(&BestFit, &trace, &inventory, &options);
    let mut record = ReplayRecord {
        trace: &trace,
        outcomes: replay.outcomes().to_vec(),
        started: replay.started().to_vec(),
    };
    audit(&record, &topology, 3).expect("the replay is correct");
    corrupt(&mut record);
    audit(&record, &topology, limit).expect_err("the replay is corrupt")
}

fn shift(outcome: &mut JobOutcome, seconds: i64, longer: i64) {
    let moved = |time: Duration, by: i64| Duration::from_secs(time.as_secs().checked_add_signed(by).unwrap());
    if let JobOutcome::Ran { start, end, .. } = outcome {
        (*start, *end) = (moved(*start, seconds), moved(*end, seconds + longer));
    }
}

#[test]
fn the_audit_detects_each_violated_invariant() {
    let early = audit_error(3, |record| shift(&mut record.outcomes[1], -10, 0));
    assert_eq!(early, "job 1 started before its submission");
    let longer = audit_error(3, |record| shift(&mut record.outcomes[0], 0, 1));
    assert_eq!(longer, "job 0 ran for the wrong time");
    let twice = audit_error(3, |record| shift(&mut record.outcomes[1], -5, 0));
    assert!(twice.ends_with("held the same IPU"), "{twice}");
    let lost = audit_error(3, |record| {
        record.outcomes.pop();
    });
    assert_eq!(lost, "8 jobs, 7 outcomes");
    let unlisted = audit_error(3, |record| {
        record.started.pop();
    });
    assert!(
        unlisted.starts_with("the start order does not list"),
        "{unlisted}"
    );
    let disordered = audit_error(3, |record| record.started.reverse());
    assert_eq!(disordered, "the start order does not match the start times");
    let passed = audit_error(2, |_| ());
    assert_eq!(passed, "job 1 was overtaken 3 times, but the limit is 2");
    let misplaced = audit_error(3, |record| {
        let JobOutcome::Ran { block, .. } = record.outcomes[1].clone() else {
            panic!("the job ran")
        };
        if let JobOutcome::Ran { block: other, .. } = &mut record.outcomes[2] {
            *other = block;
        }
    });
    assert!(misplaced.starts_with("job 2 ran on "), "{misplaced}");
}

#[test]
fn the_audit_detects_an_overtaken_equal_job() {
    let trace = Trace::of_jobs([job(0, 5, 1), job(0, 5, 1)]);
    let block = |first| Block::within(0, first, super::policies::count(1)).unwrap();
    let ran = |at, first| JobOutcome::Ran {
        start: Duration::from_secs(at),
        end: Duration::from_secs(at + 5),
        block: block(first),
    };
    let record = ReplayRecord {
        trace: &trace,
        outcomes: vec![ran(1, 0), ran(0, 1)],
        started: vec![1, 0],
    };
    let error = audit(&record, &Topology::pod4(), 16).unwrap_err();
    assert_eq!(error, "job 0 was overtaken by its equal 1");
}
