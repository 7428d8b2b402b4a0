//! The allocator: queued requests, held partitions, and the transitions between them.
//!
//! [`step`] is the only function that changes the state: it returns the changes that follow from one event.
//! [`calls`] returns the calls to controllers that follow from the state. The loop around them (crate
//! `ipu-allocator`) commits changes before it makes calls. Everything here is a pure function of the state,
//! the listings of the controllers, and the time.
//!
//! ```
//! use std::sync::Arc;
//!
//! use ipu_core::allocator::{
//!     CallTimes, ControllerView, Event, Hardware, InFlight, InventoryCapacity, Listing, Policy, Request,
//!     ServiceState, State, calls, evaluate_queue, step,
//! };
//! use ipu_core::hardware::{Inventory, PartitionSpec, Topology};
//! use ipu_core::{BootTime, ControllerName, IpuCount, JobKey, Owner, ReasonCode, Timestamp};
//!
//! // A controller of 16 IPUs without partitions.
//! let capacity = InventoryCapacity::new(Inventory::new(&Topology::pod16()));
//! let controller = ControllerView {
//!     name: ControllerName::new("pod:8090")?,
//!     service: ServiceState::Open,
//!     listing: Ok(Arc::new(Listing::new([], Box::new(capacity)))),
//!     alias_of: None,
//! };
//! let hardware = Hardware::new(vec![controller]);
//! let (mut state, policy, now) = (State::default(), Policy::default(), Timestamp::from_millis(0));
//!
//! let mut events = Vec::new();
//! for (name, ipus) in [("first", 16), ("second", 4)] {
//!     let owner = Owner::new("Example", JobKey::new("default", name, name)?);
//!     let spec = PartitionSpec::of_size(IpuCount::try_from(ipus)?);
//!     events.push(Event::Ensure(Request::of_instance(owner, 0, spec)));
//! }
//! events.push(Event::Schedule);
//! for event in events {
//!     for change in step(&state, &hardware, &policy, now, &event)?.changes {
//!         state.apply(&change); // after a commit
//!     }
//! }
//!
//! // The first is created; the second waits.
//! let boot = BootTime::from_millis(0);
//! let in_flight = InFlight::inherited(CallTimes::default(), &State::default(), boot);
//! assert_eq!(calls(&state, &in_flight, boot, now).len(), 1);
//! let queue = evaluate_queue(&state, &hardware, &policy, now);
//! assert_eq!(queue[0].1.reason.code, ReasonCode::NotEnoughFree);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub(crate) mod blocked_requests;
pub(crate) mod calls;
pub(crate) mod capacity;
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

pub use self::calls::{Answer, Call, CallKind, CallTimes, InFlight, OperationKey, Reply, calls};
pub use self::capacity::{
    Capacity, ControllerView, CordonTarget, Hardware, InventoryCapacity, IpuCounts, Listing, MachinesError,
    PlacementConstraint, SelectionOrder, ServiceState, Unbounded,
};
pub use self::cordon::Cordon;
pub use self::entry::{Asked, Entry, KeptIpus, Phase, Preemption, Refusal, RemovalRefusal};
pub use self::error::RequestError;
pub use self::namespaces::NamespaceRules;
pub use self::policy::Policy;
pub use self::queue::{Blocker, QueueStatus, evaluate_queue, not_confirmed};
pub use self::quota::{Quota, QuotaSubject, Quotas};
pub use self::request::{OnNoCapacity, Request};
pub use self::state::{Change, State};
pub use self::step::{
    Claim, CordonEffect, Ended, Event, Outcome, OwnerLiveness, Owners, Release, RepairAction, Step, step,
};
pub use self::usage::{HoldEnd, UsageRecord};
pub use self::views::dry_run::DryRun;
pub use self::views::free_capacity::{CapacityBySize, FreeCapacity, SizeFit};
pub use self::views::map::{ControllerMap, IpuRun, LinkDomainMap, MachineMap};
pub use self::views::quota_usage::QuotaUsage;
pub use self::views::stats::Stats;
