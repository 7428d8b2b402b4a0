//! IPUJobs on Kubernetes.
//!
//! # Features
//!
//! - `crd` (default): the `IPUJob` custom resource, reading it from manifests, and its conversion to a job of
//!   [`ipu_core`]. No Kubernetes client.

#[cfg(feature = "crd")]
pub mod crd;

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
