//! Replays compared with the allocator's queue: both start the same jobs in the same order at the same times.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipu_core::allocator::{
    Change, ControllerView, Event, Hardware, InventoryCapacity, Listing, Phase, Policy, Request,
    ServiceState, State, step,
};
use ipu_core::hardware::{Inventory, PartitionSpec, Topology};
use ipu_core::placement::{FirstFit, PlacementRequest, place};
use ipu_core::{JobKey, Owner, PartitionId, Timestamp};
use ipu_testkit::{JobOutcome, ScoreOptions, Trace, TraceJob, replay_trace};
use proptest::prelude::*;

use super::policies::{topology, trace};

fn request(index: usize, job: &TraceJob) -> Request {
    let owner = Owner {
        kind: "TraceJob".into(),
        job: JobKey::new("trace", format!("job-{index}"), index.to_string()).unwrap(),
    };
    let mut request = Request::of_instance(owner, 0, PartitionSpec::of_size(job.size));
    request.priority = job.priority;
    request
}

/// Returns a controller of `inventory`.
fn hardware(inventory: &Inventory) -> Hardware {
    let capacity = InventoryCapacity::new(inventory.clone());
    Hardware::new(vec![ControllerView {
        name: "c".parse().unwrap(),
        service: ServiceState::Open,
        alias_of: None,
        listing: Ok(Arc::new(Listing::new([], Box::new(capacity)))),
    }])
}

/// Returns the starts of a trace through the allocator; jobs that the hardware cannot hold wait forever.
fn replay_through_allocator(trace: &Trace, topology: &Topology, limit: u32) -> Vec<(usize, u64)> {
    let mut policy = Policy::default();
    policy.overtake_limit = limit;
    let mut inventory = Inventory::new(topology);
    let mut state = State::default();
    let mut queued: BTreeMap<PartitionId, usize> = BTreeMap::new();
    let mut running: BTreeMap<PartitionId, u64> = BTreeMap::new();
    let (mut starts, mut next) = (Vec::new(), 0);
    loop {
        let arrival = trace.jobs().get(next).map(|job| job.submit.as_millis() as u64);
        let end = running.values().copied().min();
        let Some(now) = arrival.into_iter().chain(end).min() else {
            return starts;
        };
        let ended: Vec<_> = running
            .iter()
            .filter(|(_, end)| **end <= now)
            .map(|(id, _)| id.clone())
            .collect();
        for id in ended {
            running.remove(&id);
            inventory.vacate(&id).unwrap();
            state.apply(&Change::Remove(id));
        }
        let mut events = Vec::new();
        while let Some(job) = trace
            .jobs()
            .get(next)
            .filter(|job| job.submit.as_millis() as u64 == now)
        {
            let request = request(next, job);
            queued.insert(request.id.clone(), next);
            events.push(Event::Ensure(request));
            next += 1;
        }
        events.push(Event::Schedule);
        for event in events {
            let hardware = hardware(&inventory);
            let now_wall = Timestamp::from_millis(now);
            let step = step(&state, &hardware, &policy, now_wall, &event).unwrap();
            for change in &step.changes {
                state.apply(change);
                let Change::Put(entry) = change else { continue };
                if entry.phase == Phase::Creating
                    && let Some(index) = queued.remove(&entry.id)
                {
                    let size = PlacementRequest::of_size(entry.spec.size);
                    let Ok(block) = place(&inventory, &size, &FirstFit) else {
                        panic!("the allocator starts a job that does not fit");
                    };
                    inventory.occupy(entry.id.clone(), block).unwrap();
                    let runtime = trace.jobs()[index].runtime.as_millis() as u64;
                    running.insert(entry.id.clone(), now + runtime);
                    starts.push((index, now));
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn a_replay_matches_the_allocators_queue(
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
        prop_assert_eq!(replayed, replay_through_allocator(&trace, &topology, limit));
    }
}

#[test]
fn another_overtake_limit_is_detected() {
    let mut jobs = vec![super::policies::job(0, 50, 2), super::policies::job(1, 5, 4)];
    jobs.extend((2..12).map(|second| super::policies::job(second, 1, 1)));
    let trace = Trace::of_jobs(jobs);
    let starts = |limit| replay_through_allocator(&trace, &Topology::pod4(), limit);
    assert_ne!(starts(2), starts(3));
}
