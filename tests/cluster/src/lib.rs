//! A real Kubernetes for tests: an API server on its etcd, its controllers and scheduler, a node that runs containers.
//!
//! [`Tools`] finds the programs or builds them from the pinned Go modules in `tests/cluster/tools`. A [`Cluster`] is one
//! etcd and one kube-apiserver with certificates, service-account keys and RBAC, on ports that were free, with everything
//! in one directory, and as much besides as its [`ClusterProfile`] says; any number run side by side. A node has a network of its
//! own, which nothing leaves; it runs [`Image`]s made of files of this machine. A test that wants a cluster says
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
mod concurrency_limit;
mod digest;
mod error;
#[cfg(feature = "fake-nodes")]
mod fake_nodes;
mod http;
mod image;
mod modules;
mod mpi;
mod node;
mod node_sandbox;
mod options;
mod pki;
mod process;
mod product_images;
mod ready;
mod server_flags;
mod state;
mod tar;
mod testing;
mod tools;

pub use cluster::Cluster;
pub use error::ClusterError;
#[cfg(feature = "fake-nodes")]
pub use fake_nodes::{ContainerEnd, FakeNodes, FakeOptions};
pub use image::Image;
pub use mpi::mpi_image;
pub use options::{Audit, ClusterLifetime, ClusterProfile, Durability, Options};
pub use product_images::{PRODUCT, product_images};
pub use state::{ClusterState, load, stop};
pub use testing::{private, private_with, shared, shared_with};
pub use tools::{Tool, Tools};
