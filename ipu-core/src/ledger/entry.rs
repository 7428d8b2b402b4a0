//! The ledger's record of one partition or queued request, and the request itself.

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{ClusterId, ControllerName, Namespace, Owner, PartitionId};
use crate::ledger::location::Location;
use crate::ledger::preemption::Preemption;
use crate::ledger::unforced_removal::UnforcedRemoval;
use crate::partition::{IpuPlace, Partition, PartitionSpec};
use crate::units::Timestamp;

/// Placement required by a request. The default leaves everything open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PlacementConstraint {
    /// The only acceptable controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<ControllerName>,
    /// The IPUs that the partition may use: exactly these, in routing order, if their number is the size,
    /// and a block among them if there are more. Empty allows every IPU.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ipus: Vec<IpuPlace>,
}

impl PlacementConstraint {
    /// Returns whether nothing is pinned.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.controller.is_none() && self.ipus.is_empty()
    }
}

/// Handling of a request that does not fit now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnNoCapacity {
    /// The request joins the queue.
    #[default]
    #[serde(rename = "wait")]
    Queue,
    /// The request is rejected at once and leaves no record.
    #[serde(rename = "refuse")]
    Reject,
}

/// A request for one partition. Repeating it with the same values is always safe.
///
/// While it is queued, the owner may repeat it with another priority, runtime, account or consent to
/// preemption, and it keeps its ticket. Once it has started, the values of that moment are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct Request {
    /// The partition's id.
    pub id: PartitionId,
    /// The requesting owner; only the same owner may repeat the request, reset or release.
    pub owner: Owner,
    /// Instance of the owner, from 0.
    pub instance: u32,
    /// The attempt that the partition must be fresh for: a newer one than recorded is_reset it.
    pub attempt: u32,
    /// Properties of the partition.
    pub spec: PartitionSpec,
    /// Queue priority; higher starts first.
    #[serde(default)]
    pub priority: i32,
    /// Longest time that the owner declares to hold the partition. Expected start times are computed from it.
    #[serde(
        default,
        rename = "maxRuntimeMillis",
        with = "crate::units::millis::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub max_runtime: Option<Duration>,
    /// The account that is charged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Set if a request of higher priority may preempt the owner, if [`QueuePolicy::preemption`] is on. A
    /// preemptible request never preempts others.
    ///
    /// [`QueuePolicy::preemption`]: crate::QueuePolicy::preemption
    #[serde(default)]
    pub preemptible: bool,
    /// Evidence by which the adapter checks later that the owner is alive, such as a process id with its
    /// start time. Opaque here. Empty keeps the recorded value.
    #[serde(default)]
    pub holder: String,
    /// Handling of the request if it does not fit.
    #[serde(rename = "line", default)]
    pub on_no_capacity: OnNoCapacity,
    /// Required placement.
    #[serde(default)]
    pub pin: PlacementConstraint,
    /// Time at which the client gives up. A request that is read later is rejected: its client may have
    /// repeated it, used the partition and released it since. Without this time, a request that is read late
    /// counts as a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Timestamp>,
    /// Namespaces that the sending client may act for, if it is restricted to some: their queued requests
    /// count together. Never recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub client_namespaces: Vec<Namespace>,
}

impl Request {
    /// Creates a request for the partition of instance `instance` of `owner`, under the id derived from the
    /// two.
    #[must_use]
    pub fn of_instance(owner: Owner, instance: u32, spec: PartitionSpec) -> Self {
        let id = owner.job.partition_id(instance);
        let mut request = Self::with_id(id, owner, spec);
        request.instance = instance;
        request
    }

    /// Creates a request for a partition under an id that the client chooses. Such a partition cannot be
    /// adopted if the ledger is lost, because its id does not identify an owner.
    #[must_use]
    pub const fn with_id(id: PartitionId, owner: Owner, spec: PartitionSpec) -> Self {
        Self {
            id,
            owner,
            instance: 0,
            attempt: 0,
            spec,
            priority: 0,
            max_runtime: None,
            account: None,
            preemptible: false,
            holder: String::new(),
            on_no_capacity: OnNoCapacity::Queue,
            pin: PlacementConstraint {
                controller: None,
                ipus: Vec::new(),
            },
            not_after: None,
            client_namespaces: Vec::new(),
        }
    }

    /// Returns whether the id is derived from owner and instance.
    #[must_use]
    pub fn is_derived(&self) -> bool {
        self.id == self.owner.job.partition_id(self.instance)
    }
}

/// The controller operation of an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Operation {
    /// Create the partition.
    Create,
    /// Reset the partition, or create it again if the controller has lost it.
    Reset,
}

/// A controller's refusal to create a partition that seemed to fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ControllerRejection {
    /// The refusing controller.
    pub controller: ControllerName,
    /// The controller's message.
    #[serde(rename = "words")]
    pub message: String,
    /// Fingerprint of the controller's listing and cordons at the time of the decision (see
    /// [`crate::LedgerState::capacity_fingerprint`]). The ledger retries once it changes.
    pub fingerprint: u64,
    /// Time of the refusal.
    pub at: Timestamp,
}

