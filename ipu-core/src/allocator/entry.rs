//! The record of one partition or queued request.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::allocator::capacity::PlacementConstraint;
use crate::allocator::request::{OnNoCapacity, Request};
use crate::hardware::partition::{IpuPlace, Partition, PartitionSpec};
use crate::ids::{ClusterId, ControllerName, Owner, PartitionId};
use crate::reason::{Reason, ReasonCode};
use crate::units::Timestamp;

/// A controller's refusal to create a partition that seemed to fit.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Refusal {
    /// The refusing controller.
    pub controller: ControllerName,
    /// The controller's message.
    pub message: String,
    /// Fingerprint of the controller's capacity at the time of the decision. The request is tried again once
    /// it changes.
    pub fingerprint: u64,
    /// Time of the refusal.
    pub at: Timestamp,
}

/// A controller's refusal to remove a partition without force.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemovalRefusal {
    /// The controller's message, at most [`MAX_MESSAGE_LEN`](Self::MAX_MESSAGE_LEN) bytes of it.
    pub message: String,
    /// Time of the refusal.
    pub at: Timestamp,
}

impl RemovalRefusal {
    /// Maximum length of the recorded message in bytes: two sentences. The store has to keep space for
    /// releases.
    pub const MAX_MESSAGE_LEN: usize = 256;

    /// Interval after a refusal in which the controller is not called again by itself: its operator has to
    /// act first.
    pub const RETRY_INTERVAL: Duration = Duration::from_secs(30);

    /// Creates a refusal at `at`.
    #[must_use]
    pub fn new(message: &str, at: Timestamp) -> Self {
        let is_end = |end: &usize| message.is_char_boundary(*end);
        let end = (0..=Self::MAX_MESSAGE_LEN.min(message.len())).rev().find(is_end);
        Self {
            message: message[..end.unwrap_or_default()].into(),
            at,
        }
    }
}

/// The demand of a queued request that the owner of a partition releases it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct Preemption {
    /// The queued request.
    pub by: PartitionId,
    /// Its owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Its priority.
    pub priority: i32,
    /// Time at which the owner of the partition was asked.
    pub at: Timestamp,
}

impl Preemption {
    /// Returns the preemption as a reason with the code `Preempted`, which names the owner of the request.
    #[must_use]
    pub fn reason(&self) -> Reason {
        let owner = match &self.owner {
            Some(owner) => format!("{owner}"),
            None => format!("{}", self.by),
        };
        let message = format!(
            "{owner} preempts it with priority {}; it releases its partition and queues again",
            self.priority
        );
        Reason::new(ReasonCode::Preempted, message)
    }
}

/// A holder that a queued request has asked to release its partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Asked {
    /// Its partition.
    pub id: PartitionId,
    /// Time at which the holder was asked.
    pub at: Timestamp,
}

/// The IPUs on which a preempting request starts once the holders that it asks have released. No later
/// request gets them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeptIpus {
    /// Their controller.
    pub controller: ControllerName,
    /// The IPUs, free or held.
    pub places: Vec<IpuPlace>,
}

/// Phase of an entry. The entry of a removed partition is removed from the state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    tag = "is",
    deny_unknown_fields
)]
pub enum Phase {
    /// Queued; nothing exists at a controller.
    Queued,
    /// The controller is being asked to create it.
    Creating,
    /// The controller is being asked to reset it.
    Resetting,
    /// Ready for its owner.
    Active,
    /// In error, or no longer listed by its controller. The entry still holds its IPUs.
    Failed {
        /// The controller's errors.
        errors: Vec<String>,
    },
    /// Being removed. This phase never reverts.
    Releasing {
        /// The last refusal of the controller to remove it without force.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        refusal: Option<RemovalRefusal>,
    },
    /// Exists under an id of the derived form, without an owner. Counted, and removed only by order of an
    /// administrator.
    Quarantined,
}

