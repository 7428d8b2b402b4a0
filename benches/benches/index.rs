//! Compares the free-space index with the frame allocator of the crate `buddy_system_allocator`, on the
//! same trace.
//!
//! Both take the lowest block of the smallest free blocks that are large enough, so they make the same
//! choices; the benchmark checks this first. The trace and its initial state are prepared outside the timed
//! section.
//!
//! At the end, interleaved (A/B) runs execute the whole trace with each, and compute a ratio per pair of
//! runs. On a machine whose speed varies from one second to the next, times taken a second apart are not
//! comparable.

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use buddy_system_allocator::FrameAllocator;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group};
use ipu_bench::{FILLS, IPUS, Trace, TraceStep};
use ipu_core::hardware::FreeIndex;

/// Number of interleaved runs.
const INTERLEAVED_RUNS: usize = 401;

/// Blocks of up to 2^6 IPUs, as in a link domain.
type Buddies = FrameAllocator<7>;

fn index_of(trace: &Trace) -> FreeIndex {
    let mut index = FreeIndex::new(trace.rows.iter().copied());
    for (first, size) in &trace.start {
        assert!(
            index.take(*first as usize / 64, (first % 64) as u8, *size),
            "the initial blocks are free"
        );
    }
    index
}

fn buddies_of(trace: &Trace) -> Buddies {
    let mut buddies = Buddies::new();
    buddies.add_frame(0, trace.rows.len() * 64);
    for (first, size) in &trace.start {
        let taken = buddies.alloc_at(*first as usize, size.get() as usize);
        assert!(taken.is_some(), "the initial blocks are free");
    }
    buddies
}

fn run_index(index: &mut FreeIndex, steps: &[TraceStep], mut visit: impl FnMut(Option<usize>)) {
    for step in steps {
        match *step {
            TraceStep::Place { size, .. } => {
                let found = index.take_best(size);
                visit(found.map(|(row, first)| row * 64 + usize::from(first)));
            }
            TraceStep::Release { first, size, .. } => {
                black_box(index.release(first as usize / 64, (first % 64) as u8, size));
            }
        }
    }
}

fn run_buddies(buddies: &mut Buddies, steps: &[TraceStep], mut visit: impl FnMut(Option<usize>)) {
    for step in steps {
        match *step {
            TraceStep::Place { size, .. } => visit(buddies.alloc(size.get() as usize)),
            TraceStep::Release { first, size, .. } => buddies.dealloc(first as usize, size.get() as usize),
        }
    }
}

/// Runs the loop alone, to measure its overhead.
fn run_empty_loop(steps: &[TraceStep], mut visit: impl FnMut(Option<usize>)) {
    for step in steps {
        match *step {
            TraceStep::Place { size, .. } => visit(Some(size.get() as usize)),
            TraceStep::Release { first, size, .. } => _ = black_box((first, size)),
        }
    }
}

fn index(criterion: &mut Criterion) {
    for (ipus, fill) in IPUS.iter().flat_map(|ipus| FILLS.map(|fill| (*ipus, fill))) {
        let trace = Trace::new(ipus, fill);
        let (mut index_value, mut buddy_value) = (Vec::new(), Vec::new());
        run_index(&mut index_of(&trace), &trace.steps, |found| {
            index_value.push(found)
        });
        run_buddies(&mut buddies_of(&trace), &trace.steps, |found| {
            buddy_value.push(found)
        });
        assert!(
            index_value == buddy_value && !index_value.contains(&None),
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

fn elapsed(run: impl FnOnce()) -> Duration {
    let started = Instant::now();
    run();
    started.elapsed()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Prints the nanoseconds per step of each interleaved run, and the ratio of the index to the other
/// allocator, with and without the loop overhead.
fn compare_interleaved() {
    println!(
        "| index, interleaved | FreeIndex | buddy_system_allocator | the loop | ratio | ratio without the loop |"
    );
    println!("|---|---|---|---|---|---|");
    for (ipus, fill) in IPUS.iter().flat_map(|ipus| FILLS.map(|fill| (*ipus, fill))) {
        let trace = Trace::new(ipus, fill);
        let mut columns: [Vec<f64>; 5] = Default::default();
        for _ in 0..INTERLEAVED_RUNS {
            let (mut index, mut buddies) = (index_of(&trace), buddies_of(&trace));
            let times = [
                elapsed(|| run_index(&mut index, &trace.steps, |found| _ = black_box(found))),
                elapsed(|| run_buddies(&mut buddies, &trace.steps, |found| _ = black_box(found))),
                elapsed(|| run_empty_loop(&trace.steps, |found| _ = black_box(found))),
            ];
            let [index_value, buddy_value, overhead] =
                times.map(|time| time.as_secs_f64() * 1e9 / trace.steps.len() as f64);
            let ratios = [
                index_value / buddy_value,
                (index_value - overhead) / (buddy_value - overhead),
            ];
            for (column, value) in columns
                .iter_mut()
                .zip([index_value, buddy_value, overhead].into_iter().chain(ratios))
            {
                column.push(value);
            }
        }
        let [index_value, buddy_value, overhead, ratio, net] = columns.map(|mut column| median(&mut column));
        println!(
            "| {ipus} IPUs, {fill} % full | {index_value:.1} ns | {buddy_value:.1} ns | {overhead:.1} ns | {ratio:.2} | {net:.2} |"
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
    // `cargo test --benches` only checks that the benchmark starts.
    if !std::env::args().any(|argument| argument == "--test") {
        compare_interleaved();
    }
}
