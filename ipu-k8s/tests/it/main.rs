//! Everything that is tested of ipu-k8s from outside, as one program.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cluster;
mod documented_examples;
mod host;
mod manifests;
mod operator;
mod status;
mod webhook;
