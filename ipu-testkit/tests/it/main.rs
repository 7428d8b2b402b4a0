//! Tests of the test kit.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod controller;
mod policy;
#[cfg(feature = "simulator")]
mod schedulers;
mod score;
mod stores;
