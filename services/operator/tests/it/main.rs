//! Everything that is tested of the operator from outside, as one program.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod binary;
mod certificates;
mod crash;
mod election;
mod jobs;
mod lost_node;
mod metrics;
mod planted;
mod probes;
mod rights;
mod served;
mod support;
mod walks;
mod webhooks;
