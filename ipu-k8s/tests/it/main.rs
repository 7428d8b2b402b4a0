//! Everything that is tested of ipu-k8s from outside, as one program.

mod host;
mod manifests;
mod seeds;
