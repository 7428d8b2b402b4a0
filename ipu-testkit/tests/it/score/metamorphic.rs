//! Invariants of every trace, hardware and policy.

use ipu_core::ReasonCode;
use ipu_core::hardware::{Inventory, Topology};
use ipu_core::placement::BestFit;
use ipu_testkit::{JobOutcome, Replay, ScoreOptions, Trace, replay_trace, score_policy};
use proptest::prelude::*;

use super::audit::{ReplayRecord, audit};
use super::policies::{job, policies, topology, trace};

fn replayed(policy: usize, trace: &Trace, topology: &Topology, limit: u32) -> Replay {
    let policy = &policies()[policy];
    let mut options = ScoreOptions::default();
    options.overtake_limit = limit;
    replay_trace(&**policy, trace, &Inventory::new(topology), &options)
}

proptest! {
    #[test]
    fn every_replay_passes_the_audit(
        policy in 0..policies().len(),
        trace in trace(40, 4),
        topology in topology(),
        limit in prop_oneof![0_u32..4, Just(16)],
    ) {
        let replay = replayed(policy, &trace, &topology, limit);
        let course = ReplayRecord {
            trace: &trace,
            outcomes: replay.outcomes().to_vec(),
            started: replay.started().to_vec(),
        };
        prop_assert_eq!(audit(&course, &topology, limit), Ok(()));
    }

    #[test]
    fn the_sums_of_a_score_match_its_jobs(
        policy in 0..policies().len(),
        trace in trace(40, 4),
        topology in topology(),
    ) {
        let replay = replayed(policy, &trace, &topology, 3);
        let score = replay.score();
        let (mut work, mut wait, mut ran, mut refused, mut stranded) = (0, 0, 0, 0, 0);
        for (job, outcome) in trace.jobs().iter().zip(replay.outcomes()) {
            match outcome {
                JobOutcome::Ran { start, .. } => {
                    work += u64::from(job.size.get()) * job.runtime.as_secs();
                    wait += start.as_secs() - job.submit.as_secs();
                    ran += 1;
                }
                JobOutcome::Refused(cause) => {
                    prop_assert_eq!(cause, &ReasonCode::TooLarge);
                    refused += 1;
                }
                _ => stranded += 1,
            }
        }
        prop_assert_eq!((score.ran, score.refused, score.stranded), (ran, refused, stranded));
        prop_assert_eq!(score.jobs, ran + refused + stranded);
        prop_assert!((score.ipu_seconds - work as f64).abs() < 1e-6, "{} {work}", score.ipu_seconds);
        prop_assert!((score.waiting.mean * ran as f64 - wait as f64).abs() < 1e-6);
        prop_assert!((0.0..=1.0).contains(&score.utilisation));
        prop_assert!(score.steady_utilisation.is_none_or(|share| (0.0..=1.0).contains(&share)));
        prop_assert!((0.0..=1.0).contains(&score.fragmentation.mean));
        prop_assert!((0.0..=1.0).contains(&score.fragmentation.avoidable));
        if stranded == 0 {
            // The total wait time equals the sum over all causes.
            let by_cause: f64 = score.causes.values().map(|stats| stats.job_seconds).sum();
            prop_assert!((by_cause - wait as f64).abs() < 1e-6, "{by_cause} {wait}");
        }
        let waited = trace.jobs().iter().zip(replay.outcomes()).filter(|(job, outcome)| match outcome {
            JobOutcome::Ran { start, .. } => *start > job.submit,
            JobOutcome::Refused(_) => false,
            _ => true,
        });
        let came_to_wait: u64 = score.causes.values().map(|stats| stats.waited).sum();
        // Jobs of zero length may wait for others of zero length, for no time.
        prop_assert!(came_to_wait >= waited.count() as u64);
    }

    #[test]
    fn no_job_waits_with_unlimited_capacity(trace in trace(40, 4)) {
        let score = score_policy::<BestFit>(&trace, &"16x16".parse().unwrap());
        prop_assert_eq!(score.waiting.max, 0.0);
        prop_assert_eq!(score.ran, trace.jobs().len() as u64);
        prop_assert!(score.causes.is_empty());
    }

    #[test]
    fn waits_on_one_server_follow_the_lindley_recursion(
        jobs in prop::collection::vec((0_u64..9, 0_u64..9), 1..60),
    ) {
        let mut now = 0;
        let trace = Trace::of_jobs(jobs.iter().map(|(gap, runtime)| {
            now += gap;
            job(now, *runtime, 4)
        }));
        let replay = replayed(0, &trace, &Topology::pod4(), 16);
        // The next wait is this wait plus the run time, less the interval between the arrivals.
        let mut wait = 0_u64;
        for (place, outcome) in replay.outcomes().iter().enumerate() {
            let JobOutcome::Ran { start, .. } = outcome else { panic!("job {place} did not run") };
            prop_assert_eq!(start.as_secs() - trace.jobs()[place].submit.as_secs(), wait);
            if let Some((gap, _)) = jobs.get(place + 1) {
                wait = (wait + jobs[place].1).saturating_sub(*gap);
            }
        }
    }
}
