//! Tests of documents and of the client.
#![cfg_attr(
    feature = "client",
    expect(clippy::unwrap_used, reason = "an error fails the test")
)]

#[cfg(feature = "client")]
mod client;
mod documents;
