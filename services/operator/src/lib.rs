//! The Kubernetes operator of IPUJobs, as a library: what the binary `ipu-operator` runs, and tests run in their own process.
//!
//! [`Operator::start`] serves the admission webhooks, metrics and probes, keeps the webhooks' certificates, and takes part in
//! the election of the one operator that works on jobs. [`Settings`] are what can be set, [`Config`] what they come to.
//! What the leader does is [`run_controller`]: it registers what it measures with [`Metrics`], and says that it goes on to
//! [`Progress`].

mod certificates;
mod error;
mod health;
mod job_controller;
mod job_metrics;
mod leader_election;
mod metrics;
mod metrics_auth;
mod object_watch;
mod operator;
mod probes;
mod settings;
mod webhook_server;
mod webhooks;

pub use certificates::Rotation;
pub use error::OperatorError;
pub use health::{HealthRegistry, WORK_BOUND, WorkGuard};
pub use job_controller::run_controller;
pub use leader_election::{Leadership, LeaseOptions};
pub use metrics::Metrics;
pub use operator::Operator;
pub use settings::{Certificates, Config, Keeping, PullPolicy, SettingError, Settings};
