//! IPUJobs on Kubernetes.
//!
//! # Features
//!
//! - `crd` (default): the `IPUJob` custom resource, reading it from manifests, and its conversion to a job of
//!   [`ipu_core`]. No Kubernetes client.
//! - `store`: `store::ConfigMapStore`, the ledger in a ConfigMap.
//! - `auth`: `auth::TokenReviewer`, whose a bearer token is.
//! - `controllers`: `controllers::watch`, the list of V-IPU controllers in a ConfigMap.
//! - `liveness`: `liveness::IpuJobLiveness`, whether the IPUJobs that hold partitions are there.
//!
//! All but `crd` speak to an API server through `kube`, and leave the choice of a version of `k8s-openapi` to the program.

#[cfg(feature = "auth")]
pub mod auth;
#[cfg(any(
    feature = "auth",
    feature = "controllers",
    feature = "liveness",
    feature = "store"
))]
mod client;
#[cfg(feature = "controllers")]
pub mod controllers;
#[cfg(feature = "crd")]
pub mod crd;
#[cfg(feature = "liveness")]
pub mod liveness;
#[cfg(feature = "store")]
pub mod store;

#[cfg(any(
    feature = "auth",
    feature = "controllers",
    feature = "liveness",
    feature = "store"
))]
pub use kube;

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
