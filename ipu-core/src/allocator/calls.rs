//! Calls to controllers: which follow from the state, and what is known of those under way.
//!
//! Every entry that is being created, reset or released yields its call, again and again, until an answer
//! moves it on. So a restart loses nothing: calls are idempotent, and follow from the state alone.
//!
//! A call without an answer may still take effect until [`CallTimes::settle`] has passed since it was sent;
//! until then its partition is *unsettled*. Repeating a create or a remove meanwhile does no harm. A reset
//! would disturb the owner if it took effect late, so that it is not repeated before. An entry is dropped, or
//! put back into the queue, only by the answer to a call that was sent when nothing else could take effect.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use serde::Deserialize;

use crate::allocator::entry::{Entry, Phase};
use crate::allocator::state::State;
use crate::hardware::partition::{IpuPlace, Partition, PartitionSpec, PartitionState};
use crate::ids::{ControllerName, PartitionId};
use crate::units::{BootTime, Timestamp};

/// Durations of calls. All count time for which the host is suspended.
///
/// ```
/// use core::time::Duration;
/// use ipu_core::allocator::CallTimes;
///
/// let times = CallTimes::with_deadline(Duration::from_secs(5));
/// assert!(times.settle >= Duration::from_secs(5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct CallTimes {
    /// Time within which a call is sent and answered. The default, 10 s, is twice the longest observed
    /// silence of a controller that resets a large partition.
    pub deadline: Duration,
    /// Time after which a call that was sent can have no further effect. The default, 30 s, is the deadline
    /// and twice as long again for the network and a slow controller. Zero only for a controller that ends
    /// with the process.
    pub settle: Duration,
    /// First pause between two status queries, or after a call that was not answered.
    pub min_pause: Duration,
    /// Longest pause between two status queries.
    pub max_poll_pause: Duration,
    /// Longest pause before a call that was not answered, or was refused, is repeated.
    pub max_retry_pause: Duration,
}

impl Default for CallTimes {
    fn default() -> Self {
        Self::with_deadline(Duration::from_secs(10))
    }
}

impl CallTimes {
    /// Returns the times for a controller that replies within `deadline`: a call is settled after three times
    /// as long.
    #[must_use]
    pub const fn with_deadline(deadline: Duration) -> Self {
        Self {
            deadline,
            settle: deadline.saturating_mul(3),
            min_pause: Duration::from_millis(5),
            max_poll_pause: Duration::from_millis(500),
            max_retry_pause: Duration::from_secs(5),
        }
    }
}

/// A call to make now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The partition.
    pub id: PartitionId,
    /// The controller.
    pub controller: ControllerName,
    /// The operation that the call is part of.
    pub operation: OperationKey,
    /// The call.
    pub kind: CallKind,
}

/// The kind of a call, with its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// Create the partition on `ipus`; the controller chooses if they are empty.
    Create {
        /// The properties.
        spec: PartitionSpec,
        /// The IPUs.
        ipus: Vec<IpuPlace>,
    },
    /// Reset the partition.
    Reset,
    /// Remove the partition, with force if `force` is set and the controller refuses otherwise.
    Remove {
        /// Whether force is allowed.
        force: bool,
    },
    /// Query the status, and the IPUs too if `locate` is set.
    Status {
        /// Whether the IPUs are not known.
        locate: bool,
    },
}

/// Identity of an operation: the queue ticket and the number of the operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OperationKey {
    ticket: u64,
    operations: u32,
}

impl OperationKey {
    pub(crate) const fn of(entry: &Entry) -> Self {
        Self {
            ticket: entry.ticket,
            operations: entry.operations,
        }
    }

    /// Returns whether `entry` has begun exactly one operation since.
    pub(crate) const fn is_followed_by(self, entry: &Entry) -> bool {
        self.ticket == entry.ticket && self.operations.saturating_add(1) == entry.operations
    }
}

