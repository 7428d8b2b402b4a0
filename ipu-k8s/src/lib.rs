//! IPUJobs on Kubernetes.
//!
//! # Features
//!
//! - `crd` (default): the `IPUJob` custom resource, reading it from manifests, and its conversion to a job of
//!   [`ipu_core`]. No Kubernetes client.
//! - `store`: [`store::ConfigMapStore`], the ledger in a ConfigMap.
//!
//! All but `crd` speak to an API server through [`kube`], and leave the choice of a version of `k8s-openapi` to the program.

#[cfg(feature = "store")]
mod client;
#[cfg(feature = "crd")]
pub mod crd;
#[cfg(feature = "store")]
pub mod store;

#[cfg(feature = "store")]
pub use kube;

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
