//! Replays of traces: invariants for every policy, comparison with the allocator's queue, scores from
//! independent calculations, traces from files and synthetic ones.

mod allocator;
mod audit;
mod known_scores;
mod metamorphic;
pub(crate) mod policies;
mod swf;
mod synthetic;