/// The answer of a controller to a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Reply {
    /// The controller accepted the operation, and works on it.
    Accepted,
    /// A create found a partition of the id; none if the controller does not list it.
    Exists(Option<Partition>),
    /// The controller does not know the partition.
    Absent,
    /// The partition has this state. `listed` is the partition as listed, if that was asked for.
    Status {
        /// The state.
        state: PartitionState,
        /// The partition as the controller lists it.
        listed: Option<Partition>,
    },
    /// The controller refused to create the partition, and does not have it.
    Refused {
        /// The controller's message.
        message: String,
    },
    /// The controller refused to remove the partition without force.
    NeedsForce {
        /// The controller's message.
        message: String,
    },
    /// No answer: the call may have been executed, or may be yet.
    Lost,
    /// The call certainly was not and will not be executed.
    NotSent,
}

/// A definite answer, as [`step`](crate::allocator::step) handles it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Answer {
    /// The partition.
    pub id: PartitionId,
    /// The operation that the call was part of.
    pub operation: OperationKey,
    /// The reply.
    pub reply: Reply,
    /// Whether no earlier call for the partition can still take effect, nor has created one that exists.
    pub is_settled: bool,
}

/// The knowledge of a process about its calls, in memory only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct InFlight {
    times: CallTimes,
    flights: BTreeMap<PartitionId, Flight>,
}

/// The calls for one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Flight {
    /// The operation that the following refers to.
    operation: OperationKey,
    /// The call without an answer, and the time at which it was begun.
    running: Option<(CallKind, BootTime)>,
    /// The call that the controller accepted: the status shows its progress.
    accepted: Option<CallKind>,
    /// A create of this operation, perhaps by a predecessor, may have been executed.
    may_have_created: bool,
    /// The status is to be queried, whatever the phase.
    is_doubted: bool,
    /// Time until which a call may take effect.
    unsettled_until: Option<BootTime>,
    /// Time until which a reset may take effect.
    reset_unsettled_until: Option<BootTime>,
    /// Earliest time of the next call.
    not_before: BootTime,
    /// Last pause.
    pause: Duration,
}

impl InFlight {
    /// Creates the knowledge of a process that starts at `now` with `state`, the record of its predecessor:
    /// calls of that process may still take effect.
    #[must_use]
    pub fn inherited(times: CallTimes, state: &State, now: BootTime) -> Self {
        let settled = now.plus(times.settle);
        let held = state.entries().filter(|entry| entry.phase.holds());
        let flight = |entry: &alloc::sync::Arc<Entry>| {
            let resets = matches!(entry.phase, Phase::Resetting | Phase::Releasing { .. });
            let is_unsettled = entry.phase.needs_calls() || entry.unsettled;
            let flight = Flight {
                operation: OperationKey::of(entry),
                may_have_created: true,
                unsettled_until: is_unsettled.then_some(settled),
                reset_unsettled_until: resets.then_some(settled),
                ..Flight::default()
            };
            (entry.id.clone(), flight)
        };
        Self {
            times,
            flights: held.map(flight).collect(),
        }
    }

    /// Returns whether a call for `id` has no answer yet.
    #[must_use]
    pub fn is_running(&self, id: &PartitionId) -> bool {
        self.flights
            .get(id)
            .is_some_and(|flight| flight.running.is_some())
    }

    /// Queries the status of `id` with the next calls, because a listing or a client doubts the record.
    pub fn doubt(&mut self, id: &PartitionId) {
        self.flights.entry(id.clone()).or_default().is_doubted = true;
    }

    /// Records that `call` begins at `now`.
    pub fn begin(&mut self, call: &Call, now: BootTime) {
        let flight = self.flights.entry(call.id.clone()).or_default();
        flight.follow(call.operation);
        flight.running = Some((call.kind.clone(), now));
        if matches!(call.kind, CallKind::Status { .. }) {
            flight.is_doubted = false;
        }
    }

