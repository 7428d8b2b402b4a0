//! The integration tests of ipu-core, in one binary.
#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod allocator;
mod blocks;
mod datadriven;
mod docs;
mod ids;
mod inventory;
mod job_cases;
mod job_properties;
mod lifecycle;
mod observe;
mod placement;
mod purity;
mod requests;
mod topology;
