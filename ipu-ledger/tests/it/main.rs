//! The ledger over simulated controllers, stores and crashes.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod alias;
mod caller;
mod changes;
mod cordons;
mod driver;
mod example_scheduler;
mod format_compat;
mod leases;
mod placement;
mod processes;
mod races;
mod random_faults;
mod refused_ipus;
mod repair;
mod resume;
mod setup;
mod smoke;
mod store_reads;
mod stored_records;
mod stores;
mod suspended;
mod unforced_release;
mod unresponsive_controllers;
mod upgrade;
mod usage_log;
mod waiting;
