//! Scores from independent calculations.

use ipu_core::hardware::{Block, Inventory, IpuAddress, Topology};
use ipu_core::placement::{BestFit, PlacementPolicy};
use ipu_core::{CordonOwner, ReasonCode};
use ipu_testkit::{JobOutcome, Score, ScoreOptions, SyntheticOptions, Trace, replay_trace, score_policy};

use super::policies::{AlwaysFirst, LowerHalfOnly, SmallOnly, SometimesDeclines, Spread, count, job};

fn scored(policy: &dyn PlacementPolicy, trace: &Trace, inventory: &Inventory) -> Score {
    replay_trace(policy, trace, inventory, &ScoreOptions::default())
        .score()
        .clone()
}

#[test]
fn a_small_trace_has_the_score_calculated_by_hand() {
    // 8 IPUs. Two jobs of four run 0-10 and 0-20; one of eight arrives at 5 and waits for both; one of one
    // arrives at 10 and overtakes it.
    let trace = Trace::of_jobs([job(0, 10, 4), job(0, 20, 4), job(5, 10, 8), job(10, 30, 1)]);
    let score = score_policy::<BestFit>(&trace, &"1x2".parse().unwrap());
    assert_eq!(score.makespan_seconds, 50.0);
    assert_eq!(score.ipu_seconds, 40.0 + 80.0 + 80.0 + 30.0);
    assert_eq!(score.utilisation, 230.0 / 400.0);
    // A tenth of four jobs is none: steady from 0 to 10, when all eight IPUs are used.
    assert_eq!(score.steady_utilisation, Some(1.0));
    assert_eq!(score.waiting_by_size[&8].max, 35.0);
    assert_eq!(score.waiting_by_size[&8].slowdown, 4.5);
    assert_eq!(
        (score.waiting.mean, score.waiting.p50, score.waiting.p95),
        (8.75, 0.0, 35.0)
    );
    let cause = score.causes[&ReasonCode::NotEnoughFree];
    assert_eq!((cause.waited, cause.job_seconds), (1, 35.0));
    // 10-20: 3 free in blocks of 2 and 1; 20-40: 7 free, of 4, 2 and 1; otherwise whole or nothing.
    let mean = (10.0 * (1.0 / 3.0) + 20.0 * (3.0 / 7.0)) / 50.0;
    assert!((score.fragmentation.mean - mean).abs() < 1e-12);
    assert_eq!(
        (score.fragmentation.avoidable, score.fragmentation.idle),
        (0.0, 0.0)
    );
}

#[test]
fn free_but_scattered_ipus_are_reported_as_fragmentation() {
    // Single IPUs on all 8; those at odd places run long. Then 4 IPUs are free, and no two of them are
    // contiguous.
    let mut jobs: Vec<_> = (0..8)
        .map(|place| job(0, if place % 2 == 0 { 10 } else { 100 }, 1))
        .collect();
    jobs.push(job(20, 10, 2));
    let score = score_policy::<BestFit>(&Trace::of_jobs(jobs), &"1x2".parse().unwrap());
    let cause = score.causes[&ReasonCode::Fragmented];
    assert_eq!((cause.waited, cause.job_seconds), (1, 80.0));
    assert_eq!(score.fragmentation.idle, 4.0 * 80.0 / (8.0 * 110.0));
    // 10-100: blocks of 1, where 4 are possible.
    assert!((score.fragmentation.avoidable - 0.75 * 90.0 / 110.0).abs() < 1e-12);
}

#[test]
fn a_job_overtaken_sixteen_times_holds_back_later_jobs() {
    // A job of four runs long, a job requests all IPUs, and jobs of one arrive every second and run for one
    // second.
    let mut jobs = vec![job(0, 100, 4), job(1, 10, 8)];
    jobs.extend((2..60).map(|second| job(second, 1, 1)));
    let trace = Trace::of_jobs(jobs);
    let score = score_policy::<BestFit>(&trace, &"1x2".parse().unwrap());
    let held = score.causes[&ReasonCode::HeldBackForEarlier];
    assert_eq!(held.waited, 58 - 16);
    // The 42 jobs that arrive from 18 to 59 are held back until 100. Then the job of eight runs for 10, and
    // eight of them start each second.
    assert_eq!(held.job_seconds, 2583.0);
    let shortage = score.causes[&ReasonCode::NotEnoughFree];
    assert_eq!(shortage.job_seconds, 99.0 + 420.0 + 90.0);
    assert_eq!(score.waiting_by_size[&8].max, 99.0);
    // The k-th held back job waits 92 - k + k / 8; the 29th of all is the 13th shortest of them, k = 29.
    assert_eq!(score.waiting_by_size[&1].p50, 66.0);
}

#[test]
fn oversized_jobs_are_rejected_and_always_declined_jobs_are_stranded() {
    let trace = Trace::of_jobs([job(0, 5, 32), job(0, 5, 8), job(0, 5, 4)]);
    let small = score_policy::<SmallOnly>(&trace, &Topology::pod16());
    assert_eq!((small.ran, small.refused, small.stranded), (1, 1, 1));
    assert_eq!(small.causes[&ReasonCode::TooLarge].refused, 1);
    assert_eq!(small.causes[&ReasonCode::Declined].stranded, 1);
    let stubborn = score_policy::<AlwaysFirst>(&trace, &Topology::pod16());
    // The hardware rejects it, although this policy would choose a block.
    assert_eq!((stubborn.ran, stubborn.refused, stubborn.stranded), (2, 1, 0));
    assert_eq!(stubborn.makespan_seconds, 10.0);
    assert_eq!(stubborn.causes[&ReasonCode::Illegal].job_seconds, 5.0);
}

