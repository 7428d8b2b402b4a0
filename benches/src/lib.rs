//! What several benchmarks share.

mod settings;
mod trace;

pub use settings::short;
pub use trace::{FILLS, IPUS, Step, Trace};
