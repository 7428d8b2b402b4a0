//! The integration tests of the core, one binary.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod inventory;
mod model;
mod placement;
mod purity;
mod strategies;
