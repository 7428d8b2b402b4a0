//! The allocator: queued requests, held partitions, and the transitions between them.
//!
//! [`step`] is the only function that changes the state: it returns the changes that follow from one event.
//! [`calls`] returns the calls to controllers that follow from the state. The loop around them (crate
//! `ipu-allocator`) commits changes before it makes calls. Everything here is a pure function of the state,
//! the listings of the controllers, and the time.

pub(crate) mod blocked_requests;
pub(crate) mod calls;
pub(crate) mod cordon;
pub(crate) mod entry;
pub(crate) mod error;
pub(crate) mod expected_start;
pub(crate) mod holders;
pub(crate) mod namespaces;
pub(crate) mod policy;
pub(crate) mod preemption;
pub(crate) mod queue;
pub(crate) mod quota;
pub(crate) mod request;
pub(crate) mod state;
pub(crate) mod step;
pub(crate) mod usage;
pub(crate) mod views;
