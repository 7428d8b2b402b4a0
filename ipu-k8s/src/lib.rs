//! IPUJobs on Kubernetes.
//!
//! # Features
//!
//! - `crd` (default): the `IPUJob` custom resource, reading it from manifests, and its conversion to a job of
//!   [`ipu_core`]. No Kubernetes client.

#[cfg(feature = "crd")]
pub mod crd;
