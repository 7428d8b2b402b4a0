//! The operator's work on IPUJobs: observe → parse → plan → check → apply → record.
//!
//! [`Operator::reconcile`] is one pass over one job. It asks the world through two traits, [`ApiServer`] and [`Partitions`],
//! and reads what the watches told from a [`Cache`]. What is decided is [`ipu_core::plan`]'s.
//!
//! *What keeps it safe*: every partition belongs, by its id, to one job and its uid, and the ledger hands it to nobody else
//! before it was given back; a status is written only on top of the one that was read; a Kubernetes Pod is created under a
//! name of which there can be one, and deleted by its uid. Leader election makes two operators rare, never harmful.

mod apply;
mod blocker;
mod controller;
mod event_queue;
mod event_series;
mod failure_order;
mod informer;
mod job_informer;
mod kube_api;
mod launcher_role;
mod messages;
mod mpirun_output;
mod observation;
mod observe;
mod pod_state;
mod ports;
mod reconcile;
mod status;
mod status_report;
mod work_queue;

pub use self::controller::{Observer, RunOptions, run};
pub use self::informer::Cache;
pub use self::kube_api::KubeApi;
pub use self::pod_state::{KubePod, PodOutcome};
pub use self::ports::{ApiServer, JobEvent, Partitions, PortError, Severity};
pub use self::reconcile::{Reconciler, Requeue};
