//! Tests of the simulator over its real listener.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod contract;
mod faults;
mod persistence;
mod rest;
mod secure;
mod support;
mod wire;
