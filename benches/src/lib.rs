//! What several benchmarks share.

mod trace;

pub use trace::{FILLS, IPUS, Step, Trace};
