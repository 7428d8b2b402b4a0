//! Integration tests of ipu-k8s, as one program.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cluster;
mod documented_examples;
mod fields;
mod host;
mod manifests;
mod pod_rules;
mod status;
mod webhook;
