//! End-to-end tests: each runs the real binary in a home of its own.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod commands;
mod controller;
mod examples;
mod harness;
mod kill;
mod nested;
mod proxy;
mod queue;
mod signals;
mod supervise;
