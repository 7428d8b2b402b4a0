//! IPUJobs on Kubernetes.
//!
//! # Features
//!
//! - `crd` (default): the `IPUJob` custom resource, reading it from manifests, and its conversion to a job of
//!   [`ipu_core`]. No Kubernetes client.
//! - `webhook`: `webhook::{mutate, validate}`, what the API server is answered when it asks whether an IPUJob is admitted. No
//!   Kubernetes client.
//! - `store`: `store::ConfigMapStore`, the ledger in a ConfigMap.
//! - `auth`: `auth::TokenReviewer`, whose a bearer token is.
//! - `controllers`: `controllers::watch`, the list of V-IPU controllers in a ConfigMap.
//! - `operator`: `operator::Operator`, which runs IPUJobs on partitions of a proxy, and `resources`, what it makes for them.
//! - `liveness`: `liveness::IpuJobLiveness`, whether the IPUJobs that hold partitions are there.
//!
//! All but `crd` and `webhook` speak to an API server through `kube`, and leave the choice of a version of `k8s-openapi` to the program.

#[cfg(any(
    feature = "auth",
    feature = "controllers",
    feature = "liveness",
    feature = "operator",
    feature = "store"
))]
mod api_call;
#[cfg(feature = "operator")]
pub mod controller;
#[cfg(feature = "controllers")]
pub mod controller_list;
#[cfg(feature = "crd")]
pub mod crd;
#[cfg(feature = "liveness")]
pub mod ipujob_liveness;
#[cfg(feature = "operator")]
pub mod resources;
#[cfg(feature = "store")]
pub mod store;
#[cfg(feature = "auth")]
pub mod token_review;
#[cfg(feature = "webhook")]
pub mod webhook;

#[cfg(any(
    feature = "auth",
    feature = "controllers",
    feature = "liveness",
    feature = "operator",
    feature = "store"
))]
pub use kube;

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
