//! What goes over the wire, as it is written.
#![cfg_attr(
    feature = "client",
    expect(clippy::unwrap_used, reason = "a test that cannot go on fails")
)]

#[cfg(feature = "client")]
mod client;
mod documents;
