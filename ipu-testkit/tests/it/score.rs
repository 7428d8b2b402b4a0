//! Replays of traces: invariants for every policy, comparison with the ledger's queue, scores from
//! independent calculations, traces from files and synthetic ones.

mod audit;
mod known_scores;
mod ledger;
mod metamorphic;
mod policies;
mod swf;
mod synthetic;
