//! Integration tests of the operator, as one program.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod binary;
mod certificates;
mod cluster_fixture;
mod crash;
mod crd;
mod crd_matrix;
mod election;
mod fault_attribution;
mod guide;
mod ipupartitions;
mod jobs;
mod kueue;
mod pods;
mod probes;
mod rights;
mod support;
mod webhooks;