/// Lifecycle state of an entry. The entry of a removed partition is removed from the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    tag = "is",
    deny_unknown_fields
)]
pub enum EntryState {
    /// Queued; nothing exists at a controller.
    Waiting {
        /// The last refusal by a controller.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        refused: Option<ControllerRejection>,
    },
    /// A controller call was or will be made; recorded before the call.
    Intent {
        /// The operation of the call.
        operation: Operation,
        /// Time until which a call by the writer of this record may be under way, even if the writer has
        /// died.
        fence: Timestamp,
    },
    /// Ready for its owner.
    Active,
    /// In error, or no longer listed by its controller. The entry still holds its IPUs.
    Failed {
        /// The controller's errors.
        errors: Vec<String>,
    },
    /// Being released; recorded before the call is made. This state never reverts.
    Releasing {
        /// Time until which a remove call by the writer of this record may be under way.
        fence: Timestamp,
    },
    /// Its owner is dead; released after the configured grace period.
    Orphaned,
    /// Exists under an id of the derived form, without an owner. Counted, and removed only by order of an
    /// administrator.
    Quarantined,
}

impl EntryState {
    /// Returns the label shown to users: `waiting`, `intent`, `active`, `failed`, `releasing`, `orphaned`,
    /// `quarantined`.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Waiting { .. } => "waiting",
            Self::Intent { .. } => "intent",
            Self::Active => "active",
            Self::Failed { .. } => "failed",
            Self::Releasing { .. } => "releasing",
            Self::Orphaned => "orphaned",
            Self::Quarantined => "quarantined",
        }
    }

    /// Returns whether the entry has or may have IPUs at a controller: every state but waiting.
    #[must_use]
    pub const fn holds(&self) -> bool {
        match self {
            Self::Waiting { .. } => false,
            Self::Intent { .. }
            | Self::Active
            | Self::Failed { .. }
            | Self::Releasing { .. }
            | Self::Orphaned
            | Self::Quarantined => true,
        }
    }
}

impl fmt::Display for EntryState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.label())
    }
}

/// One record of the ledger. Only the ledger's transitions create and change entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct Entry {
    /// The partition id.
    pub id: PartitionId,
    /// The owner; none if the entry is quarantined and unclaimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Instance of the owner.
    #[serde(default)]
    pub instance: u32,
    /// The attempt that the partition is, or is being made, fresh for.
    #[serde(default)]
    pub attempt: u32,
    /// Properties of the partition.
    pub spec: PartitionSpec,
    /// Lifecycle state.
    pub state: EntryState,
    /// Number of later requests that started before this one.
    #[serde(rename = "passedOver", default)]
    pub overtaken: u32,
    /// The controller that has it; none while it is queued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<ControllerName>,
    /// Other names under which the same controller has listed it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub aliases: BTreeSet<ControllerName>,
    /// Its IPUs, if known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<IpuPlace>,
    /// The cluster that the numbers of [`places`](Self::places) belong to; none if the controller has only
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
    /// Origin of the choice of IPUs.
    #[serde(default)]
    pub placed: PlacedBy,
    /// Queue ticket: among equal priorities the lower starts first. Never changes.
    #[serde(default)]
    pub ticket: u64,
    /// Start of the current state.
    pub since: Timestamp,
    /// Time until which a call without a known response may be under way, besides the call of the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsettled: Option<Timestamp>,
    /// Like `unsettled`, for a reset: until then the partition cannot be granted, because the reset would
    /// disrupt its owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsettled_reset: Option<Timestamp>,
    /// Start of the hold on IPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_since: Option<Timestamp>,
    /// See [`Request::priority`].
    #[serde(default)]
    pub priority: i32,
    /// See [`Request::max_runtime`].
    #[serde(
        default,
        rename = "maxRuntimeMillis",
        with = "crate::units::millis::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub max_runtime: Option<Duration>,
    /// See [`Request::account`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// See [`Request::preemptible`].
    #[serde(default)]
    pub preemptible: bool,
    /// The demand of a queued request of higher priority that the owner releases the partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption: Option<Preemption>,
    /// Set if the entry is being released and the controller must not be forced to remove the partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unforced: Option<UnforcedRemoval>,
    /// See [`Request::holder`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub holder: String,
    /// See [`Request::pin`].
    #[serde(default, skip_serializing_if = "PlacementConstraint::is_open")]
    pub pin: PlacementConstraint,
}

/// Origin of the choice of IPUs of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PlacedBy {
    /// The controller chose; the recorded places are an observation.
    #[default]
    Controller,
    /// The ledger or the client chose; the places are passed to the controller.
    Ledger,
}

