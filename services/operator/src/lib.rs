//! Kubernetes operator for IPUJobs, as a library: the binary `ipu-operator` and the tests run it.
//!
//! [`Operator::start`] serves the admission webhooks, metrics and probes. It rotates the webhooks'
//! certificates and takes part in the leader election. [`Settings`] are the configurable settings,
//! [`Config`] is their checked form. The leader runs the controller of `ipu-k8s`, which reports its progress
//! to [`HealthRegistry`].

mod certificates;
mod crd_update;
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
pub use health::HealthRegistry;
pub use leader_election::Leadership;
pub use operator::Operator;
pub use settings::{Certificates, Config, ManagedCertificates, PullPolicy, SettingError, Settings};
