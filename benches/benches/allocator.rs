//! Durable create + release pairs of an allocator on SQLite: with 1 and 64 callers, alone and with 5,000
//! other entries. A pair is four commits, each synced to disk; concurrent callers share commits.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ipu_bench::Pairs;

fn benchmark_pairs(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut group = criterion.benchmark_group("allocator");
    group.throughput(Throughput::Elements(1)).sample_size(10);
    for others in [0, 5_000] {
        let fixture = runtime.block_on(Pairs::new(others));
        for callers in [1, 64] {
            let id = BenchmarkId::new(format!("pair with {others}"), callers);
            group.bench_function(id, |bencher| {
                bencher.iter_custom(|count| runtime.block_on(fixture.run(callers, count)));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, benchmark_pairs);
criterion_main!(benches);
