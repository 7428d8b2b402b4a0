//! IPUJobs and IPUPartitions on Kubernetes.
//!
//! ```
//! # #[cfg(feature = "crd")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use ipu_core::job::Limits;
//! use ipu_k8s::crd::{Document, read_manifests};
//!
//! let text = "
//! apiVersion: graphcore.ai/v1alpha1
//! kind: IPUJob
//! metadata: {name: mnist, uid: u1}
//! spec:
//!   ipusPerJobInstance: '3'
//!   workers: {template: {spec: {containers: [{name: main}]}}}
//! ";
//! let documents = read_manifests(text, &[])?;
//! let [Document::IpuJob(manifest)] = &documents[..] else { panic!("the text has one IPUJob") };
//! let violations = manifest.parse(&Limits::default()).unwrap_err();
//! let rule = "spec.ipusPerJobInstance = \"3\": must be a power of two from 1 to 64; use 2 or 4";
//! assert_eq!(violations[0].to_string(), rule);
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "crd"))]
//! # fn main() {}
//! ```
//!
//! # Features
//!
//! - `crd` (default): the custom resources `IPUJob` and `IPUPartition` and their CRDs, reading IPUJobs from
//!   manifests, and their conversion to jobs of [`ipu_core`]. No Kubernetes client.
//! - `webhook`: `webhook::{mutate, validate}`, the responses of the mutating and validating admission
//!   webhooks for IPUJobs. No Kubernetes client.
//! - `client`: what a service that allocates partitions needs of an API server. `store::ConfigMapStore`, the
//!   record of the allocator in a ConfigMap; `lease::LeaderLease`, the election of one of several processes;
//!   `liveness::KubernetesLiveness`, which checks whether the IPUJobs and IPUPartitions that own partitions
//!   exist; `token_review::TokenReviewer`, the authentication of bearer tokens; `controller_list::watch`, the
//!   list of V-IPU controllers in a ConfigMap.
//! - `operator`, with `client`: `controller::run`, which runs IPUJobs, and holds IPUPartitions, on partitions
//!   of a proxy, and `resources`, the settings of the objects that it creates for them.
//!
//! The program chooses the version of `k8s-openapi`.

#[cfg(feature = "client")]
mod api_call;
#[cfg(feature = "operator")]
pub mod controller;
#[cfg(feature = "client")]
pub mod controller_list;
#[cfg(feature = "crd")]
pub mod crd;
#[cfg(feature = "client")]
pub mod lease;
#[cfg(feature = "client")]
pub mod liveness;
#[cfg(feature = "client")]
mod partition_users;
#[cfg(feature = "operator")]
pub mod resources;
#[cfg(feature = "client")]
pub mod store;
#[cfg(feature = "client")]
pub mod token_review;
#[cfg(feature = "webhook")]
pub mod webhook;

#[cfg(feature = "crd")]
pub use kube;

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
