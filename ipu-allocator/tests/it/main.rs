//! Tests of the allocator against a simulated controller.
#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod answers;
mod bed;
mod commands;
mod comparisons;
mod example_scheduler;
mod lifecycle;
mod liveness;
mod owners;
mod stores;
mod views;
#[cfg(feature = "wasm")]
mod wasm_policy;
