//! Tests of the Slurm adapter.

mod gres;
