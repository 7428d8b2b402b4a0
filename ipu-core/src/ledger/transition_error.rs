//! What the ledger does not do, and the checks that several transitions share.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::ids::{ControllerName, Namespace, Owner, PartitionId};
use crate::ledger::cordon::{Cordon, CordonTarget};
use crate::ledger::entry::Entry;
use crate::partition::PartitionSpec;
use crate::units::Timestamp;

/// Why the ledger does not do what it is asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransitionError {
    /// The id is somebody else's.
    #[error("partition {id} belongs to {}, instance {instance}", owner.as_ref().map_or_else(|| String::from("nobody known"), alloc::string::ToString::to_string))]
    NotTheOwner {
        /// Which partition.
        id: PartitionId,
        /// Whose it is; none if it is quarantined.
        owner: Option<Box<Owner>>,
        /// Which instance of that owner.
        instance: u32,
    },
    /// The controller has a partition of that id which the ledger did not make for this owner.
    #[error(
        "controller {controller} has a partition {id} of {found} IPUs that was not made for this request"
    )]
    Foreign {
        /// Which partition.
        id: PartitionId,
        /// Where.
        controller: ControllerName,
        /// Its size.
        found: u32,
    },
    /// The owner asked for something else under this id before.
    #[error("partition {id} was asked for with other properties ({} IPUs, {} GCDs) before; release it first", recorded.size, recorded.gcds)]
    OtherSpec {
        /// Which partition.
        id: PartitionId,
        /// What was asked for.
        recorded: Box<PartitionSpec>,
    },
    /// A newer attempt has asked already.
    #[error("attempt {asked} of partition {id} is out of date; attempt {recorded} asked already")]
    StaleAttempt {
        /// Which partition.
        id: PartitionId,
        /// The attempt of the request.
        asked: u32,
        /// The attempt in the ledger.
        recorded: u32,
    },
    /// The request was read after its client had given up.
    #[error(
        "the request for partition {id} was to be read until {} ms and is read at {} ms; ask again, and compare the clocks",
        not_after.as_millis(), now.as_millis()
    )]
    TooLate {
        /// Which partition.
        id: PartitionId,
        /// When its client gave up.
        not_after: Timestamp,
        /// The time of the ledger.
        now: Timestamp,
    },
    /// The line is full.
    #[error("the waiting line is full with {limit} requests")]
    LineFull {
        /// How many it takes.
        limit: usize,
    },
    /// The owner's namespace, or all namespaces of the client together, have as many requests in the queue as they may.
    #[error("{} {queued} queued requests{}", have(namespaces), of_limit(*limit, *share))]
    NamespaceQueueFull {
        /// The namespace of the owner; all namespaces of the client if only together they have too many.
        namespaces: Vec<Namespace>,
        /// How many requests they have in the queue.
        queued: usize,
        /// Most requests that they may have there.
        limit: usize,
        /// Most bytes of the ledger that these requests may take, if that is the limit which they reached.
        share: Option<usize>,
    },
    /// The priority is higher than owners of the namespace may ask for.
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
    /// The id has the form of one that follows from a job and an instance, and does not follow from those of the request.
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
    /// The entry has moved on, so that the fact no longer applies to it.
    #[error("partition {id} is {state} and cannot become {wanted}")]
    Moved {
        /// Which partition.
        id: PartitionId,
        /// Its state; `gone` if there is no entry.
        state: &'static str,
        /// What it was to become.
        wanted: &'static str,
    },
    /// The id is taken by another cordon, or the cordon is somebody else's.
    #[error(
        "exclusion {} is {}'s, of {} at controller {}: {}",
        recorded.id, recorded.owner, recorded.what, recorded.controller, recorded.reason
    )]
    OtherCordon {
        /// As it is recorded.
        recorded: Box<Cordon>,
    },
    /// That cannot be cordoned.
    #[error("{what} at controller {controller} cannot be excluded: {why}")]
    CannotCordon {
        /// What was to be cordoned.
        what: Box<CordonTarget>,
        /// Where.
        controller: ControllerName,
        /// Why not.
        why: String,
    },
    /// The controller gave the partition IPUs that another owner may still use.
    #[error(
        "the IPUs of partition {id} may still be in use by partition {by}, which its controller does not list"
    )]
    InUse {
        /// The partition that is not granted.
        id: PartitionId,
        /// The partition that has the IPUs by the ledger.
        by: PartitionId,
    },
    /// A heartbeat renews a lease and never creates one.
    #[error("partition {id} has no lease, and a heartbeat does not create one")]
    NoLease {
        /// Which partition.
        id: PartitionId,
    },
    /// A call that somebody made may still be under way.
    #[error("a call for partition {id} may be under way until {} ms", until.as_millis())]
    Unsettled {
        /// Which partition.
        id: PartitionId,
        /// Until when.
        until: Timestamp,
    },
}

/// `namespace a has`, or `namespaces a, b and 3 more together have`.
fn have(namespaces: &[Namespace]) -> String {
    const NAMED: usize = 3;
    let named: Vec<&str> = namespaces.iter().take(NAMED).map(Namespace::as_str).collect();
    let names = named.join(", ");
    match namespaces.len() {
        0 | 1 => format!("namespace {names} has"),
        count if count > NAMED => format!("namespaces {names} and {} more together have", count - NAMED),
        _ => format!("namespaces {names} together have"),
    }
}

fn of_limit(limit: usize, share: Option<usize>) -> String {
    match share {
        None => format!(" of at most {limit}"),
        Some(bytes) => format!(", and one more would exceed their share of the ledger, {bytes} bytes"),
    }
}

pub(crate) fn check_owner(entry: &Entry, owner: &Owner, instance: u32) -> Result<(), TransitionError> {
    let owns = match &entry.owner {
        Some(recorded) => recorded == owner && entry.instance == instance,
        // What was found: whose it was follows from its id.
        None => entry.id.is_derived_from(&owner.job),
    };
    if owns {
        return Ok(());
    }
    Err(TransitionError::NotTheOwner {
        id: entry.id.clone(),
        owner: entry.owner.clone().map(Box::new),
        instance: entry.instance,
    })
}

pub(crate) fn check_attempt(entry: &Entry, asked: u32) -> Result<(), TransitionError> {
    if asked >= entry.attempt {
        return Ok(());
    }
    Err(TransitionError::StaleAttempt {
        id: entry.id.clone(),
        asked,
        recorded: entry.attempt,
    })
}

pub(crate) fn moved(entry: &Entry, wanted: &'static str) -> TransitionError {
    TransitionError::Moved {
        id: entry.id.clone(),
        state: entry.state.label(),
        wanted,
    }
}
