//! The ledger over simulated controllers, stores and crashes.
#![expect(
    clippy::unwrap_used,
    clippy::unwrap_in_result,
    reason = "a test that cannot go on fails"
)]

mod driving;
mod embedded;
mod fake;
mod first_thread;
mod interleavings;
mod processes;
mod racing;
mod random;
mod repairing;
mod setup;
mod stores;
