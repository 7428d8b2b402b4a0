//! The program against a real API server.
#![expect(clippy::unwrap_used, reason = "an error fails the test")]

mod completion;
mod doctor;
mod fake_api;
mod harness;
mod https;
mod jobs;
mod krew;
mod logs;
mod partitions;
mod proxy_replicas;
mod tokens;
