//! The integration tests of the core, one binary.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod blocks;
mod datadriven;
mod docs;
mod inventory;
mod job_cases;
mod job_properties;
mod ledger;
mod lifecycle;
mod observe;
mod placement;
mod purity;
mod requests;
mod topology;
