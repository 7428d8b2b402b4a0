//! Tests of the operator without a cluster: single reconciliations, and thousands of them in a simulated
//! cluster.

mod deletion;
mod errors;
mod events;
mod evicted_pods;
mod failures;
mod fake_api;
mod fake_cluster;
mod fake_watches;
mod forced_deletion;
mod kubelet;
mod owner_references;
mod random_events;
mod reconcile;
mod rights;
mod simulation;
