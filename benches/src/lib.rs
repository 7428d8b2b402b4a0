//! What several benchmarks share.

mod pairs;
mod settings;
mod trace;

pub use pairs::Pairs;
pub use settings::short;
pub use trace::{FILLS, IPUS, Step, Trace};
