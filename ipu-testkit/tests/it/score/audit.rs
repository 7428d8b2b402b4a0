//! What must hold of every replay, worked out from what became of each job alone; and that an audit finds what is broken.

use std::time::Duration;

use ipu_core::{BestFit, Block, Topology};
use ipu_testkit::{JobOutcome, ScoreOptions, Trace, TraceJob, replay_trace};

use super::policies::job;

/// What became of the jobs of a trace.
#[derive(Clone, Debug)]
pub(crate) struct Course<'a> {
    pub(crate) trace: &'a Trace,
    pub(crate) outcomes: Vec<JobOutcome>,
    pub(crate) started: Vec<usize>,
}

/// A job that ran.
struct Run<'a> {
    index: usize,
    job: &'a TraceJob,
    start: Duration,
    end: Duration,
    block: &'a Block,
}

/// The first law that does not hold.
pub(crate) fn audit(course: &Course<'_>, topology: &Topology, limit: u32) -> Result<(), String> {
    let jobs = course.trace.jobs();
    if course.outcomes.len() != jobs.len() {
        return Err(format!("{} jobs, {} outcomes", jobs.len(), course.outcomes.len()));
    }
    let runs: Vec<Run<'_>> = jobs
        .iter()
        .zip(&course.outcomes)
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
    order_is_complete(&runs, &course.started)?;
    nobody_is_overtaken_by_an_equal(&runs, course)?;
    nobody_is_passed_too_often(course, limit)
}

fn each_ran_as_it_was_submitted(runs: &[Run<'_>], topology: &Topology) -> Result<(), String> {
    for run in runs {
        let exists = run
            .block
            .masks()
            .all(|(domain, mask)| mask & !topology.ipu_mask(domain) == 0);
        if run.start < run.job.submit {
            return Err(format!("job {} started before it came", run.index));
        }
        if run.end != run.start + run.job.runtime {
            return Err(format!("job {} ran another time than it takes", run.index));
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
        return Err("the order of starts lists others than those who ran".into());
    }
    let start = |index: &usize| runs.iter().find(|run| run.index == *index).map(|run| run.start);
    if !started.is_sorted_by_key(start) {
        return Err("the order of starts is not that of their times".into());
    }
    Ok(())
}

fn nobody_is_overtaken_by_an_equal(runs: &[Run<'_>], course: &Course<'_>) -> Result<(), String> {
    let place = |index: usize| course.started.iter().position(|other| *other == index);
    let jobs = course.trace.jobs();
    for later in runs {
        for (index, earlier) in jobs.iter().enumerate().take(later.index) {
            let equal = earlier.size == later.job.size && earlier.priority == later.job.priority;
            let refused = matches!(course.outcomes[index], JobOutcome::Refused(_));
            if equal && !refused && place(index).is_none_or(|first| Some(first) > place(later.index)) {
                return Err(format!("job {index} was overtaken by its equal {}", later.index));
            }
        }
    }
    Ok(())
}

/// Of those whom the hardware could hold and who ran in the end: a policy may never want a size, and to hold others back
/// for it would not help.
fn nobody_is_passed_too_often(course: &Course<'_>, limit: u32) -> Result<(), String> {
    let jobs = course.trace.jobs();
    for (place, index) in course.started.iter().enumerate() {
        let one = &jobs[*index];
        let passed = course.started[..place]
            .iter()
            .filter(|other| {
                let job = &jobs[**other];
                let behind = job.priority < one.priority || (job.priority == one.priority && *other > index);
                let start = match &course.outcomes[**other] {
                    JobOutcome::Ran { start, .. } => *start,
                    _ => Duration::ZERO,
                };
                behind && start >= one.submit
            })
            .count();
        if passed > limit as usize {
            return Err(format!(
                "job {index} was passed {passed} times, and {limit} are allowed"
            ));
        }
    }
    Ok(())
}

/// A trace in which small jobs pass a large one, as it went.
fn sound() -> (Trace, Topology) {
    let mut jobs = vec![job(0, 10, 2), job(1, 20, 4)];
    jobs.extend((2..8).map(|second| job(second, 3, 1)));
    (Trace::of_jobs(jobs), Topology::pod4())
}

/// Breaks a sound replay, and answers what the audit says of it.
#[track_caller]
fn broken(limit: u32, breaks: impl FnOnce(&mut Course<'_>)) -> String {
    let (trace, topology) = sound();
    let inventory = ipu_core::Inventory::new(&topology);
    let mut options = ScoreOptions::default();
    options.overtake_limit = 3;
    let replay = replay_trace(&BestFit, &trace, &inventory, &options);
    let mut course = Course {
        trace: &trace,
        outcomes: replay.outcomes().to_vec(),
        started: replay.started().to_vec(),
    };
    audit(&course, &topology, 3).expect("it is sound");
    breaks(&mut course);
    audit(&course, &topology, limit).expect_err("it is broken")
}

fn shift(outcome: &mut JobOutcome, seconds: i64, longer: i64) {
    let moved = |time: Duration, by: i64| Duration::from_secs(time.as_secs().checked_add_signed(by).unwrap());
    if let JobOutcome::Ran { start, end, .. } = outcome {
        (*start, *end) = (moved(*start, seconds), moved(*end, seconds + longer));
    }
}

#[test]
fn an_audit_finds_each_law_that_is_broken() {
    let early = broken(3, |course| shift(&mut course.outcomes[1], -10, 0));
    assert_eq!(early, "job 1 started before it came");
    let longer = broken(3, |course| shift(&mut course.outcomes[0], 0, 1));
    assert_eq!(longer, "job 0 ran another time than it takes");
    let twice = broken(3, |course| shift(&mut course.outcomes[1], -5, 0));
    assert!(twice.ends_with("held the same IPU"), "{twice}");
    let lost = broken(3, |course| {
        course.outcomes.pop();
    });
    assert_eq!(lost, "8 jobs, 7 outcomes");
    let unlisted = broken(3, |course| {
        course.started.pop();
    });
    assert!(
        unlisted.starts_with("the order of starts lists others"),
        "{unlisted}"
    );
    let disordered = broken(3, |course| course.started.reverse());
    assert_eq!(disordered, "the order of starts is not that of their times");
    let passed = broken(2, |_| ());
    assert_eq!(passed, "job 1 was passed 3 times, and 2 are allowed");
    let misplaced = broken(3, |course| {
        let JobOutcome::Ran { block, .. } = course.outcomes[1].clone() else {
            panic!("it ran")
        };
        if let JobOutcome::Ran { block: other, .. } = &mut course.outcomes[2] {
            *other = block;
        }
    });
    assert!(misplaced.starts_with("job 2 ran on "), "{misplaced}");
}

#[test]
fn an_audit_finds_an_equal_that_overtook() {
    let trace = Trace::of_jobs([job(0, 5, 1), job(0, 5, 1)]);
    let block = |first| Block::within(0, first, super::policies::count(1)).unwrap();
    let ran = |at, first| JobOutcome::Ran {
        start: Duration::from_secs(at),
        end: Duration::from_secs(at + 5),
        block: block(first),
    };
    let course = Course {
        trace: &trace,
        outcomes: vec![ran(1, 0), ran(0, 1)],
        started: vec![1, 0],
    };
    let error = audit(&course, &Topology::pod4(), 16).unwrap_err();
    assert_eq!(error, "job 0 was overtaken by its equal 1");
}
