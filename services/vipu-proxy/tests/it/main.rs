//! Tests of the proxy through its API.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod alerts;
mod allocations;
mod auth;
mod binary;
mod browser;
mod client;
mod controller_failures;
mod cordons;
mod crash;
mod events;
mod expiry;
mod ipuof;
mod kill_points;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod limits;
mod local;
mod machines;
mod map;
mod metrics;
mod openapi;
mod page;
mod partitions;
mod placement;
mod read_endpoints;
mod refusals;
mod secrets;
mod server;
mod settings_reference;
mod shares;
mod support;
mod unforced_delete;
mod unix_socket;
mod usage;
