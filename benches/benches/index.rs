//! The index of free space and the frame allocator of the crate `buddy_system_allocator`, on the same trace.
//!
//! Both take the lowest block of the smallest free blocks that are large enough, so they make the same choices; this is
//! checked before anything is measured. The trace, and the state that it starts from, are made outside what is timed.

use std::hint::black_box;

use buddy_system_allocator::FrameAllocator;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ipu_bench::{FILLS, IPUS, Step, Trace};
use ipu_core::FreeIndex;

/// Blocks of up to 2^6 IPUs, as in a link domain.
type Buddies = FrameAllocator<7>;

fn index_of(trace: &Trace) -> FreeIndex {
    let mut index = FreeIndex::new(trace.rows.iter().copied());
    for (first, size) in &trace.start {
        assert!(
            index.take(*first as usize / 64, (first % 64) as u8, *size),
            "the start is free"
        );
    }
    index
}

fn buddies_of(trace: &Trace) -> Buddies {
    let mut buddies = Buddies::new();
    buddies.add_frame(0, trace.rows.len() * 64);
    for (first, size) in &trace.start {
        let taken = buddies.alloc_at(*first as usize, size.get() as usize);
        assert!(taken.is_some(), "the start is free");
    }
    buddies
}

fn run_index(index: &mut FreeIndex, steps: &[Step], mut seen: impl FnMut(Option<usize>)) {
    for step in steps {
        match *step {
            Step::Place { size, .. } => {
                let found = index.take_best(size);
                seen(found.map(|(row, first)| row * 64 + usize::from(first)));
            }
            Step::Release { first, size, .. } => {
                black_box(index.give(first as usize / 64, (first % 64) as u8, size));
            }
        }
    }
}

fn run_buddies(buddies: &mut Buddies, steps: &[Step], mut seen: impl FnMut(Option<usize>)) {
    for step in steps {
        match *step {
            Step::Place { size, .. } => seen(buddies.alloc(size.get() as usize)),
            Step::Release { first, size, .. } => buddies.dealloc(first as usize, size.get() as usize),
        }
    }
}

fn index(criterion: &mut Criterion) {
    for (ipus, fill) in IPUS.iter().flat_map(|ipus| FILLS.map(|fill| (*ipus, fill))) {
        let trace = Trace::new(ipus, fill);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        run_index(&mut index_of(&trace), &trace.steps, |found| ours.push(found));
        run_buddies(&mut buddies_of(&trace), &trace.steps, |found| theirs.push(found));
        assert!(
            ours == theirs && !ours.contains(&None),
            "both choose the same blocks"
        );
        let mut group = criterion.benchmark_group("index");
        group.throughput(Throughput::Elements(trace.steps.len() as u64));
        let name = format!("{ipus} IPUs, {fill} % full");
        group.bench_function(BenchmarkId::new("FreeIndex", &name), |bencher| {
            bencher.iter_batched_ref(
                || index_of(&trace),
                |index| run_index(index, &trace.steps, |found| _ = black_box(found)),
                BatchSize::PerIteration,
            );
        });
        group.bench_function(BenchmarkId::new("buddy_system_allocator", &name), |bencher| {
            bencher.iter_batched_ref(
                || buddies_of(&trace),
                |buddies| run_buddies(buddies, &trace.steps, |found| _ = black_box(found)),
                BatchSize::PerIteration,
            );
        });
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = ipu_bench::short();
    targets = index
}
criterion_main!(benches);
