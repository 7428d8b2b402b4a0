//! Tests of the program `ipu-slurm` on a real Slurm, with a proxy and a simulated IPU-POD.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod accounting;
mod agent;
mod backup;
mod bad_proxy;
mod cluster;
mod crash;
mod doctor;
mod doctor_in_slurm;
mod forgotten_start;
mod guide;
mod host_map;
mod life;
mod matrix;
mod mistakes;
mod names;
mod plugin;
mod pool;
mod pool_command;
mod pool_lua;
mod render;
mod soak;
mod split_conf;
mod stopped_slurmctld;
mod task_prolog;
mod waiting;
