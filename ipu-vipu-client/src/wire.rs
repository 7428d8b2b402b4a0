//! The wire messages of the V-IPU user API (package `virmgrpc`), generated from `proto/vipu_user.proto` by
//! `cargo xtask gen`.
//!
//! They stay in this layer: only the transports and the simulator use them. The serde attributes of the
//! messages are those of proto3 JSON.

pub mod json;

#[allow(
    missing_docs,
    clippy::all,
    unreachable_pub,
    clippy::use_self,
    clippy::cast_lossless,
    clippy::unwrap_used,
    clippy::allow_attributes_without_reason,
    elided_lifetimes_in_paths,
    unused_lifetimes,
    reason = "generated code"
)]
mod generated {
    include!("wire/generated/virmgrpc.rs");
}

pub use generated::*;
