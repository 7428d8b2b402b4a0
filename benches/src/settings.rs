//! How long things are measured.

use std::time::Duration;

use criterion::Criterion;

/// Shorter than criterion's own choice, so that all benchmarks together take minutes.
#[must_use]
pub fn short() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(50)
}
