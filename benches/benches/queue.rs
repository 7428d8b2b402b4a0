//! One request with the scheduling of the queue, and the status of all queued requests, with 1,000 and 10,000
//! of them: with and without declared run times, and with a request that preempts. 16 partitions hold all 64
//! IPUs of an IPU-POD64; the queued requests are of 1, 2, 4 and 8 IPUs.

use std::sync::Arc;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use ipu_core::allocator::{
    Change, ControllerView, Entry, Event, Hardware, InventoryCapacity, Listing, Phase, Policy, Request,
    ServiceState, State, evaluate_queue, step,
};
use ipu_core::hardware::{Inventory, PartitionSpec, Topology};
use ipu_core::{ControllerName, JobKey, Owner, Timestamp};

const NOW: Timestamp = Timestamp::from_millis(1_000);

fn request(name: &str, size: u32, runtime: Option<Duration>) -> Request {
    let owner = Owner {
        kind: "IPUJob".into(),
        job: JobKey::new("bench", name, name).expect("a name"),
    };
    let size = size.try_into().expect("a power of two");
    let mut request = Request::of_instance(owner, 0, PartitionSpec::of_size(size));
    request.max_runtime = runtime;
    request
}

/// Returns an IPU-POD64 without partitions.
fn empty_pod() -> Hardware {
    let capacity = InventoryCapacity::new(Inventory::new(&Topology::pod64()));
    Hardware::new(vec![ControllerView {
        name: ControllerName::new("c").expect("a name"),
        service: ServiceState::Open,
        alias_of: None,
        listing: Ok(Arc::new(Listing::new([], Box::new(capacity)))),
    }])
}

fn apply(state: &mut State, hardware: &Hardware, policy: &Policy, event: &Event) {
    let step = step(state, hardware, policy, NOW, event).expect("an event that is not refused");
    step.changes.iter().for_each(|change| state.apply(change));
}

/// Returns a state with 16 active partitions and `queued` requests of `priority`.
fn state(
    hardware: &Hardware,
    policy: &Policy,
    queued: u64,
    runtime: Option<Duration>,
    priority: i32,
) -> State {
    let mut state = State::default();
    for number in 0..16 {
        let mut holder = request(&format!("holder{number}"), 4, runtime);
        holder.preemptible = true;
        apply(&mut state, hardware, policy, &Event::Ensure(holder));
    }
    apply(&mut state, hardware, policy, &Event::Schedule);
    let holders: Vec<Entry> = state.entries().map(|entry| Entry::clone(entry)).collect();
    for mut holder in holders {
        assert_eq!(holder.phase, Phase::Creating);
        holder.phase = Phase::Active;
        state.apply(&Change::Put(Arc::new(holder)));
    }
    for number in 0..queued {
        let mut request = request(&format!("j{number}"), 1 << (number % 4), runtime);
        request.priority = priority;
        apply(&mut state, hardware, policy, &Event::Ensure(request));
    }
    state
}

/// Records one request and schedules the queue, as one batch of the allocator does.
fn request_and_schedule(state: &mut State, hardware: &Hardware, policy: &Policy, next: &Request) {
    apply(state, hardware, policy, &Event::Ensure(next.clone()));
    apply(state, hardware, policy, &Event::Schedule);
}

fn benchmark_queue(criterion: &mut Criterion) {
    let mut policy = Policy::default();
    policy.length_limit = 20_000;
    policy.namespaces.max_queued = 20_000;
    let hardware = empty_pod();
    let mut group = criterion.benchmark_group("queue");
    group.sample_size(20);
    for (label, runtime) in [("without", None), ("with", Some(Duration::from_secs(600)))] {
        for queued in [1_000, 10_000] {
            let state = state(&hardware, &policy, queued, runtime, 0);
            let next = request("next", 4, runtime);
            let id = BenchmarkId::new(format!("request {label} run times"), queued);
            group.bench_function(id, |bencher| {
                let request = |state: &mut State| request_and_schedule(state, &hardware, &policy, &next);
                bencher.iter_batched_ref(|| state.clone(), request, BatchSize::LargeInput);
            });
            let id = BenchmarkId::new(format!("status {label} run times"), queued);
            group.bench_function(id, |bencher| {
                bencher.iter(|| evaluate_queue(&state, &hardware, &policy, NOW));
            });
        }
    }
    // A request that preempts all holders, ahead of a queue of the same priority.
    policy.preemption = true;
    for queued in [1_000, 10_000] {
        let state = state(&hardware, &policy, queued, None, 1);
        let mut next = request("next", 64, None);
        next.priority = 2;
        group.bench_function(BenchmarkId::new("preempting request", queued), |bencher| {
            let request = |state: &mut State| request_and_schedule(state, &hardware, &policy, &next);
            bencher.iter_batched_ref(|| state.clone(), request, BatchSize::LargeInput);
        });
    }
    group.finish();
}

criterion_group!(benches, benchmark_queue);
criterion_main!(benches);
