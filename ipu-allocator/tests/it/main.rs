//! Tests of the allocator against a simulated controller.
#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod answers;
mod example_scheduler;
mod lifecycle;
mod liveness;
mod stores;
#[cfg(feature = "wasm")]
mod wasm_policy;
