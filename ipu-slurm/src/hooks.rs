//! The environments of Slurm's hooks, as typed requests.
//!
//! Seen on 22.05.8, 24.11.5 and 26.05.5: the hooks of slurmctld have `SPANK_VIPU_*` of the plugin and
//! `SLURM_JOB_LICENSES`; `SLURM_JOB_SLUID` comes with 25.11. Users cannot set those. In the environment of a
//! task, a user can set all but what Slurm sets later. So TaskProlog trusts nothing there: a wrong value
//! makes the user's own task fail.

mod environment;
mod epilog;
mod ipus;
mod node;
mod prolog;
mod task;

pub use environment::{HookEnvironment, JobIdentity, cluster_namespace};
pub use epilog::EpilogRequest;
pub use ipus::{JobIpus, may_request_ipus};
pub use node::{NodeHook, NodeRequest, NodeTaskRequest};
pub use prolog::PrologRequest;
pub use task::TaskRequest;
