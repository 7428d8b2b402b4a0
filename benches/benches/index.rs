//! The index of free space and the frame allocator of the crate `buddy_system_allocator`, on the same trace.
//!
//! Both take the lowest block of the smallest free blocks that are large enough, so they make the same choices; this is
//! checked before anything is measured. The trace, and the state that it starts from, are made outside what is timed.
//!
//! At the end the two run in turns, the whole trace each, and a ratio is taken of each pair of runs: on a machine that is
//! slower from one second to the next two times that were taken a second apart cannot be compared.

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use buddy_system_allocator::FrameAllocator;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group};
use ipu_bench::{FILLS, IPUS, Trace, TraceStep};
use ipu_core::FreeIndex;

/// How often the two run in turns.
const TURNS: usize = 401;

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

fn run_index(index: &mut FreeIndex, steps: &[TraceStep], mut seen: impl FnMut(Option<usize>)) {
    for step in steps {
        match *step {
            TraceStep::Place { size, .. } => {
                let found = index.take_best(size);
                seen(found.map(|(row, first)| row * 64 + usize::from(first)));
            }
            TraceStep::Release { first, size, .. } => {
                black_box(index.release(first as usize / 64, (first % 64) as u8, size));
            }
        }
    }
}

fn run_buddies(buddies: &mut Buddies, steps: &[TraceStep], mut seen: impl FnMut(Option<usize>)) {
    for step in steps {
        match *step {
            TraceStep::Place { size, .. } => seen(buddies.alloc(size.get() as usize)),
            TraceStep::Release { first, size, .. } => buddies.dealloc(first as usize, size.get() as usize),
        }
    }
}

/// What the loop takes around either.
fn run_nothing(steps: &[TraceStep], mut seen: impl FnMut(Option<usize>)) {
    for step in steps {
        match *step {
            TraceStep::Place { size, .. } => seen(Some(size.get() as usize)),
            TraceStep::Release { first, size, .. } => _ = black_box((first, size)),
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

fn took(run: impl FnOnce()) -> Duration {
    let began = Instant::now();
    run();
    began.elapsed()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// One after the other, again and again: nanoseconds of a step of each, and what part of the other's time the index takes,
/// with the loop around both and without.
fn side_by_side() {
    println!(
        "| index, in turns | FreeIndex | buddy_system_allocator | the loop | ratio | ratio without the loop |"
    );
    println!("|---|---|---|---|---|---|");
    for (ipus, fill) in IPUS.iter().flat_map(|ipus| FILLS.map(|fill| (*ipus, fill))) {
        let trace = Trace::new(ipus, fill);
        let mut columns: [Vec<f64>; 5] = Default::default();
        for _ in 0..TURNS {
            let (mut index, mut buddies) = (index_of(&trace), buddies_of(&trace));
            let times = [
                took(|| run_index(&mut index, &trace.steps, |found| _ = black_box(found))),
                took(|| run_buddies(&mut buddies, &trace.steps, |found| _ = black_box(found))),
                took(|| run_nothing(&trace.steps, |found| _ = black_box(found))),
            ];
            let [ours, theirs, neither] =
                times.map(|time| time.as_secs_f64() * 1e9 / trace.steps.len() as f64);
            let ratios = [ours / theirs, (ours - neither) / (theirs - neither)];
            for (column, value) in columns
                .iter_mut()
                .zip([ours, theirs, neither].into_iter().chain(ratios))
            {
                column.push(value);
            }
        }
        let [ours, theirs, neither, ratio, net] = columns.map(|mut column| median(&mut column));
        println!(
            "| {ipus} IPUs, {fill} % full | {ours:.1} ns | {theirs:.1} ns | {neither:.1} ns | {ratio:.2} | {net:.2} |"
        );
    }
}

criterion_group! {
    name = benches;
    config = ipu_bench::short();
    targets = index
}

fn main() {
    benches();
    Criterion::default().configure_from_args().final_summary();
    // `cargo test --benches` only wants to know that it starts.
    if !std::env::args().any(|argument| argument == "--test") {
        side_by_side();
    }
}
