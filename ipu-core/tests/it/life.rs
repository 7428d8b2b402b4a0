//! The life of jobs: cases, invariants, and a small world in which plans are applied.

mod cases;
mod checks;
mod job;
mod properties;
mod simulation;
mod world;
