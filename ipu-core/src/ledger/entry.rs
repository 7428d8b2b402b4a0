//! What the ledger remembers of one partition or of one request for a partition, and what a request says.

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{ClusterId, ControllerName, Namespace, Owner, PartitionId};
use crate::ledger::location::Location;
use crate::partition::{IpuPlace, Partition, PartitionSpec};
use crate::units::Timestamp;

/// Where a partition has to be, for those who choose themselves. The default leaves everything open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PlacementConstraint {
    /// The only controller that will do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<ControllerName>,
    /// The very IPUs, in routing order; empty leaves the choice to the controller.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ipus: Vec<IpuPlace>,
}

impl PlacementConstraint {
    /// Whether nothing is pinned.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.controller.is_none() && self.ipus.is_empty()
    }
}

/// What to do with a request that does not fit now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum OnNoCapacity {
    /// It joins the waiting line.
    #[default]
    #[serde(rename = "wait")]
    Queue,
    /// It is refused at once and leaves no trace.
    #[serde(rename = "refuse")]
    Reject,
}

/// A request for one partition. Asking again with the same values is always safe. Who still waits may ask with another priority,
/// runtime, account or consent to be pre-empted, and keeps his ticket; once something is made for him, what he said then stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct Request {
    /// The partition's id.
    pub id: PartitionId,
    /// Who asks; only the same owner may ask again, reset or release.
    pub owner: Owner,
    /// Which instance of the owner, from 0.
    pub instance: u32,
    /// The attempt that the partition is to be fresh for: a newer one than recorded resets it.
    pub attempt: u32,
    /// What it is made of.
    pub spec: PartitionSpec,
    /// Higher goes first in the line.
    #[serde(default)]
    pub priority: i32,
    /// How long the owner holds it at most, by its own word; what others are told of the time they wait rests on it.
    #[serde(
        default,
        rename = "maxRuntimeMillis",
        with = "crate::units::millis::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub max_runtime: Option<Duration>,
    /// Whom it is charged to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Whether the owner agrees to be ended for a request of higher priority. Recorded; nothing pre-empts yet.
    #[serde(default)]
    pub preemptible: bool,
    /// How the adapter tells later whether the asker is alive, such as a process id with its start time. Opaque here. Empty
    /// leaves what is recorded.
    #[serde(default)]
    pub holder: String,
    /// What to do if it does not fit.
    #[serde(default)]
    pub line: OnNoCapacity,
    /// Where it has to be.
    #[serde(default)]
    pub pin: PlacementConstraint,
    /// When the client gives up. A request that is read later is refused: its client may have asked again, used the
    /// partition and released it since. Without it a request that is read late is taken for a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Timestamp>,
    /// The namespaces that the client which sent the request may act for, if it is bound to some: their queued requests count
    /// together. Never recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub client_namespaces: Vec<Namespace>,
}

impl Request {
    /// A request for the partition of instance `instance` of `owner`, under the id that follows from the two.
    #[must_use]
    pub fn of_instance(owner: Owner, instance: u32, spec: PartitionSpec) -> Self {
        let id = owner.job.partition_id(instance);
        let mut request = Self::named(id, owner, spec);
        request.instance = instance;
        request
    }

    /// A request for a partition under an id of the asker's choice. Such a partition cannot be adopted when the ledger
    /// is lost, because nothing tells whose it is.
    #[must_use]
    pub const fn named(id: PartitionId, owner: Owner, spec: PartitionSpec) -> Self {
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
            line: OnNoCapacity::Queue,
            pin: PlacementConstraint {
                controller: None,
                ipus: Vec::new(),
            },
            not_after: None,
            client_namespaces: Vec::new(),
        }
    }

    /// Whether the id is the one that follows from owner and instance.
    #[must_use]
    pub fn is_derived(&self) -> bool {
        self.id == self.owner.job.partition_id(self.instance)
    }
}

/// What is being done to a partition at its controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Operation {
    /// It is being made.
    Create,
    /// It is being reset, or made again if the controller has lost it.
    Reset,
}

/// A controller's refusal to make a partition that seemed to fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ControllerRejection {
    /// Who refused.
    pub controller: ControllerName,
    /// In its words.
    #[serde(rename = "words")]
    pub message: String,
    /// What the controller listed then (see [`crate::Listing::fingerprint`]): it is not asked again before that changes.
    pub fingerprint: u64,
    /// When.
    pub at: Timestamp,
}

/// How far an entry is. An entry that is gone is removed from the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    tag = "is",
    deny_unknown_fields
)]
#[non_exhaustive]
pub enum EntryState {
    /// In the line; nothing exists at a controller.
    Waiting {
        /// The last refusal by a controller.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        refused: Option<ControllerRejection>,
    },
    /// The controller was or will be asked: recorded before the call is made.
    Intent {
        /// For what.
        operation: Operation,
        /// A call that the writer of this record makes may be under way until then, also after the writer died.
        fence: Timestamp,
    },
    /// Ready for its owner.
    Active,
    /// In error, or no longer known to its controller. The entry still holds it.
    Failed {
        /// What is wrong.
        errors: Vec<String>,
    },
    /// Being given back: recorded before the call is made. Never goes back.
    Releasing {
        /// A remove call that the writer of this record makes may be under way until then.
        fence: Timestamp,
    },
    /// Its owner is gone; it is released once it has been so for the configured grace.
    Orphaned,
    /// It exists, looks as if we had made it, and nobody owns it. Counted and never removed without an order.
    Quarantined,
}

