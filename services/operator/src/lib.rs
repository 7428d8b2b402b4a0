//! The Kubernetes operator of IPUJobs, as a library: what the binary `ipu-operator` runs, and tests run in their own process.
//!
//! [`Operator::start`] serves the admission webhooks, metrics and probes, keeps the webhooks' certificates, and takes part in
//! the election of the one operator that works on jobs. [`Settings`] are what can be set, [`Config`] what they come to.
//! What the leader does is [`run_controller`]: it registers what it measures with [`Metrics`], and says that it goes on to
//! [`Progress`].

mod access;
mod certificates;
mod controller;
mod door;
mod error;
mod jobs;
mod lease;
mod metrics;
mod operator;
mod probes;
mod progress;
mod settings;
mod watching;
mod webhooks;

pub use certificates::Rotation;
pub use controller::run_controller;
pub use error::OperatorError;
pub use lease::{Leadership, LeaseOptions};
pub use metrics::Metrics;
pub use operator::Operator;
pub use progress::{HealthRegistry, WORK_BOUND, WorkGuard};
pub use settings::{Certificates, Config, Keeping, PullPolicy, SettingError, Settings};
