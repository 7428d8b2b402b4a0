//! The operator without a cluster: one pass at a time, and thousands of them in a simulated one.

mod ear;
mod failures;
mod force;
mod kubelet;
mod leaving;
mod owners;
mod passes;
mod port;
mod random;
mod refused;
mod rights;
mod simulation;
mod taken;
mod telling;
mod world;
