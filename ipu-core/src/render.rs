//! Inputs of a job's processes, so that Poplar and MPI find their IPUs and each other: environment, IPUoF
//! configuration, hostfile. Rendering only, without I/O.

mod ipuof_config;
mod ipuof_env;
#[cfg(feature = "job")]
mod mpi;

pub use self::ipuof_config::{GcdConfig, IpuofConfig, IpuofDevice};
pub use self::ipuof_env::IpuofEnv;
#[cfg(feature = "job")]
pub use self::mpi::{MpiEnv, hostfile};