#[test]
fn an_always_declined_job_holds_back_no_other() {
    let jobs = (0..40).map(|second| job(second, 1, if second == 0 { 8 } else { 4 }));
    let score = score_policy::<SmallOnly>(&Trace::of_jobs(jobs), &Topology::pod16());
    assert_eq!((score.ran, score.stranded, score.waiting.max), (39, 1, 0.0));
    assert!(
        !score.causes.contains_key(&ReasonCode::HeldBackForEarlier),
        "{score}"
    );
}

#[test]
fn a_rejected_job_after_the_last_end_extends_the_makespan() {
    let trace = Trace::of_jobs([job(0, 10, 4), job(40, 10, 8)]);
    let score = score_policy::<BestFit>(&trace, &Topology::pod4());
    assert_eq!((score.makespan_seconds, score.utilisation), (40.0, 0.25));
    assert_eq!(score.fragmentation.mean, 0.0);
}

#[test]
fn cordoned_and_held_ipus_are_excluded_from_utilisation_and_named_as_the_cause() {
    let mut inventory = Inventory::new(&Topology::pod16());
    let at = IpuAddress {
        link_domain: 0,
        ipu: 0,
    };
    inventory.cordon(&CordonOwner::health(), [at]).unwrap();
    inventory
        .occupy("other".parse().unwrap(), Block::within(0, 8, count(8)).unwrap())
        .unwrap();
    let replay = replay_trace(
        &BestFit,
        &Trace::of_jobs([job(0, 10, 4), job(0, 10, 8)]),
        &inventory,
        &ScoreOptions::default(),
    );
    assert_eq!(replay.score().ipus, 7);
    assert!(matches!(replay.outcomes()[0], JobOutcome::Ran { .. }));
    assert_eq!(replay.outcomes()[1], JobOutcome::Stranded(ReasonCode::Cordoned));
}

#[test]
fn higher_priorities_start_first_and_equal_jobs_in_order() {
    let jobs = [(0, 0), (1, 0), (2, 1), (3, 0), (4, 1)];
    let trace = Trace::of_jobs(jobs.map(|(second, priority)| job(second, 10, 4).with_priority(priority)));
    let inventory = Inventory::new(&Topology::pod4());
    let replay = replay_trace(&BestFit, &trace, &inventory, &ScoreOptions::default());
    assert_eq!(replay.started(), [0, 2, 4, 1, 3]);
}

#[test]
fn a_declined_job_is_retried_after_another_job_starts() {
    // With 15 free IPUs it declines the pair; with 12, after three more single IPUs, it accepts.
    let trace = Trace::of_jobs([1, 2, 1, 1, 1].map(|ipus| job(0, 10, ipus)));
    let inventory = Inventory::new(&Topology::pod16());
    let replay = replay_trace(&SometimesDeclines, &trace, &inventory, &ScoreOptions::default());
    assert_eq!(replay.started(), [0, 2, 3, 4, 1]);
    assert_eq!(replay.score().waiting.max, 0.0);
}

#[test]
fn a_policy_that_declines_scores_worse_than_best_fit() {
    for seed in 0..4 {
        let trace = Trace::synthetic(&SyntheticOptions::mixed(seed, 400, 64));
        let inventory = Inventory::new(&Topology::pod64());
        let best = scored(&BestFit, &trace, &inventory);
        let wasteful = scored(&LowerHalfOnly, &trace, &inventory);
        assert!(wasteful.utilisation < best.utilisation, "{wasteful}\n{best}");
        assert!(wasteful.waiting.mean > best.waiting.mean, "{wasteful}\n{best}");
        assert!(
            wasteful.causes[&ReasonCode::Declined].job_seconds > 0.0,
            "{wasteful}"
        );
    }
}

#[test]
fn a_spreading_policy_scores_worse_with_requests_for_whole_link_domains() {
    // Every minute a single IPU for an hour, and every ten minutes a whole link domain of two.
    let jobs = (0..120).map(|minute| match minute % 10 {
        9 => job(60 * minute, 300, 64),
        _ => job(60 * minute, 3600, 1),
    });
    let trace = Trace::of_jobs(jobs);
    let inventory = Inventory::new(&Topology::pod128());
    let best = scored(&BestFit, &trace, &inventory);
    let spread = scored(&Spread, &trace, &inventory);
    assert_eq!(best.waiting.max, 0.0, "{best}");
    assert!(spread.waiting_by_size[&64].mean > 600.0, "{spread}");
    assert!(
        spread.causes[&ReasonCode::Fragmented].job_seconds > 0.0,
        "{spread}"
    );
    assert!(spread.fragmentation.avoidable > best.fragmentation.avoidable);
    assert!(spread.fragmentation.idle > 0.1 && best.fragmentation.idle == 0.0);
}

#[test]
fn an_empty_trace_has_a_zero_score_without_nan() {
    let score = score_policy::<BestFit>(&Trace::of_jobs([]), &Topology::pod4());
    assert_eq!(
        (score.jobs, score.utilisation, score.steady_utilisation),
        (0, 0.0, None)
    );
    assert_eq!(score.waiting.p99, 0.0);
    assert!(!score.to_string().contains("NaN"), "{score}");
}

#[test]
fn a_score_serializes_to_json() {
    let trace = Trace::of_jobs([job(0, 10, 4), job(0, 10, 4)]);
    let score = score_policy::<BestFit>(&trace, &Topology::pod4());
    let json = serde_json::to_value(&score).unwrap();
    assert_eq!(json["waitingBySize"]["4"]["max"], 10.0);
    assert_eq!(json["causes"]["NotEnoughFree"]["waited"], 1);
    assert_eq!(json["policy"], "best-fit");
}
