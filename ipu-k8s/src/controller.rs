//! The operator's work on IPUJobs: observe → parse → plan → check → apply → record.
//!
//! [`Reconciler::reconcile`] reconciles one IPUJob. It reaches the API server and the proxy through two
//! traits, [`ApiServer`] and [`Partitions`], and reads watched objects from a [`Cache`]. [`ipu_core::plan`]
//! makes every decision.
//!
//! *Safety*: every partition belongs, by its id, to one job and its uid. The ledger gives it to no other
//! owner before it is released. A status write succeeds only on top of the `resourceVersion` that was read. A
//! pod has a deterministic name, so it is created once, and it is deleted by uid. Leader election makes two
//! active operators rare; two of them are harmless.

mod apply;
mod blocker;
mod event_queue;
mod event_series;
mod failure_order;
mod informer;
mod job_access;
mod job_informer;
mod kube_api;
mod launcher_role;
mod messages;
mod mpirun_output;
mod observation;
mod observe;
mod pod_state;
mod ports;
mod queue_reason;
mod reconcile;
mod runtime;
mod status;
mod status_report;
mod work_queue;

pub use self::informer::Cache;
pub use self::kube_api::KubeApi;
pub use self::pod_state::{KubePod, PodOutcome};
pub use self::ports::{ApiServer, JobEvent, Partitions, PortError, Severity};
pub use self::reconcile::{Reconciler, Requeue};
pub use self::runtime::{Observer, RunOptions, run};
