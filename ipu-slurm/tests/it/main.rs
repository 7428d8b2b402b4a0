//! Tests of the Slurm adapter.

mod conf;
mod gres;
mod hooks;
mod host_map;
mod life;
mod pool;
mod render;
mod runs;
mod scontrol;
mod starts;
mod text;
mod withhold;
