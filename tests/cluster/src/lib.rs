//! A real Kubernetes for tests: an API server with etcd, controllers, a scheduler, and a node that runs
//! containers.
//!
//! [`Tools`] finds the programs or builds them from the pinned Go modules in `tests/cluster/tools`. A
//! [`Cluster`] is one etcd and one kube-apiserver with certificates, service-account keys and RBAC. It uses
//! free ports and keeps its files in one directory. Its [`ClusterProfile`] adds further servers; any number
//! of clusters run side by side. A node has an isolated network and runs [`Image`]s made of local files. A
//! test requests a cluster like this:
//!
//! ```no_run
//! let Some(cluster) = ipu_test_cluster::shared("the_name_of_the_test") else {
//!     return;
//! };
//! println!("{}", cluster.kubeconfig().display());
//! ```
//!
//! The test skips itself with a message where the tools are missing, and fails there if `CI` is set. The
//! cluster ends with the test process in any case. `cargo xtask cluster up` starts a persistent cluster.

mod cert_manager;
mod cluster;
mod concurrency_limit;
mod digest;
mod error;
#[cfg(feature = "fake-nodes")]
mod fake_nodes;
mod http;
mod image;
mod kueue;
mod mpi;
mod node;
mod node_sandbox;
mod options;
mod pki;
mod process;
mod product_images;
mod ready;
mod second_network;
mod server_flags;
mod state;
mod tar;
mod testing;
mod tools;

pub use cluster::Cluster;
pub use digest::sha256;
pub use error::ClusterError;
#[cfg(feature = "fake-nodes")]
pub use fake_nodes::{ContainerEnd, FakeNodes, FakeOptions};
pub use image::{Image, oci_archive};
pub use kueue::{install_kueue, restart_pods};
pub use mpi::mpi_image;
pub use options::{Audit, ClusterLifetime, ClusterProfile, Durability, Options};
pub use product_images::{
    CLIENTS, PRODUCT, build_libraries, build_static, client, product_images, scratch_images,
};
pub use state::{ClusterState, load, stop};
pub use tar::TarArchive;
pub use testing::{find_tools, private, private_in_domain, private_with, shared, shared_with};
pub use tools::{Tool, Tools};
