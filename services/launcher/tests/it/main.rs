//! Tests of the launcher against a real API server and on a real node.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod mpi;
mod remote;
mod support;
mod waiting;
