//! End-to-end tests: each runs the binary in a temporary home directory.
#![expect(clippy::unwrap_used, reason = "an error fails the test")]

mod commands;
mod controller;
mod examples;
mod harness;
mod help;
mod kill;
mod manifest;
mod nested;
mod partition;
mod placement;
mod policy;
mod proxy;
mod queue;
mod render;
mod server;
mod signals;
mod supervise;
mod top;
