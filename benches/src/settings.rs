//! Criterion settings.

use std::time::Duration;

use criterion::Criterion;

/// Returns a configuration with shorter times than criterion's default, so that all benchmarks together
/// take minutes.
#[must_use]
pub fn short() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(50)
}
