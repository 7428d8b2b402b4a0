//! Leases. The test moves the time of day, and lets time pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ipu_core::allocator::OwnerLiveness::{Dead, Live, Unknown};
use serde_json::json;

use super::*;

const LENGTH: Duration = Duration::from_secs(60);

/// A judge whose time of day is set in seconds, apart from the time that passes.
struct Bed {
    judge: LeaseLiveness,
    seconds: Arc<AtomicU64>,
}

impl Bed {
    fn at(seconds: u64) -> Self {
        let seconds = Arc::new(AtomicU64::new(seconds));
        let read = Arc::clone(&seconds);
        let clock = Arc::new(move || Timestamp::from_millis(read.load(Ordering::Relaxed) * 1_000));
        let judge = LeaseLiveness::new(clock);
        Self { judge, seconds }
    }

    /// Lets time pass by both clocks, in steps of at most ten seconds, and judges after each.
    async fn judge_for(&self, seconds: u64, entry: &Entry) -> OwnerLiveness {
        let mut judged = self.judge.judge(entry);
        let mut left = seconds;
        while left > 0 {
            let step = left.min(10);
            self.pass(step).await;
            judged = self.judge.judge(entry);
            left -= step;
        }
        judged
    }

    async fn pass(&self, seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        self.seconds.fetch_add(seconds, Ordering::Relaxed);
    }
}

fn entry(id: &str, holder: &str) -> Entry {
    let entry = json!({"id": id, "spec": {"size": 1}, "phase": {"is": "active"}, "ticket": 1, "since": 1,
        "holder": holder});
    serde_json::from_value(entry).unwrap()
}

#[test]
fn a_lease_lasts_from_a_second_to_a_week() {
    let now = Timestamp::from_millis(1_500);
    let seconds = |length| Lease::of(length, now).length().as_secs();
    assert_eq!(seconds(Duration::from_millis(59_999)), 59);
    assert_eq!(seconds(Duration::ZERO), 1);
    assert_eq!(seconds(Duration::from_secs(604_801)), 604_800);
    let lease = Lease::of(LENGTH, now);
    assert_eq!(lease.until(), Timestamp::from_millis(61_500));
    assert_eq!(lease.to_string(), "lease:60:61500");
    for text in ["lease:1:0", "lease:604800:0", "lease:60:61500"] {
        assert_eq!(text.parse::<Lease>().unwrap().to_string(), text);
    }
    for text in [
        "",
        "60:61500",
        "lease:60",
        "lease:0:1",
        "lease:604801:1",
        "lease:60:x",
        "lease:60:1:2",
    ] {
        let error = text.parse::<Lease>().unwrap_err().to_string();
        assert!(error.starts_with(&format!("{text:?} is not a lease")), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_is_dead_once_its_lease_expired_and_was_observed_unchanged_for_its_length() {
    let bed = Bed::at(1_000);
    let held = entry("a", "lease:60:1060000");
    assert_eq!(bed.judge_for(0, &held).await, Live, "renewed this moment");
    assert_eq!(bed.judge_for(59, &held).await, Live);
    // It was observed for as long as it lasts.
    assert_eq!(bed.judge_for(1, &held).await, Dead);
    // A lease that was first seen after its end is observed for its length.
    let late = entry("b", "lease:60:1000000");
    assert_eq!(bed.judge_for(59, &late).await, Unknown);
    assert_eq!(bed.judge_for(1, &late).await, Dead);
    // A renewal begins the observation again.
    let renewed = entry("b", "lease:60:1180000");
    assert_eq!(bed.judge_for(59, &renewed).await, Live);
    assert_eq!(bed.judge_for(1, &renewed).await, Dead);
}

#[tokio::test(start_paused = true)]
async fn a_gap_between_two_checks_counts_as_half_of_the_lease() {
    let bed = Bed::at(1_000);
    let late = entry("a", "lease:60:1000000");
    assert_eq!(bed.judge.judge(&late), Unknown);
    bed.pass(600).await;
    assert_eq!(bed.judge.judge(&late), Unknown);
    bed.pass(600).await;
    assert_eq!(bed.judge.judge(&late), Dead);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_steps_ends_no_owner_and_keeps_none_alive_for_ever() {
    let bed = Bed::at(1_000);
    let held = entry("a", "lease:60:1060000");
    assert_eq!(bed.judge_for(30, &held).await, Live);
    // An hour forward: the lease has not been observed for its length.
    bed.seconds.fetch_add(3_600, Ordering::Relaxed);
    assert_eq!(bed.judge_for(29, &held).await, Unknown);
    // Far back: its end is further away than it can be.
    let bed = Bed::at(0);
    assert_eq!(bed.judge_for(59, &held).await, Unknown);
    assert_eq!(bed.judge_for(1, &held).await, Dead);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_refused_again_and_again_lapses_with_its_lease() {
    let bed = Bed::at(1_000);
    let mut queued = entry("a", "lease:60:1060000");
    queued.refusals = serde_json::from_value(json!([
        {"controller": "c", "message": "full", "fingerprint": 1, "at": 1}
    ]))
    .unwrap();
    let mut judged = Live;
    for second in 0..12 {
        queued.since = Timestamp::from_millis(second);
        judged = bed.judge_for(10, &queued).await;
    }
    assert_eq!(judged, Dead);
}

#[tokio::test(start_paused = true)]
async fn an_owner_without_a_lease_is_of_unknown_liveness() {
    let bed = Bed::at(1_000);
    let other = entry("a", "process:b:1:2:3");
    assert_eq!(bed.judge_for(120, &other).await, Unknown);
    assert_eq!(format!("{:?}", bed.judge), "LeaseLiveness { .. }");
    assert_eq!(bed.judge.liveness_of(&other).await, Unknown);
}

#[tokio::test(start_paused = true)]
async fn leases_that_are_no_longer_judged_are_forgotten_and_get_more_time() {
    let late = entry("a", "lease:60:1000000");
    for (remembered, gap, expected) in [(4_095, 600, Dead), (4_096, 599, Dead), (4_096, 600, Unknown)] {
        let bed = Bed::at(1_000);
        assert_eq!(bed.judge_for(59, &late).await, Unknown);
        for number in 1..remembered {
            let other = entry(&format!("b{number}"), "lease:604800:1000000");
            assert_eq!(bed.judge.judge(&other), Unknown);
        }
        bed.pass(gap).await;
        assert_eq!(bed.judge.judge(&late), expected, "{remembered} {gap}");
    }
}
