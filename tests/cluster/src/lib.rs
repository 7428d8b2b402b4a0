//! A real Kubernetes API server on its etcd, for tests.
//!
//! [`Tools`] finds the programs or builds them from the pinned Go modules in `tests/cluster/tools`. A [`Cluster`] is one
//! etcd and one kube-apiserver with certificates, service-account keys and RBAC, on ports that were free, with everything
//! in one directory; any number run side by side. A test that wants one says
//!
//! ```no_run
//! let Some(cluster) = ipu_test_cluster::shared("the_name_of_the_test") else {
//!     return;
//! };
//! println!("{}", cluster.kubeconfig().display());
//! ```
//!
//! and skips itself by name where the tools are missing, except where `CI` is set: there it fails. What is started so ends
//! with the test's process, however that ends. `cargo xtask cluster up` starts one that stays.

mod cluster;
mod error;
mod http;
mod pki;
mod place;
mod process;
mod state;
mod testing;
mod tools;

pub use cluster::{Cluster, Durability, Life};
pub use error::ClusterError;
pub use state::{State, stop};
pub use testing::{private, shared};
pub use tools::{Tool, Tools};
