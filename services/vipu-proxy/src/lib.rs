//! The V-IPU proxy: the partition API between schedulers and V-IPU controllers.
//!
//! A request takes the same way always: the door (`Front`) bounds and reads it, a route parses it, the ledger decides and
//! does, and the route prints what came of it. What was answered before it was done is gone on with by the worker. The
//! proxy holds no rule: who gets what, who waits and why is up to `ipu-core` and `ipu-ledger`.
//!
//! [`Settings`] say what can be configured, [`Proxy`] serves; [`in_process`] answers without a connection, for tests.
//!
//! # Features
//!
//! - `kubernetes` (default): the ledger in a ConfigMap, tokens of service accounts, a list of controllers that is watched, and
//!   owners that are IPUJobs.

mod addresses;
mod app;
mod auth;
mod background;
mod connector;
mod controllers;
mod cordons;
mod dry_run;
mod events;
mod file_watch;
mod health;
mod instrumented_controller;
mod ipu_seconds;
mod kept;
#[cfg_attr(not(feature = "kubernetes"), path = "kubernetes_stub.rs")]
mod kubernetes;
mod limits;
mod local;
mod metrics;
mod middleware;
mod partition_api;
mod problem;
mod query;
mod router;
mod routes;
mod server;
mod settings;
mod shares;
mod site;
mod stats;
mod store;
mod supervise;

pub use app::{AnyController, ProxyLedger};
pub use auth::{AuthError, Authenticator, Credentials, Identity};
pub use middleware::{FrontBody, Gateway};
pub use router::operations;
pub use server::{Proxy, StartError, in_process};
pub use settings::{
    Auth, Config, PrioritySetting, QuotaSetting, ReadAccess, Selection, SettingError, Settings,
};
pub use store::AnyStore;