    /// Records the reply to the running call for `id`. Returns the answer that
    /// [`step`](crate::allocator::step) has to handle, if the reply is more than progress.
    pub fn finish(&mut self, id: &PartitionId, reply: Reply, now: BootTime) -> Option<Answer> {
        let times = self.times;
        let flight = self.flights.get_mut(id)?;
        let (kind, begun) = flight.running.take()?;
        let may_be_ours = matches!(reply, Reply::Exists(_)) && flight.may_have_created;
        let is_settled = !may_be_ours && flight.unsettled_until.is_none_or(|until| begun >= until);
        let is_status = matches!(kind, CallKind::Status { .. });
        match &reply {
            Reply::Lost if is_status => flight.retry(now, times),
            Reply::Lost => {
                let until = Some(begun.plus(times.settle));
                flight.unsettled_until = flight.unsettled_until.max(until);
                match kind {
                    CallKind::Reset => flight.reset_unsettled_until = until,
                    CallKind::Create { .. } => flight.may_have_created = true,
                    CallKind::Remove { .. } | CallKind::Status { .. } => {}
                }
                flight.retry(now, times);
                return None;
            }
            Reply::NotSent => {
                flight.retry(now, times);
                return None;
            }
            Reply::Accepted => flight.accept(kind, now),
            Reply::Status { state, .. } if state.is_in_progress() => flight.poll(now, times),
            Reply::Refused { .. } | Reply::NeedsForce { .. } | Reply::Exists(_) => flight.retry(now, times),
            Reply::Status { .. } => {
                // A partition that is not being removed has to be removed again.
                flight.accepted = flight
                    .accepted
                    .take()
                    .filter(|call| !matches!(call, CallKind::Remove { .. }));
                flight.poll(now, times);
            }
            Reply::Absent => {
                flight.accepted = None;
                flight.poll(now, times);
                if !is_settled {
                    flight.not_before = flight.not_before.max(flight.unsettled_until.unwrap_or(now));
                }
            }
        }
        let is_progress = matches!(reply, Reply::Accepted | Reply::Lost)
            || matches!(&reply, Reply::Status { state, .. } if state.is_in_progress());
        (!is_progress).then(|| Answer {
            id: id.clone(),
            operation: flight.operation,
            reply,
            is_settled,
        })
    }

    /// Forgets the calls of entries that need none, as soon as none of them can take effect any more.
    pub fn retain(&mut self, state: &State, now: BootTime) {
        self.flights.retain(|id, flight| {
            let is_unsettled = flight.unsettled_until.is_some_and(|until| until > now);
            let is_needed = |entry: &Entry| flight.is_doubted || entry.phase.needs_calls();
            flight.running.is_some() || is_unsettled || state.get(id).is_some_and(|entry| is_needed(entry))
        });
    }

    /// Returns the same knowledge as if now were `base`, without times that have passed: processes with equal
    /// results make the same calls from now on. `base` is at least [`CallTimes::settle`] after the start of
    /// the clock.
    #[must_use]
    pub fn rebased(&self, now: BootTime, base: BootTime) -> Self {
        let moved = |time: BootTime| {
            let time = base.plus(time.since(BootTime::default()));
            BootTime::default().plus(time.since(now))
        };
        let mut rebased = self.clone();
        for flight in rebased.flights.values_mut() {
            let begun = flight.running.as_ref().map(|(_, begun)| *begun);
            let counts = |until: &BootTime| *until > now || begun.is_some_and(|begun| begun < *until);
            flight.unsettled_until = flight.unsettled_until.filter(counts).map(moved);
            flight.reset_unsettled_until = flight
                .reset_unsettled_until
                .filter(|until| *until > now)
                .map(moved);
            flight.not_before = if flight.not_before > now {
                moved(flight.not_before)
            } else {
                BootTime::default()
            };
            if let Some((_, begun)) = &mut flight.running {
                *begun = moved(*begun);
            }
        }
        rebased
    }

    /// Returns the earliest time at which [`calls`] may return a further call, if no answer arrives.
    #[must_use]
    pub fn wake(&self, state: &State, now: BootTime) -> Option<BootTime> {
        let busy = state.busy().filter(|entry| !entry.unconfirmed);
        let times = busy.filter_map(|entry| {
            let flight = self.flights.get(&entry.id)?;
            let waits_for_reset = matches!(entry.phase, Phase::Resetting) && flight.accepted.is_none();
            let reset = flight.reset_unsettled_until.filter(|_| waits_for_reset);
            flight
                .running
                .is_none()
                .then(|| flight.not_before.max(reset.unwrap_or_default()))
        });
        times.filter(|time| *time > now).min()
    }
}

