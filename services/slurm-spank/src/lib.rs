//! SPANK plugin `libspank_vipu.so`: options for IPUs of `srun`, `sbatch` and `salloc`.
//!
//! | Option | Variable | Meaning |
//! |---|---|---|
//! | `--ipus=N` | `VIPU_IPUS` | IPUs of the job's partition |
//! | `--ipu-model=M` | `VIPU_MODEL` | the system that the IPUs belong to |
//! | `--ipu-gcds=K` | `VIPU_GCDS` | graph compilation domains of the partition |
//! | `--ipu-reconfigurable` | `VIPU_RECONFIGURABLE` | 1: a reconfigurable partition |
//!
//! The plugin checks the values before Slurm submits anything. The variables reach the tasks and TaskProlog,
//! and with the prefix `SPANK_` the hooks of slurmctld and slurmd. `job_submit.lua` sees them without the
//! prefix. The plugin has no dependencies, and all `unsafe` code is in `ffi.rs`.

mod environment;
#[cfg(not(test))]
mod ffi;
mod job_option;
mod option_error;
mod request;
mod slurm_version;
