//! The product as installed by users: `kubectl apply -k deploy/kubernetes`, with exactly the RBAC of those
//! manifests, on a real node without a route out. The tests run the `kubectl` commands of the guide
//! (`docs/kubernetes.md`), on the jobs of `examples/kubernetes`.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod bundle;
mod chart;
mod disruptions;
mod figures;
mod installation;
mod interactive;
mod no_host_network;
mod observability;
mod plugin;
mod restarts;
mod running_job;
mod training;
