//! The expected start of queued requests: the next in line starts then if every holder ends as it has
//! declared, and so do all others if all have the same size. Else later ones may take other IPUs.

use std::collections::BTreeMap;
use std::time::Duration;

use ipu_core::allocator::{Event, Policy, Release, Request, evaluate_queue};
use ipu_core::{PartitionId, Timestamp};
use proptest::prelude::*;

use super::preemption::job;
use super::preemption::{Bed, beds, jobs};

impl Bed {
    /// Returns the holder that ends next.
    fn next_end(&self) -> Option<(Timestamp, PartitionId)> {
        let now = Timestamp::from_millis(self.now - 1);
        let holders = self.state.entries().filter(|entry| entry.phase.holds());
        holders
            .filter_map(|entry| Some((entry.declared_end(now)?, entry.id.clone())))
            .min()
    }
}

proptest! {
    #[test]
    fn requests_start_when_they_are_expected_if_holders_end_as_declared(
        mut bed in beds(),
        submitted in prop::collection::vec((jobs(), prop::option::weighted(0.8, 1_u64..9)), 1..20),
        is_uniform in any::<bool>(),
    ) {
        bed.policy.preemption = false;
        bed.policy.quotas.clear();
        bed.policy.overtake_limit = if is_uniform { 100 } else { 0 };
        let first = submitted[0].0;
        let mut requests: BTreeMap<PartitionId, Request> = BTreeMap::new();
        for (number, (job, minutes)) in submitted.into_iter().enumerate() {
            let mut job = if is_uniform { first } else { job };
            // Other namespaces may overtake a request that only its own namespace blocks.
            job.namespace = 0;
            let mut request = bed.request(&format!("j{number}"), job);
            request.max_runtime = minutes.map(|minutes| Duration::from_secs(60 * minutes));
            bed.submit(&request);
            requests.insert(request.id.clone(), request);
        }
        let mut queue = evaluate_queue(&bed.state, &bed.hardware(), &bed.policy, Timestamp::from_millis(bed.now));
        queue.truncate(if is_uniform { queue.len() } else { 1 });
        let mut starts: BTreeMap<PartitionId, Option<Timestamp>> =
            queue.iter().map(|(id, _)| (id.clone(), None)).collect();
        while let Some((end, id)) = bed.next_end() {
            bed.now = end.as_millis();
            prop_assert!(bed.apply(&Event::Release(Release::of(&requests[&id]))));
            bed.settle();
            for (id, start) in starts.iter_mut().filter(|(_, start)| start.is_none()) {
                *start = bed.state.get(id).filter(|entry| entry.phase.holds()).map(|_| end);
            }
        }
        let expected = queue.into_iter().map(|(id, status)| (id, status.earliest_fit));
        prop_assert_eq!(starts, expected.collect());
    }
}

/// Returns the expected starts of `queued` requests. Jobs are orders of sizes with the minutes that they run.
fn starts(ipus: u32, held: &[(u32, u64)], queued: &[(u32, u64)]) -> Vec<Option<u64>> {
    let mut bed = Bed::new(&[ipus], Policy::default());
    for (number, (order, minutes)) in held.iter().chain(queued).enumerate() {
        let mut request = bed.request(&format!("j{number}"), job(*order, 0, None));
        request.max_runtime = Some(Duration::from_secs(60 * minutes));
        bed.apply(&Event::Ensure(request));
        if number + 1 == held.len() {
            bed.settle();
        }
    }
    let now = Timestamp::from_millis(bed.now);
    let queue = evaluate_queue(&bed.state, &bed.hardware(), &bed.policy, now);
    let minutes = |start: Timestamp| start.since(now).as_secs() / 60;
    let starts = queue.into_iter().map(|(_, status)| status.earliest_fit);
    starts.map(|start| start.map(minutes)).collect()
}

#[test]
fn a_start_is_expected_after_the_ends_of_holders_and_of_all_requests_ahead() {
    let held = [(3, 10), (2, 99), (1, 99), (0, 99)];
    // The fourth one starts at once.
    let queued = [(2, 1), (1, 50), (2, 1), (0, 99), (3, 1)];
    let expected = [Some(10), Some(10), Some(11), None, Some(60)];
    assert_eq!(starts(16, &held, &queued), expected);
    let held: Vec<_> = (1..=64).map(|minutes| (0, minutes)).collect();
    assert_eq!(starts(64, &held, &[(6, 1)]), [Some(64)]);
}
