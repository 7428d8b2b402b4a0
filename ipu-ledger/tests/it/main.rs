//! The ledger over simulated controllers, stores and crashes.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod alias;
mod asking_the_store;
mod caller;
mod changes;
mod cordoning;
mod driving;
mod embedded;
mod first_thread;
mod going_on;
mod interleavings;
mod leasing;
mod previous;
mod processes;
mod racing;
mod recording;
mod repairing;
mod setup;
mod silent;
mod stores;
mod suspended;
mod upgrading;
mod waiting;
