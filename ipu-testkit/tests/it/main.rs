//! Tests of the test kit.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod controller;
mod policy;
mod score;
mod stores;
