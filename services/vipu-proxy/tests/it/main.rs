//! The proxy, asked as its clients ask it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod binary;
mod browser;
mod client;
mod cordons;
mod crash;
mod events;
mod expiry;
mod failing;
mod guarded;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod limits;
mod local;
mod looking;
mod metrics;
mod openapi;
mod partitions;
mod refusals;
mod secrets;
mod server;
mod shares;
mod support;
mod usage;
