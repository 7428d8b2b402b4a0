//! The ledger over simulated controllers, stores and crashes.

mod first_thread;
