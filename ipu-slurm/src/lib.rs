//! Slurm adapter: parses and prints Slurm's generic resources (GRES) and the integration's configuration
//! files ([`conf`]), and parses the output of `scontrol` and `squeue`.
//!
//! ```
//! use ipu_slurm::{Gres, GresList};
//!
//! let requested: GresList = "--gres=vipu:2:3,gpu:1".parse()?;
//! let ipus: &Gres = requested.named("vipu").next().expect("the list has V-IPU partitions");
//! assert_eq!((ipus.kind(), ipus.count()), (Some("2"), 3));
//!
//! // The same resource in the output of `scontrol -d show job`.
//! let allocated: Gres = "vipu:2(CNT:3)".parse()?;
//! assert_eq!(&allocated, ipus);
//! # Ok::<(), ipu_slurm::GresError>(())
//! ```

pub mod conf;
mod error;
mod gres;
mod hooks;
pub mod host_map;
mod job_state;
mod life;
mod pool;
pub mod render;
mod run;
mod scontrol;
mod squeue;
mod start;
pub mod text;
mod watch;
mod withhold;

pub use error::InputError;
pub use gres::{Counting, Gres, GresError, GresList};
pub use hooks::{
    EpilogRequest, HookEnvironment, JobIdentity, JobIpus, NodeHook, NodeRequest, NodeTaskRequest,
    PrologRequest, TaskRequest, cluster_namespace, may_request_ipus,
};
pub use host_map::HostMapRequest;
pub use job_state::JobState;
pub use life::{Life, LifeFacts, life_of};
pub use pool::{
    BootState, POOL_ALLOCATED, POOL_FREE, POOL_LOCK, PoolAllocation, PoolError, PoolFile, PoolOperation,
    PoolPartition, PoolRequest, PoolState, is_file_name, job_of_pointer, parse_pointer, pointer_name,
    pointer_text,
};
pub use run::{OWNER_KIND, RunId, RunKey};
pub use scontrol::config::{SlurmctldConfig, config_value};
pub use scontrol::licenses::LicenseCounts;
pub use scontrol::parse_allocated_gres;
pub use squeue::{
    ArrayTask, ListedState, RunList, SQUEUE_ARGS, SQUEUE_GRES_ARGS, SQUEUE_JOB_ARGS, SlurmJob, UNKNOWN_JOB,
    parse_squeue_gres, parse_squeue_job,
};
pub use start::RunStart;
pub use watch::{Hold, SlurmctldWatch};
pub use withhold::{RESERVATION_PREFIX, Reservation, reservation_command, withheld};

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
