//! The V-IPU proxy: the partition API between schedulers and V-IPU controllers.
//!
//! Every request takes the same path. The [`Gateway`] authenticates, limits and reads it, a route parses it,
//! the allocator decides and acts, and the route renders the result. The proxy has no scheduling rules of its
//! own: allocation, queueing and reasons are up to `ipu-core` and `ipu-allocator`.
//!
//! [`Settings`] is the configuration and [`Proxy`] the server.
//!
//! # Features
//!
//! - `kubernetes` (default): the ledger in a ConfigMap, tokens of service accounts, a watched list of
//!   controllers, and IPUJobs as owners.
//! - `wasm` (default): placement policies in WebAssembly modules.

mod addresses;
mod allocations;
mod app;
mod auth;
mod connector;
mod controllers;
mod cordons;
mod dry_run;
mod event_log;
mod events;
mod exposition;
mod file_watch;
mod instrumented_controller;
mod ipu_seconds;
mod ipuof;
#[cfg_attr(not(feature = "kubernetes"), path = "kubernetes_stub.rs")]
mod kubernetes;
mod local;
mod local_holder;
mod machines;
mod map;
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
mod subjects;
mod ui;

pub use auth::{AuthError, Authenticator, Credentials, Identity};
pub use middleware::{Gateway, ResponseBody};
pub use server::{Proxy, StartError};
pub use settings::{
    Auth, Config, InvalidListenAddress, ListenAddress, PlacementSetting, PrioritySetting, QuotaSetting,
    ReadAccess, Selection, SettingError, Settings,
};
