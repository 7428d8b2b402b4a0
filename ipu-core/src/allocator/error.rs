//! Refused commands, and the checks that several of them share.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::allocator::capacity::CordonTarget;
use crate::allocator::capacity::machines::first_names;
use crate::allocator::cordon::Cordon;
use crate::allocator::entry::Entry;
use crate::hardware::partition::PartitionSpec;
use crate::ids::{ControllerName, Namespace, Owner, PartitionId};
use crate::units::Timestamp;

/// The reason that a command is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// Another owner has the id.
    #[error("partition {id} belongs to {}, instance {instance}", owner.as_ref().map_or_else(|| String::from("no known owner"), alloc::string::ToString::to_string))]
    NotTheOwner {
        /// The partition id.
        id: PartitionId,
        /// The owner; none if the partition is quarantined.
        owner: Option<Box<Owner>>,
        /// Instance of that owner.
        instance: u32,
    },
    /// The controller has a partition of that id that the ledger did not create for this owner.
    #[error(
        "controller {controller} has a partition {id} of {found} IPUs that was not made for this request"
    )]
    Foreign {
        /// The partition id.
        id: PartitionId,
        /// The controller.
        controller: ControllerName,
        /// Its size in IPUs.
        found: u32,
    },
    /// The owner requested other properties under this id before.
    #[error("partition {id} was requested with other properties ({} IPUs, {} GCDs) before; release it first", recorded.size, recorded.gcds)]
    OtherSpec {
        /// The partition id.
        id: PartitionId,
        /// The recorded properties.
        recorded: Box<PartitionSpec>,
    },
    /// A newer attempt has requested the partition already.
    #[error("attempt {asked} of partition {id} is out of date; attempt {recorded} has already requested it")]
    StaleAttempt {
        /// The partition id.
        id: PartitionId,
        /// The attempt of the request.
        asked: u32,
        /// The attempt in the ledger.
        recorded: u32,
    },
    /// The request was read after its client had given up.
    #[error(
        "the request for partition {id} expired at {} ms and was read at {} ms; send it again, and compare the clocks",
        not_after.as_millis(), now.as_millis()
    )]
    TooLate {
        /// The partition id.
        id: PartitionId,
        /// Time at which the client gave up.
        not_after: Timestamp,
        /// Time of the ledger.
        now: Timestamp,
    },
    /// The queue is full.
    #[error("the queue is full with {limit} requests")]
    QueueFull {
        /// Maximum length of the queue.
        limit: usize,
    },
    /// The owner's namespace, or all namespaces of the client together, have reached their limit of queued
    /// requests.
    #[error("{} {queued} queued requests{}", format_namespaces(namespaces), format_limit(*limit, *share))]
    NamespaceQueueFull {
        /// The namespace of the owner; all namespaces of the client if only together they exceed the limit.
        namespaces: Vec<Namespace>,
        /// Number of their queued requests.
        queued: usize,
        /// Maximum number of queued requests.
        limit: usize,
        /// Maximum size of these requests in the ledger in bytes, if that is the limit that they reached.
        share: Option<usize>,
    },
    /// The priority is higher than the maximum of the namespace.
    #[error("priority {asked} is higher than {highest}, the highest of namespace {namespace}")]
    PriorityTooHigh {
        /// The namespace of the owner.
        namespace: Namespace,
        /// The priority of the request.
        asked: i32,
        /// The highest priority of that namespace.
        highest: i32,
    },
    /// Owners of the namespace may not charge the account.
    #[error("owners of namespace {namespace} may not charge account {account}")]
    AccountNotAllowed {
        /// The namespace of the owner.
        namespace: Namespace,
        /// The account of the request.
        account: String,
    },
    /// The id has the derived form, but is not derived from the job and instance of the request.
    #[error(
        "partition id {id} has the form of a derived one and does not follow from {owner}, instance {instance}"
    )]
    NotDerived {
        /// The id of the request.
        id: PartitionId,
        /// The owner of the request.
        owner: Box<Owner>,
        /// The instance of the request.
        instance: u32,
    },
    /// The entry has changed state, so the transition no longer applies.
    #[error("partition {id} is {state} and cannot become {wanted}")]
    Moved {
        /// The partition id.
        id: PartitionId,
        /// Its state; `gone` if there is no entry of this id.
        state: &'static str,
        /// The target state of the transition.
        wanted: &'static str,
    },
    /// Another cordon has the id, or the cordon has another owner.
    #[error(
        "cordon {} belongs to {}, for {} at controller {}: {}",
        recorded.id, recorded.owner, recorded.target, recorded.controller, recorded.reason
    )]
    OtherCordon {
        /// The recorded cordon.
        recorded: Box<Cordon>,
    },
    /// The hardware cannot be cordoned.
    #[error("{what} at controller {controller} cannot be cordoned: {why}")]
    CannotCordon {
        /// The hardware.
        what: Box<CordonTarget>,
        /// The controller.
        controller: ControllerName,
        /// The reason.
        why: String,
    },
    /// A heartbeat renews a lease and never creates one.
    #[error("partition {id} has no lease, and a heartbeat does not create one")]
    NoLease {
        /// The partition id.
        id: PartitionId,
    },
}

/// Formats `namespace a has`, or `namespaces a, b and 3 more together have`.
fn format_namespaces(namespaces: &[Namespace]) -> String {
    let names: Vec<&str> = namespaces.iter().map(Namespace::as_str).collect();
    match names[..] {
        [name] => format!("namespace {name} has"),
        _ => format!("namespaces {} together have", first_names(&names, 3)),
    }
}

fn format_limit(limit: usize, share: Option<usize>) -> String {
    match share {
        None => format!(" of at most {limit}"),
        Some(bytes) => format!(", and one more would exceed their share of the ledger, {bytes} bytes"),
    }
}

pub(crate) fn check_owner(entry: &Entry, owner: &Owner, instance: u32) -> Result<(), RequestError> {
    let is_owner = match &entry.owner {
        Some(recorded) => recorded == owner && entry.instance == instance,
        // The owner of an existing partition without a record is derived from its id.
        None => entry.id.is_derived_from(&owner.job),
    };
    if is_owner {
        return Ok(());
    }
    Err(RequestError::NotTheOwner {
        id: entry.id.clone(),
        owner: entry.owner.clone().map(Box::new),
        instance: entry.instance,
    })
}

pub(crate) fn check_attempt(entry: &Entry, asked: u32) -> Result<(), RequestError> {
    if asked >= entry.attempt {
        return Ok(());
    }
    Err(RequestError::StaleAttempt {
        id: entry.id.clone(),
        asked,
        recorded: entry.attempt,
    })
}

pub(crate) fn moved(entry: &Entry, wanted: &'static str) -> RequestError {
    RequestError::Moved {
        id: entry.id.clone(),
        state: entry.phase.as_str(),
        wanted,
    }
}
