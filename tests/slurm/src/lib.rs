//! A real Slurm for tests: munged, slurmctld and four slurmds as Debian's packages install them.
//!
//! A [`Bed`] has namespaces of its own for network, mounts and processes. Inside, `/etc/slurm` is the
//! configuration of the bed and [`BED`] is its directory, so hooks and plugins work with Slurm's default
//! paths. Any number of beds run side by side. A test requests a bed like this:
//!
//! ```no_run
//! use ipu_test_slurm::{BedOptions, bed};
//!
//! let Some(bed) = bed("the_name_of_the_test", BedOptions::new().licenses("pod64:64")) else {
//!     return;
//! };
//! let job = bed.succeed("sbatch", &["--parsable", "--licenses=pod64:4", "--wrap", "true"]);
//! bed.wait_until("the job has ended", || bed.job_ids().is_empty());
//! # let _ = job;
//! ```
//!
//! With the environment variable [`TREE`], beds run the Slurm of a Debian tree, as debootstrap makes it. Its
//! packages are those of the machine and `curl`.
//!
//! The test skips itself with a message without root or the packages, and fails there if `CI` is set. All
//! processes of a bed end with the test process, even if it is killed.

mod accounting;
mod bed;
mod commands;
mod concurrency_limit;
mod daemon;
mod error;
mod files;
mod forward;
mod options;
mod poll;
mod sandbox;
mod slurm_conf;
mod support;
mod testing;

pub use bed::Bed;
pub use commands::CommandOutput;
pub use daemon::Daemon;
pub use error::BedError;
pub use options::{BED, BedOptions, Hook};
pub use sandbox::this_program;
pub use slurm_conf::{CONTROLLERS, NODES};
pub use support::{TREE, slurm_version};
pub use testing::bed;
