//! Replays of traces: laws that hold whatever the policy, comparison with the ledger's own line, scores known by other
//! ways, traces from files and made up.

mod audit;
mod known_scores;
mod ledger;
mod metamorphic;
mod policies;
mod swf;
mod synthetic;
