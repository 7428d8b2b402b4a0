//! The operator's work on IPUJobs: observe → parse → plan → check → apply → record.
//!
//! [`Operator::reconcile`] is one pass over one job. It asks the world through two traits, [`ApiServer`] and [`Partitions`],
//! and reads what the watches told from a [`Cache`]. What is decided is [`ipu_core::plan`]'s.
//!
//! *What keeps it safe*: every partition belongs, by its id, to one job and its uid, and the ledger hands it to nobody else
//! before it was given back; a status is written only on top of the one that was read; a Kubernetes Pod is created under a
//! name of which there can be one, and deleted by its uid. Leader election makes two operators rare, never harmful.

mod apply;
mod cache;
mod ends;
mod events;
mod hear;
mod kubernetes;
mod look;
mod mpirun;
mod news;
mod observe;
mod pods;
mod port;
mod reconcile;
mod record;
mod report;
mod rights;
mod run;
mod tell;
mod trouble;
mod turns;

pub use self::cache::Cache;
pub use self::kubernetes::KubeApi;
pub use self::pods::{KubePod, PodOutcome};
pub use self::port::{ApiServer, JobEvent, Partitions, PortError, Severity};
pub use self::reconcile::{Reconciler, Requeue};
pub use self::run::{Observer, RunOptions, run};
