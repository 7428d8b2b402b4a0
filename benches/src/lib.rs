//! What several benchmarks share.

mod random;
mod trace;

pub use random::Random;
pub use trace::{FILLS, IPUS, Step, Trace};