impl Entry {
    /// Version of the stored form of an entry without a preemption.
    pub const FORMAT: u32 = 1;
    /// Version of the stored form of an entry with a preemption.
    pub const PREEMPTION_FORMAT: u32 = 3;
    /// Version of the stored form of an entry whose release must not use force: an older build would use it.
    pub const UNFORCED_FORMAT: u32 = 4;

    /// Returns the version of the stored form that this build writes: the oldest that has all fields of the
    /// entry.
    #[must_use]
    pub const fn format(&self) -> u32 {
        if self.unforced.is_some() {
            Self::UNFORCED_FORMAT
        } else if self.preemption.is_some() {
            Self::PREEMPTION_FORMAT
        } else {
            Self::FORMAT
        }
    }

    /// Creates an entry for `request` at the end of the queue.
    pub(crate) fn waiting(request: &Request, ticket: u64, now: Timestamp) -> Self {
        Self {
            id: request.id.clone(),
            owner: Some(request.owner.clone()),
            instance: request.instance,
            attempt: request.attempt,
            spec: request.spec.clone(),
            state: EntryState::Waiting { refused: None },
            overtaken: 0,
            controller: None,
            aliases: BTreeSet::new(),
            places: Vec::new(),
            cluster: None,
            placed: PlacedBy::Controller,
            ticket,
            since: now,
            unsettled: None,
            unsettled_reset: None,
            held_since: None,
            priority: request.priority,
            max_runtime: request.max_runtime,
            account: request.account.clone(),
            preemptible: request.preemptible,
            preemption: None,
            unforced: None,
            holder: request.holder.clone(),
            pin: request.pin.clone(),
        }
    }

    /// Applies the values that the owner may change while the request is queued. The ticket is kept: a
    /// repeated request does not lose its position among equals.
    pub(crate) fn update_request(&mut self, request: &Request) {
        self.priority = request.priority;
        self.max_runtime = request.max_runtime;
        self.account.clone_from(&request.account);
        self.preemptible = request.preemptible;
    }

    /// Creates an entry for an existing partition without an owner.
    pub(crate) fn unowned(
        partition: &Partition,
        location: Location,
        controller: &ControllerName,
        ticket: u64,
        now: Timestamp,
    ) -> Self {
        Self {
            id: partition.id.clone(),
            owner: None,
            instance: 0,
            attempt: 0,
            spec: partition.spec.clone(),
            state: EntryState::Quarantined,
            overtaken: 0,
            controller: Some(controller.clone()),
            aliases: BTreeSet::new(),
            places: location.ipus,
            cluster: location.cluster,
            placed: PlacedBy::Controller,
            ticket,
            since: now,
            unsettled: None,
            unsettled_reset: None,
            held_since: Some(now),
            priority: 0,
            max_runtime: None,
            account: None,
            preemptible: false,
            preemption: None,
            unforced: None,
            holder: String::new(),
            pin: PlacementConstraint::default(),
        }
    }

    /// Returns the entry in another state from `now` on.
    pub(crate) fn with_state(&self, state: EntryState, now: Timestamp) -> Self {
        let mut entry = self.clone();
        entry.state = state;
        entry.since = now;
        entry
    }

    /// Records, when the entry leaves its state, that a call of that state without a response may still take
    /// effect.
    pub(crate) fn carry_unsettled_calls(&mut self, answered: Option<Timestamp>) {
        let (fence, is_reset) = match &self.state {
            EntryState::Intent { operation, fence } => (*fence, *operation == Operation::Reset),
            // A recorded refusal is the response to the call of this fence.
            EntryState::Releasing { fence } if self.removal_refusal().is_none() => (*fence, false),
            _ => return,
        };
        if answered != Some(fence) {
            self.unsettled = self.unsettled.max(Some(fence));
            if is_reset {
                self.unsettled_reset = self.unsettled_reset.max(Some(fence));
            }
        }
    }

    /// Returns the number of IPUs.
    pub(crate) const fn size(&self) -> u32 {
        self.spec.size.get()
    }

    /// Returns the end of the hold that the owner has declared, unless it has passed.
    #[must_use]
    pub fn declared_end(&self, now: Timestamp) -> Option<Timestamp> {
        let end = self.held_since?.plus(self.max_runtime?);
        (end > now).then_some(end)
    }

    /// Returns whether a partition of `spec` satisfies this entry. The allocation counts only if one was
    /// requested. GCDs, replicas and reconfigurability always count, because Poplar refuses a partition that
    /// differs in them.
    #[must_use]
    pub fn matches(&self, spec: &PartitionSpec) -> bool {
        satisfies(&self.spec, spec)
    }
}

/// Returns whether `actual` satisfies `requested`.
pub(crate) fn satisfies(requested: &PartitionSpec, actual: &PartitionSpec) -> bool {
    requested.size == actual.size
        && requested.gcds == actual.gcds
        && requested.replicas == actual.replicas
        && requested.reconfigurable == actual.reconfigurable
        && (requested.allocation.is_none() || requested.allocation == actual.allocation)
}
