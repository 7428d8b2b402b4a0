//! Replays compared with the ledger's queue: both start the same jobs in the same order at the same times.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ipu_core::{
    Admission, CallWindow, Change, ControllerView, ControllersSnapshot, FirstFit, Inventory,
    InventoryCapacity, JobKey, LedgerState, Listing, Owner, PartitionId, PartitionSpec, Placement,
    PlacementRequest, QueuePolicy, Reason, Request, ServiceState, Timestamp, Topology, place,
};
use ipu_testkit::{JobOutcome, ScoreOptions, Trace, TraceJob, replay_trace};
use proptest::prelude::*;

use super::policies::{topology, trace};

/// Ledger with a controller that places by first fit, as the ledger expects.
struct LedgerFixture {
    state: LedgerState,
    rules: QueuePolicy,
    inventory: Inventory,
    running: BTreeMap<PartitionId, (Timestamp, usize)>,
    /// Start time of each job.
    starts: Vec<(usize, u64)>,
}

impl LedgerFixture {
    fn new(topology: &Topology, limit: u32) -> Self {
        let mut rules = QueuePolicy::default();
        rules.overtake_limit = limit;
        Self {
            state: LedgerState::default(),
            rules,
            inventory: Inventory::new(topology),
            running: BTreeMap::new(),
            starts: Vec::new(),
        }
    }

    fn world(&self) -> ControllersSnapshot {
        let listing = Listing::new([], Box::new(InventoryCapacity::new(self.inventory.clone())));
        ControllersSnapshot::new(vec![ControllerView {
            name: "c".parse().unwrap(),
            service: ServiceState::Open,
            listing: Ok(Arc::new(listing)),
        }])
    }

    /// Retries all queued requests, in order, until none starts.
    fn request_all(
        &mut self,
        requests: &BTreeMap<PartitionId, (Request, usize)>,
        trace: &Trace,
        now: Timestamp,
    ) {
        let queue: Vec<PartitionId> = self
            .state
            .queue()
            .into_iter()
            .map(|entry| entry.id.clone())
            .collect();
        for id in queue {
            let (request, index) = &requests[&id];
            let window = CallWindow {
                now,
                settle: Duration::ZERO,
            };
            let step = self
                .state
                .request(request, &self.world(), &self.rules, window)
                .unwrap();
            for change in &step.changes {
                self.state.apply(change);
            }
            if let Admission::Drive(entry) = step.outcome {
                let size = PlacementRequest::of_size(entry.spec.size);
                let Placement::Fits(block) = place(&self.inventory, &size, &FirstFit) else {
                    panic!("the ledger starts a job that does not fit");
                };
                self.inventory.occupy(id.clone(), block).unwrap();
                self.starts.push((*index, now.as_millis()));
                self.running
                    .insert(id, (now.plus(trace.jobs()[*index].runtime), *index));
            }
        }
    }

    fn end_jobs(&mut self, now: Timestamp) {
        let ended: Vec<PartitionId> = self
            .running
            .iter()
            .filter(|(_, (end, _))| *end <= now)
            .map(|(id, _)| id.clone())
            .collect();
        for id in ended {
            self.running.remove(&id);
            self.inventory.vacate(&id).unwrap();
            self.state.apply(&Change::Remove(id));
        }
    }
}

fn request(index: usize, job: &TraceJob) -> Request {
    let owner = Owner {
        kind: "TraceJob".into(),
        job: JobKey::new("trace", format!("job-{index}"), index.to_string()).unwrap(),
    };
    let mut request = Request::of_instance(owner, 0, PartitionSpec::of_size(job.size));
    request.priority = job.priority;
    request
}

/// Returns the starts of a trace through the ledger; jobs that the hardware cannot hold wait forever.
fn replay_through_ledger(trace: &Trace, topology: &Topology, limit: u32) -> Vec<(usize, u64)> {
    let mut ledger = LedgerFixture::new(topology, limit);
    let mut requests = BTreeMap::new();
    let mut next = 0;
    let closed = ControllersSnapshot::new(vec![ControllerView {
        name: "c".parse().unwrap(),
        service: ServiceState::Open,
        listing: Err(Reason::new("ControllerUnavailable", "not yet")),
    }]);
    loop {
        let arrival = trace.jobs().get(next).map(|job| job.submit.as_millis() as u64);
        let end = ledger.running.values().map(|(end, _)| end.as_millis()).min();
        let Some(now) = arrival.into_iter().chain(end).min() else {
            return ledger.starts;
        };
        let now = Timestamp::from_millis(now);
        ledger.end_jobs(now);
        // All requests of this time are queued before any starts.
        while let Some(job) = trace
            .jobs()
            .get(next)
            .filter(|job| job.submit.as_millis() as u64 == now.as_millis())
        {
            let request = request(next, job);
            let window = CallWindow {
                now,
                settle: Duration::ZERO,
            };
            let step = ledger
                .state
                .request(&request, &closed, &ledger.rules, window)
                .unwrap();
            assert!(matches!(step.outcome, Admission::Queued(_)));
            for change in &step.changes {
                ledger.state.apply(change);
            }
            requests.insert(request.id.clone(), (request, next));
            next += 1;
        }
        ledger.request_all(&requests, trace, now);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn a_replay_matches_the_ledgers_queue(
        trace in trace(30, 4),
        topology in topology(),
        limit in prop_oneof![0_u32..4, Just(16)],
    ) {
        let mut options = ScoreOptions::default();
        options.overtake_limit = limit;
        let replay = replay_trace(&FirstFit, &trace, &Inventory::new(&topology), &options);
        let replayed: Vec<(usize, u64)> = replay
            .started()
            .iter()
            .map(|index| match &replay.outcomes()[*index] {
                JobOutcome::Ran { start, .. } => (*index, start.as_millis() as u64),
                other => panic!("{other:?}"),
            })
            .collect();
        prop_assert_eq!(replayed, replay_through_ledger(&trace, &topology, limit));
    }
}

#[test]
fn another_overtake_limit_is_detected() {
    let mut jobs = vec![super::policies::job(0, 50, 2), super::policies::job(1, 5, 4)];
    jobs.extend((2..12).map(|second| super::policies::job(second, 1, 1)));
    let trace = Trace::of_jobs(jobs);
    let starts = |limit| replay_through_ledger(&trace, &Topology::pod4(), limit);
    assert_ne!(starts(2), starts(3));
}
