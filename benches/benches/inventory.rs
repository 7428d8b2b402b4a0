//! The whole inventory: holders alone, placement with holders, and both with cordoned IPUs.
//!
//! Cost of one step, a placement or a release, on the traces of the index benchmark. "Holders" occupies a
//! known block and vacates it; the difference to "full" is the policy and the check of its choice.

use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ipu_bench::{FILLS, IPUS, Trace, TraceStep};
use ipu_core::allocator::{Capacity, InventoryCapacity};
use ipu_core::hardware::{Block, Inventory, IpuAddress, PartitionSpec, Topology};
use ipu_core::placement::{BestFit, FirstFit, PlacementPolicy, PlacementRequest, place};
use ipu_core::{CordonOwner, IpuCount, PartitionId};

/// Bit mask of one machine per link domain, which is cordoned.
const CORDONED: u64 = 0x00f0_0000;

fn id(number: usize) -> PartitionId {
    PartitionId::new(format!("default-train-{number:08x}-0")).expect("a legal id")
}

fn block(first: u32, size: IpuCount) -> Block {
    Block::within(first / 64, (first % 64) as u8, size).expect("blocks of a trace are aligned")
}

/// Returns the inventory at the start of a trace.
fn inventory(trace: &Trace, cordoned: u64) -> Inventory {
    let topology: Topology = format!("{}x16", trace.rows.len()).parse().expect("a topology");
    let mut inventory = Inventory::new(&topology);
    let ipus_to_cordon = (0..topology.link_domains()).flat_map(|link_domain| {
        let ipus = (0..64).filter(move |ipu| cordoned >> ipu & 1 == 1);
        ipus.map(move |ipu| IpuAddress { link_domain, ipu })
    });
    inventory
        .cordon(&CordonOwner::health(), ipus_to_cordon)
        .expect("the IPUs exist");
    for (number, (first, size)) in trace.start.iter().enumerate() {
        inventory
            .occupy(id(number), block(*first, *size))
            .expect("the initial blocks are free");
    }
    inventory
}

/// Partition ids of a run: one for each placement in order, and one for each release.
struct Ids {
    placed: Vec<PartitionId>,
    all: Vec<PartitionId>,
}

impl Ids {
    fn new(trace: &Trace) -> Self {
        let all: Vec<PartitionId> = (0..trace.start.len() + trace.placed).map(id).collect();
        Self {
            placed: all[trace.start.len()..].iter().rev().cloned().collect(),
            all,
        }
    }
}

/// Occupies and vacates the blocks chosen by the trace.
fn run_holders(inventory: &mut Inventory, ids: &mut Ids, steps: &[TraceStep]) {
    for step in steps {
        match *step {
            TraceStep::Place { size, first } => {
                let id = ids.placed.pop().expect("an id for each placement");
                black_box(inventory.occupy(id, block(first, size))).expect("the block is free");
            }
            TraceStep::Release { number, .. } => {
                black_box(inventory.vacate(&ids.all[number])).expect("the partition is held");
            }
        }
    }
}

/// Places, occupies and vacates.
fn run_full(inventory: &mut Inventory, ids: &mut Ids, steps: &[TraceStep]) {
    for step in steps {
        match *step {
            TraceStep::Place { size, .. } => {
                let id = ids.placed.pop().expect("an id for each placement");
                let Ok(block) = place(inventory, &PlacementRequest::of_size(size), &BestFit) else {
                    panic!("every placement of a trace succeeds");
                };
                black_box(inventory.occupy(id, block)).expect("the block is free");
            }
            TraceStep::Release { number, .. } => {
                black_box(inventory.vacate(&ids.all[number])).expect("the partition is held");
            }
        }
    }
}

type Run = fn(&mut Inventory, &mut Ids, &[TraceStep]);

fn steps(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("inventory");
    let kinds: [(&str, u64, Run); 3] = [
        ("holders", 0, run_holders),
        ("full", 0, run_full),
        ("full with exclusions", CORDONED, run_full),
    ];
    for (ipus, fill) in IPUS.iter().flat_map(|ipus| FILLS.map(|fill| (*ipus, fill))) {
        for (kind, cordoned, run) in kinds {
            let trace = Trace::of_rows(vec![!cordoned; ipus as usize / 64], fill);
            let start = inventory(&trace, cordoned);
            group.throughput(Throughput::Elements(trace.steps.len() as u64));
            let name = BenchmarkId::new(kind, format!("{ipus} IPUs, {fill} % full"));
            group.bench_function(name, |bencher| {
                bencher.iter_batched_ref(
                    || (start.clone(), Ids::new(&trace)),
                    |(inventory, ids)| run(inventory, ids, &trace.steps),
                    BatchSize::PerIteration,
                );
            });
        }
    }
    group.finish();
}

/// Queries that scan every link domain once.
fn queries(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("question");
    for ipus in IPUS {
        let inventory = inventory(&Trace::new(ipus, 90), 0);
        for size in [4, 64, 256] {
            let size = IpuCount::try_from(size).expect("a power of two");
            group.bench_function(
                BenchmarkId::new(format!("fit_count of {size}"), ipus),
                |bencher| {
                    bencher.iter(|| black_box(&inventory).fit_count(black_box(size), None));
                },
            );
            group.bench_function(
                BenchmarkId::new(format!("blockers_for {size}"), ipus),
                |bencher| {
                    bencher.iter(|| black_box(&inventory).blockers_for(black_box(size), None));
                },
            );
        }
    }
    group.finish();
}

/// One decision of a policy, and the number of partitions that fit by its decisions.
fn decisions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("policy");
    let policies: [&dyn PlacementPolicy; 2] = [&FirstFit, &BestFit];
    for ipus in IPUS {
        let inventory = inventory(&Trace::new(ipus, 90), 0);
        for size in [1, 4, 64] {
            let size = IpuCount::try_from(size).expect("a power of two");
            let request = PlacementRequest::of_size(size);
            for policy in policies {
                let name = BenchmarkId::new(format!("{} of {size}", policy.name()), ipus);
                group.bench_function(name, |bencher| {
                    bencher.iter(|| place(black_box(&inventory), &request, policy));
                });
            }
            let capacity = InventoryCapacity::new(inventory.clone());
            let spec = PartitionSpec::of_size(size);
            group.bench_function(
                BenchmarkId::new(format!("partitions of {size} that fit"), ipus),
                |bencher| {
                    bencher.iter(|| black_box(&capacity).fit_count(&spec));
                },
            );
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = ipu_bench::short();
    targets = steps, queries, decisions
}
criterion_main!(benches);
