//! Shared code of the benchmarks.

pub mod cluster;
mod create_release;
mod load;
mod program;
mod settings;
mod trace;

pub use create_release::Pairs;
pub use load::{Connection, PairTimings, percentile};
pub use program::{program, target};
pub use settings::short;
pub use trace::{FILLS, IPUS, Trace, TraceStep};