impl Flight {
    /// Starts anew if the operation is another one.
    fn follow(&mut self, operation: OperationKey) {
        if self.operation != operation {
            self.operation = operation;
            self.accepted = None;
            self.may_have_created = false;
            self.not_before = BootTime::default();
            self.pause = Duration::ZERO;
        }
    }

    fn accept(&mut self, call: CallKind, now: BootTime) {
        // Its status may lag behind, so that it is created again.
        self.may_have_created |= matches!(call, CallKind::Create { .. });
        self.accepted = Some(call);
        // A fast controller is done already.
        self.pause = Duration::ZERO;
        self.not_before = now;
    }

    /// Waits before the next status query: longer each time.
    fn poll(&mut self, now: BootTime, times: CallTimes) {
        let longer = self.pause.saturating_mul(2);
        self.pause = longer.clamp(times.min_pause, times.max_poll_pause.max(times.min_pause));
        self.not_before = now.plus(self.pause);
    }

    /// Waits before a call is repeated: longer each time.
    fn retry(&mut self, now: BootTime, times: CallTimes) {
        let longer = self.pause.saturating_mul(4);
        self.pause = longer.clamp(times.min_pause, times.max_retry_pause.max(times.min_pause));
        self.not_before = now.plus(self.pause);
    }
}

/// Returns the calls to make now. `wall` is the time of the clock that entries record.
#[must_use]
pub fn calls(state: &State, in_flight: &InFlight, now: BootTime, wall: Timestamp) -> Vec<Call> {
    let mut calls = Vec::new();
    for entry in state.busy().filter(|entry| !entry.unconfirmed) {
        let flight = in_flight.flights.get(&entry.id);
        calls.extend(next_call(entry, flight.cloned().unwrap_or_default(), now, wall));
    }
    for (id, flight) in &in_flight.flights {
        let doubted = state
            .get(id)
            .filter(|_| flight.is_doubted && flight.running.is_none());
        let doubted = doubted.filter(|entry| entry.phase.may_be_in_use());
        calls.extend(doubted.and_then(|entry| call(entry, CallKind::Status { locate: true })));
    }
    calls
}

fn next_call(entry: &Entry, mut flight: Flight, now: BootTime, wall: Timestamp) -> Option<Call> {
    if flight.running.is_some() {
        return None;
    }
    flight.follow(OperationKey::of(entry));
    if now < flight.not_before {
        return None;
    }
    let status = CallKind::Status {
        locate: entry.places.is_empty(),
    };
    let is_unsettled = |until: Option<BootTime>| until.is_some_and(|until| now < until);
    let kind = match &entry.phase {
        Phase::Creating | Phase::Resetting if flight.accepted.is_some() => status,
        Phase::Creating => CallKind::Create {
            spec: entry.spec.clone(),
            ipus: entry.named_ipus().to_vec(),
        },
        Phase::Resetting if is_unsettled(flight.reset_unsettled_until) => return None,
        Phase::Resetting => CallKind::Reset,
        Phase::Releasing { .. } if flight.accepted.is_some() => CallKind::Status { locate: false },
        Phase::Releasing {
            refusal: Some(refusal),
        } if wall.is_near(refusal.at, crate::allocator::RemovalRefusal::RETRY_INTERVAL) => {
            return None;
        }
        Phase::Releasing { .. } => CallKind::Remove {
            force: !entry.unforced,
        },
        Phase::Queued | Phase::Active | Phase::Failed { .. } | Phase::Quarantined => return None,
    };
    call(entry, kind)
}

fn call(entry: &Entry, kind: CallKind) -> Option<Call> {
    Some(Call {
        id: entry.id.clone(),
        controller: entry.controller.clone()?,
        operation: OperationKey::of(entry),
        kind,
    })
}