impl EntryState {
    /// The word that people read: `waiting`, `intent`, `active`, `failed`, `releasing`, `orphaned`, `quarantined`.
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

    /// Whether the entry has or may have IPUs at a controller: every state but waiting.
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

/// One record of the ledger. Only the ledger's transitions make and change entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct Entry {
    /// Which partition.
    pub id: PartitionId,
    /// Whose; none if it is quarantined and nobody claims it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Which instance of the owner.
    #[serde(default)]
    pub instance: u32,
    /// The attempt that the partition is, or is being made, fresh for.
    #[serde(default)]
    pub attempt: u32,
    /// What it is made of.
    pub spec: PartitionSpec,
    /// How far it is.
    pub state: EntryState,
    /// How often a later request of the line went first.
    #[serde(rename = "passedOver", default)]
    pub overtaken: u32,
    /// The controller that has it; none while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<ControllerName>,
    /// Other names under which the same controller has listed it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub aliases: BTreeSet<ControllerName>,
    /// Its IPUs, if they are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<IpuPlace>,
    /// The cluster that the numbers of [`places`](Self::places) belong to; none if its controller has only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
    /// Whether the controller was told the IPUs instead of choosing them.
    #[serde(default)]
    pub placed: PlacedBy,
    /// Its number in the line: among equals of priority the lower goes first. It keeps it for life.
    #[serde(default)]
    pub ticket: u64,
    /// Since when it is in its state.
    pub since: Timestamp,
    /// A call whose answer nobody had may be under way until then, besides the one that the state tells of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsettled: Option<Timestamp>,
    /// The same for a reset: until then nobody may be granted the partition, because the reset would come under him.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsettled_reset: Option<Timestamp>,
    /// Since when it holds IPUs.
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
    /// See [`Request::holder`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub holder: String,
    /// See [`Request::pin`].
    #[serde(default, skip_serializing_if = "PlacementConstraint::is_open")]
    pub pin: PlacementConstraint,
}

/// Who chose the IPUs of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum PlacedBy {
    /// The controller; what the ledger knows of the places is an observation.
    #[default]
    Controller,
    /// The ledger or the asker: the places are passed to the controller.
    Ledger,
}

impl Entry {
    /// The version of the stored form of an entry that this build writes: the oldest that has all of its fields.
    pub const FORMAT: u32 = 1;

    /// A new entry for `request`, at the end of the line.
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
            holder: request.holder.clone(),
            pin: request.pin.clone(),
        }
    }

    /// Takes over what the owner may say anew while he waits. The ticket stays: among equals nobody loses his place by asking
    /// again.
    pub(crate) fn update_request(&mut self, request: &Request) {
        self.priority = request.priority;
        self.max_runtime = request.max_runtime;
        self.account.clone_from(&request.account);
        self.preemptible = request.preemptible;
    }

    /// An entry for a partition that was found and that nobody owns.
    pub(crate) fn found(
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
            holder: String::new(),
            pin: PlacementConstraint::default(),
        }
    }

    /// The same entry in another state from `now` on.
    pub(crate) fn with_state(&self, state: EntryState, now: Timestamp) -> Self {
        let mut entry = self.clone();
        entry.state = state;
        entry.since = now;
        entry
    }

    /// Books that the entry leaves its state: a call of that state that nobody had the answer of may still have effect.
    pub(crate) fn carry_unsettled_calls(&mut self, answered: Option<Timestamp>) {
        let (fence, resets) = match &self.state {
            EntryState::Intent { operation, fence } => (*fence, *operation == Operation::Reset),
            EntryState::Releasing { fence } => (*fence, false),
            _ => return,
        };
        if answered != Some(fence) {
            self.unsettled = self.unsettled.max(Some(fence));
            if resets {
                self.unsettled_reset = self.unsettled_reset.max(Some(fence));
            }
        }
    }

    /// How many IPUs.
    pub(crate) const fn size(&self) -> u32 {
        self.spec.size.get()
    }

    /// When it will be given back by its owner's own word, unless that is over already.
    #[must_use]
    pub fn until(&self, now: Timestamp) -> Option<Timestamp> {
        let end = self.held_since?.plus(self.max_runtime?);
        (end > now).then_some(end)
    }

    /// Whether `partition` can be what this entry asked for. The allocation counts only if one was asked for; GCDs,
    /// replicas and the kind of partition always do, because Poplar refuses a partition that differs in them.
    #[must_use]
    pub fn matches(&self, spec: &PartitionSpec) -> bool {
        same_make(&self.spec, spec)
    }
}

/// Whether `found` can be what `asked` asks for.
pub(crate) fn same_make(asked: &PartitionSpec, found: &PartitionSpec) -> bool {
    asked.size == found.size
        && asked.gcds == found.gcds
        && asked.replicas == found.replicas
        && asked.reconfigurable == found.reconfigurable
        && (asked.allocation.is_none() || asked.allocation == found.allocation)
}
