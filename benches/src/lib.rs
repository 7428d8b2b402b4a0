//! What several benchmarks share.

pub mod cluster;
mod load;
mod pairs;
mod settings;
mod trace;

pub use load::{Connection, Took, percentile};
pub use pairs::Pairs;
pub use settings::short;
pub use trace::{FILLS, IPUS, Trace, TraceStep};
