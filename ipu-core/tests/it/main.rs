//! The integration tests of the core, one binary.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod datadriven;
mod inventory;
mod job_cases;
mod job_properties;
mod life;
mod model;
mod placement;
mod purity;
mod strategies;
