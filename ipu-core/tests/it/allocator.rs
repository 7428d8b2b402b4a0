//! The allocator: all small systems, random large ones, tables and cases.

mod capacity;
mod controller;
mod exhaustive;
mod expected_start;
mod invariants;
mod model;
mod owners;
mod preemption;
mod queue;
mod tables;
mod world;
