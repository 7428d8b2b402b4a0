//! Tests of the test kit.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod controller;
mod coverage;
mod fake;
mod ledgers;
mod planner;
mod policy;
mod score;
mod simulation;
mod store_mutants;
mod stores;