impl Phase {
    /// Returns the name shown to users: `waiting`, `creating`, `resetting`, `active`, `failed`, `releasing`,
    /// `quarantined`.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Queued => "waiting",
            Self::Creating => "creating",
            Self::Resetting => "resetting",
            Self::Active => "active",
            Self::Failed { .. } => "failed",
            Self::Releasing { .. } => "releasing",
            Self::Quarantined => "quarantined",
        }
    }

    /// Returns whether the entry has or may have IPUs at a controller: every phase but queued.
    #[must_use]
    pub const fn holds(&self) -> bool {
        !matches!(self, Self::Queued)
    }

    /// Returns whether the phase ends by calls to the controller.
    #[must_use]
    pub const fn needs_calls(&self) -> bool {
        matches!(self, Self::Creating | Self::Resetting | Self::Releasing { .. })
    }

    /// Returns whether processes of the owner may be using the partition, whatever its controller lists.
    #[must_use]
    pub const fn may_be_in_use(&self) -> bool {
        matches!(self, Self::Active | Self::Failed { .. } | Self::Quarantined)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The record of one partition or queued request. Only [`step`](crate::allocator::step) creates and changes
/// entries.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct Entry {
    /// The partition id.
    pub id: PartitionId,
    /// The owner; none if the entry is quarantined and unclaimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Instance of the owner.
    #[serde(default, skip_serializing_if = "is_default")]
    pub instance: u32,
    /// The attempt that the partition is, or is being made, fresh for.
    #[serde(default, skip_serializing_if = "is_default")]
    pub attempt: u32,
    /// Properties of the partition.
    pub spec: PartitionSpec,
    /// Phase.
    pub phase: Phase,
    /// Number of operations (create, reset, remove) begun for this entry. It distinguishes the answers to
    /// earlier ones.
    #[serde(default, skip_serializing_if = "is_default")]
    pub operations: u32,
    /// The last refusal of each controller that refused to create it; none once it is active.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<Refusal>,
    /// Number of later requests that started before this one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub overtaken: u32,
    /// The controller that has it; none while it is queued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<ControllerName>,
    /// Its IPUs, if known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<IpuPlace>,
    /// The cluster that the numbers of [`places`](Self::places) belong to; none if the controller has only
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
    /// Set if the create call names the IPUs, because a placement policy or the client chose them; else the
    /// controller chooses.
    #[serde(default, skip_serializing_if = "is_default")]
    pub names_ipus: bool,
    /// Queue ticket: among equal priorities the lower starts first. Never changes.
    pub ticket: u64,
    /// Start of the current phase.
    pub since: Timestamp,
    /// Start of the hold on IPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_since: Option<Timestamp>,
    /// See [`Request::priority`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: i32,
    /// See [`Request::max_runtime`].
    #[serde(
        default,
        rename = "maxRuntimeMillis",
        with = "crate::units::millis::option",
        skip_serializing_if = "Option::is_none"
    )]
    #[cfg_attr(feature = "schema", schemars(with = "Option<u64>"))]
    pub max_runtime: Option<Duration>,
    /// See [`Request::account`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// See [`Request::preemptible`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub preemptible: bool,
    /// The request of a queued entry of higher priority that the owner releases the partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption: Option<Preemption>,
    /// Holders that this queued entry asks or has asked to release their partitions, once each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asked: Vec<Asked>,
    /// The IPUs that are kept for this queued entry while it preempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<KeptIpus>,
    /// Set if the release must not force the controller to remove the partition.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unforced: bool,
    /// Set if the entry leaves no record when the controller refuses it: see [`OnNoCapacity::Reject`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub rejects: bool,
    /// Set if an unanswered earlier call could still take effect when the partition became active. A
    /// restarted process then waits [`CallTimes::settle`](crate::allocator::CallTimes::settle) before it
    /// takes the absence of the partition as final.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unsettled: bool,
    /// Set if the entry comes from an old copy of the record and its owner has not been heard since. It is
    /// neither reset nor released until then.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unconfirmed: bool,
    /// See [`Request::holder`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub holder: String,
    /// See [`Request::pin`].
    #[serde(default, skip_serializing_if = "PlacementConstraint::is_open")]
    pub pin: PlacementConstraint,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Entry {
    /// Creates an entry for `request` at the end of the queue.
    pub(crate) fn new_queued(request: &Request, ticket: u64, now: Timestamp) -> Self {
        let mut entry = Self::blank(
            request.id.clone(),
            request.spec.clone(),
            Phase::Queued,
            ticket,
            now,
        );
        entry.owner = Some(request.owner.clone());
        entry.instance = request.instance;
        entry.attempt = request.attempt;
        entry.rejects = request.on_no_capacity == OnNoCapacity::Reject;
        entry.holder.clone_from(&request.holder);
        entry.pin = request.pin.clone();
        entry.update(request);
        entry
    }

    /// Creates an entry for an existing partition without an owner.
    pub(crate) fn unowned(
        partition: &Partition,
        controller: &ControllerName,
        ticket: u64,
        now: Timestamp,
    ) -> Self {
        let (id, spec) = (partition.id.clone(), partition.spec.clone());
        let mut entry = Self::blank(id, spec, Phase::Quarantined, ticket, now);
        entry.controller = Some(controller.clone());
        entry.held_since = Some(now);
        entry
    }

    fn blank(id: PartitionId, spec: PartitionSpec, phase: Phase, ticket: u64, now: Timestamp) -> Self {
        Self {
            id,
            owner: None,
            instance: 0,
            attempt: 0,
            spec,
            phase,
            operations: 0,
            refusals: Vec::new(),
            overtaken: 0,
            controller: None,
            places: Vec::new(),
            cluster: None,
            names_ipus: false,
            ticket,
            since: now,
            held_since: None,
            priority: 0,
            max_runtime: None,
            account: None,
            preemptible: false,
            preemption: None,
            asked: Vec::new(),
            kept: None,
            unforced: false,
            rejects: false,
            unsettled: false,
            unconfirmed: false,
            holder: String::new(),
            pin: PlacementConstraint::default(),
        }
    }

    /// Applies the values that the owner may change while the request is queued.
    pub(crate) fn update(&mut self, request: &Request) {
        self.priority = request.priority;
        self.max_runtime = request.max_runtime;
        self.account.clone_from(&request.account);
        self.preemptible = request.preemptible;
    }

    /// Returns the entry in another phase from `now` on.
    pub(crate) fn with_phase(&self, phase: Phase, now: Timestamp) -> Self {
        let mut entry = self.clone();
        entry.operations = entry.operations.saturating_add(u32::from(phase.needs_calls()));
        if matches!(phase, Phase::Active) {
            entry.refusals.clear();
        }
        entry.phase = phase;
        entry.since = now;
        entry
    }

    /// Returns the entry in the phase `phase`, creating or resetting, at `controller`.
    pub(crate) fn started(&self, phase: Phase, controller: &ControllerName, now: Timestamp) -> Self {
        let mut entry = self.with_phase(phase, now);
        entry.controller = Some(controller.clone());
        entry.held_since = entry.held_since.or(Some(now));
        entry.asked = Vec::new();
        entry.kept = None;
        entry
    }

    /// Returns the entry at its position in the queue; nothing of it exists at a controller.
    pub(crate) fn requeued(&self, now: Timestamp) -> Self {
        let mut entry = self.with_phase(Phase::Queued, now);
        entry.controller = None;
        entry.held_since = None;
        entry.preemption = None;
        entry.names_ipus = false;
        entry.places = Vec::new();
        entry.cluster = None;
        entry
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

    /// Returns whether a partition of `spec` satisfies this entry.
    #[must_use]
    pub fn matches(&self, spec: &PartitionSpec) -> bool {
        satisfies(&self.spec, spec)
    }

    /// Returns whether the id is derived from the owner.
    pub(crate) fn is_derived(&self) -> bool {
        let owner = self.owner.as_ref();
        owner.is_some_and(|owner| owner.job.partition_id(self.instance) == self.id)
    }

    /// Returns the IPUs that the create call names; empty if the controller chooses.
    pub(crate) fn named_ipus(&self) -> &[IpuPlace] {
        if self.names_ipus { &self.places } else { &[] }
    }

    /// Returns the refusal of the controller to remove the partition without force.
    #[must_use]
    pub const fn removal_refusal(&self) -> Option<&RemovalRefusal> {
        match &self.phase {
            Phase::Releasing { refusal } => refusal.as_ref(),
            _ => None,
        }
    }

    /// Returns the reason that the release does not continue, which names the two ways to go on; none unless
    /// the controller has refused to remove the partition without force.
    #[must_use]
    pub fn removal_reason(&self) -> Option<Reason> {
        let refusal = self.removal_refusal()?;
        let controller = self
            .controller
            .as_ref()
            .map_or("of the partition", |name| name.as_str());
        let message = format!(
            "controller {controller} refuses to remove the partition without force: {}; release it with force, or \
             fix the cause and release it without force again",
            refusal.message
        );
        Some(Reason::new(ReasonCode::RemovalRefused, message))
    }
}

/// Returns whether `actual` satisfies `requested`. The allocation counts only if one was requested. GCDs,
/// replicas and reconfigurability always count, because Poplar refuses a partition that differs in them.
pub(crate) fn satisfies(requested: &PartitionSpec, actual: &PartitionSpec) -> bool {
    requested.size == actual.size
        && requested.gcds == actual.gcds
        && requested.replicas == actual.replicas
        && requested.reconfigurable == actual.reconfigurable
        && (requested.allocation.is_none() || requested.allocation == actual.allocation)
}
