//! What several benchmarks share.
