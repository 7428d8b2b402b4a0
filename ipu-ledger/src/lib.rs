//! The crash-safe driver of IPU partitions.
//!
//! A [`Ledger`] records in a [`LedgerStore`] who holds which partition and who waits, and drives V-IPU controllers by it.
//! The rules are pure and live in `ipu-core`; this crate makes what they decide durable, calls, and records what came of
//! it. Daemons, the command line and other people's schedulers all drive partitions through this one crate.
//!
//! # What it promises
//!
//! - No partition is handed to two owners, whatever dies when: the intent is durable before the controller is called, and
//!   every write is a compare-and-swap.
//! - None is lost: an entry is only forgotten when the controller does not know the partition and no call for it can be
//!   under way. [`Ledger::repair`] finishes what was begun and finds what nobody owns.
//! - Whoever waits is told why, behind whom, and until when if that follows from what others declared.
//!
//! # The life of a request
//!
//! [`Ledger::ensure_active`] puts it into the line, waits, and answers a [`Grant`]; [`Ledger::ensure`] is one step of that
//! for callers with a loop of their own. [`Ledger::release`] gives the partition back. [`Ledger::repair`] is to be called on
//! start and now and then, with a [`Liveness`] that tells who is alive.
//!
//! # What else it does
//!
//! [`Ledger::query`] and [`Ledger::stats`] tell what is free and used. [`Ledger::changes`] tells every durable change.
//! [`Ledger::cordon`] keeps hardware free of anything new. A [`UsageLog`] in the options records who held what for how
//! long. [`Ledger::heartbeat`] and [`LeaseLiveness`] are for owners of whom nothing else tells that they live.
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
mod inflight_calls;
mod lease;
mod ledger;
mod listings;
mod liveness;
mod options;
mod outcome;
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

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
