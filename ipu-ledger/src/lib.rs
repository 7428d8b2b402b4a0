//! A crash-safe driver of IPU partitions.
//!
//! A [`Ledger`] records held partitions and queued requests in a [`LedgerStore`], and drives V-IPU
//! controllers. The rules are pure and live in `ipu-core`. This crate makes their decisions durable, calls
//! the controllers, and records the results. Daemons, the command line and third-party schedulers all drive
//! partitions through this crate.
//!
//! # Guarantees
//!
//! - No partition has two owners, at whatever point a process dies. The intent is durable before the
//!   controller is called, and every write is a compare-and-swap.
//! - No partition is lost. An entry is removed only when the controller does not know the partition and no
//!   call for it can be in flight. [`Ledger::repair`] finishes interrupted operations and finds partitions
//!   without an owner.
//! - A queued request reports its reason, the requests ahead of it, and an expected start if declared run
//!   times imply one.
//!
//! # Lifecycle of a request
//!
//! [`Ledger::ensure_active`] queues the request, waits, and returns a [`Grant`]. [`Ledger::ensure`] is one
//! step of that, for callers with their own loop. [`Ledger::release`] releases the partition. Call
//! [`Ledger::repair`] on start and periodically, with a [`Liveness`] that reports which owners are alive.
//!
//! # Further operations
//!
//! [`Ledger::query`] and [`Ledger::stats`] return free and used capacity. [`Ledger::changes`] publishes every
//! durable change. [`Ledger::cordon`] excludes hardware from new placements. A [`UsageLog`] in the options
//! records the owner and duration of every hold. [`Ledger::heartbeat`] and [`LeaseLiveness`] are for owners
//! whose liveness no other system reports.
//!
//! # Features
//!
//! - `sqlite` (default): `SqliteStore`, a ledger in one file that several processes of a host share.

mod caller;
mod change_feed;
mod codec;
mod cordon;
mod describe;
mod driver;
mod error;
mod group_commit;
mod guarded_policy;
mod inflight_calls;
mod ipuof_config;
mod lease;
mod ledger;
mod listings;
mod liveness;
mod machines;
mod options;
mod outcome;
mod preemption;
mod queue_scans;
mod release;
mod repair;
mod resume;
mod store;
mod usage;
mod wait_active;

pub use caller::{Caller, CallerGuard, Expiry};
pub use change_feed::LedgerChange;
pub use codec::{DecodeError, decode, decode_cordon, encode, encode_cordon};
pub use error::LedgerError;
pub use lease::{Lease, LeaseError, LeaseLiveness};
pub use ledger::Ledger;
pub use liveness::Liveness;
pub use options::{Clock, LedgerOptions};
pub use outcome::{EnsureOutcome, Grant, Pending, Released, RepairReport};
pub use resume::request_of;
#[cfg(feature = "sqlite")]
pub use store::SqliteStore;
pub use store::{LedgerStore, MemoryStore, Revision, Snapshot, StoreError, WriteLock};
pub use usage::{InvalidUsagePosition, MemoryUsageLog, UsageLog, UsagePosition};

pub use ipu_core::{
    Change, ChangeKey, Cordon, CordonEffect, CordonId, CordonOwner, CordonTarget, Entry, EntryState, HoldEnd,
    OnNoCapacity, Owner, OwnerLiveness, PartitionId, PartitionSpec, PlacementConstraint, QueueDecision,
    QueuePolicy, QueueStatus, Quota, QuotaSubject, Quotas, Reason, Request, SelectionOrder, Stats, Timestamp,
    TransitionError, UsageRecord,
};

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
