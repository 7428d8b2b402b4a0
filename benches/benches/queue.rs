//! One request, and the evaluation of the queue, with 100, 1,000 and 10,000 queued requests: with and
//! without declared run times. 16 partitions hold all 64 IPUs of an IPU-POD64; the queued requests are of
//! 1, 2, 4 and 8 IPUs.

use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use ipu_core::{
    CallWindow, Change, ControllerName, ControllerView, ControllersSnapshot, Entry, EntryState, Inventory,
    InventoryCapacity, JobKey, LedgerState, Listing, Location, Owner, PartitionSpec, QueuePolicy, Request,
    ServiceState, Timestamp, Topology,
};

const WINDOW: CallWindow = CallWindow {
    now: Timestamp::from_millis(1_000),
    settle: Duration::from_secs(30),
};

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
fn empty_pod() -> ControllersSnapshot {
    let capacity = InventoryCapacity::new(Inventory::new(&Topology::pod64()));
    ControllersSnapshot::new(vec![ControllerView {
        name: ControllerName::new("c").expect("a name"),
        service: ServiceState::Open,
        listing: Ok(Arc::new(Listing::new([], Box::new(capacity)))),
    }])
}

/// Returns a ledger with 16 partitions and `queued` requests.
fn ledger(
    controllers: &ControllersSnapshot,
    policy: &QueuePolicy,
    queued: u64,
    runtime: Option<Duration>,
) -> LedgerState {
    let mut state = LedgerState::default();
    for number in 0..16 {
        let mut holder = request(&format!("holder{number}"), 4, runtime);
        holder.preemptible = true;
        let step = state
            .request(&holder, controllers, policy, WINDOW)
            .expect("the request is new");
        step.changes.iter().for_each(|change| state.apply(change));
        // Its partition is active.
        let EntryState::Intent { fence, .. } = state.get(&holder.id).expect("it is recorded").state else {
            continue;
        };
        let location = Location::default();
        let step = state
            .mark_active(&holder.id, 0, &location, Some(fence), WINDOW.now)
            .expect("it is made");
        step.changes.iter().for_each(|change| state.apply(change));
    }
    // Each entry is created in an empty ledger, which is fast at any queue length.
    for number in 0..queued {
        let queued_request = request(&format!("j{number}"), 1 << (number % 4), runtime);
        let step =
            LedgerState::default().request(&queued_request, &ControllersSnapshot::default(), policy, WINDOW);
        for change in step.expect("the request is new").changes {
            if let Change::Put(entry) = change {
                let mut entry = Entry::clone(&entry);
                entry.ticket = 100 + number;
                state.apply(&Change::Put(Arc::new(entry)));
            }
        }
    }
    state
}

fn benchmark_queue(criterion: &mut Criterion) {
    let mut policy = QueuePolicy::default();
    policy.length_limit = 20_000;
    let controllers = empty_pod();
    let mut group = criterion.benchmark_group("queue");
    group.sample_size(20);
    for (label, runtime) in [("without", None), ("with", Some(Duration::from_secs(600)))] {
        for queued in [100, 1_000, 10_000] {
            let state = ledger(&controllers, &policy, queued, runtime);
            let next = request("next", 4, runtime);
            let id = BenchmarkId::new(format!("request {label} run times"), queued);
            group.bench_function(id, |bencher| {
                bencher.iter(|| state.request(&next, &controllers, &policy, WINDOW));
            });
            let id = BenchmarkId::new(format!("judge_line {label} run times"), queued);
            group.bench_function(id, |bencher| {
                bencher.iter(|| state.evaluate_queue(&controllers, &policy, WINDOW.now));
            });
        }
    }
    // A request that preempts all holders, behind a queue of the same priority.
    policy.preemption = true;
    for queued in [100, 1_000, 10_000] {
        let mut state = ledger(&controllers, &policy, queued, None);
        let mut next = request("next", 64, None);
        next.priority = 1;
        let raised: Vec<Change> = state
            .queue()
            .into_iter()
            .map(|entry| {
                let mut entry = Entry::clone(entry);
                entry.priority = 1;
                Change::Put(Arc::new(entry))
            })
            .collect();
        raised.iter().for_each(|change| state.apply(change));
        group.bench_function(BenchmarkId::new("preempting request", queued), |bencher| {
            bencher.iter(|| state.request(&next, &controllers, &policy, WINDOW));
        });
    }
    group.finish();
}

criterion_group!(benches, benchmark_queue);
criterion_main!(benches);
