//! The ledger over simulated controllers, stores and crashes.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod first_thread;
