//! The crash-safe allocator of IPU partitions: one task owns the state, makes it durable, and calls the V-IPU
//! controllers. The decisions are pure and live in `ipu-core`.
//!
//! # Guarantees
//!
//! - No partition has two owners, at whatever point a process dies: a change is durable before the controller
//!   is called, and a process that was replaced can neither write nor act.
//! - No partition is lost: every entry that is being created, reset or removed yields its call again after a
//!   restart, and an entry is dropped only when no call for it can take effect any more.
//! - A queued request reports its reason, the requests ahead of it, and an expected start if declared run
//!   times imply one.
//!
//! # Use
//!
//! [`Allocator::start`] returns a cheap handle. [`Allocator::ensure`] requests a partition and waits for it,
//! [`Allocator::release`] releases it, [`Allocator::view`] returns the published state for every other
//! question, and [`Allocator::changes`] publishes every durable change. A [`Liveness`] in the options reports
//! which owners are alive, so that partitions of dead ones are released.
//!
//! # Features
//!
//! - `sqlite` (default): [`SqliteStore`], the record in one file.

mod allocator;
mod clock;
mod comparison;
mod engine;
mod error;
mod guarded_policy;
mod lease;
mod listings;
mod liveness;
mod message;
mod options;
mod runner;
mod shared;
mod store;
mod usage;
mod view;

pub use allocator::{Allocator, EnsureOutcome, ReleaseOutcome};
pub use clock::Clock;
pub use comparison::Comparison;
pub use error::AllocatorError;
pub use ipu_vipu_client::boot_time;
pub use lease::{Lease, LeaseError, LeaseLiveness};
pub use liveness::Liveness;
pub use options::Options;
pub use runner::Controller;
pub use shared::EntryChange;
#[cfg(feature = "sqlite")]
pub use store::SqliteStore;
pub use store::{MemoryStore, Record, Revision, Store, StoreError};
pub use usage::{InvalidUsagePosition, UsagePosition};
pub use view::View;
