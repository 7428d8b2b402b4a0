//! Fault injection for tests and demonstrations. Faults belong to one serving process, not to the IPU-POD:
//! two processes that share a state file have separate faults.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// A controller call, by its gRPC name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Method {
    /// `GetVersion`.
    GetVersion,
    /// `ListPartitions`.
    ListPartitions,
    /// `ListIPUAttributes`.
    #[serde(rename = "ListIPUAttributes")]
    ListIpuAttributes,
    /// `CreatePartition`.
    CreatePartition,
    /// `RemovePartition`.
    RemovePartition,
    /// `ResetPartition`.
    ResetPartition,
    /// `GetPartitionIpuofConfig`.
    GetPartitionIpuofConfig,
    /// `GetPartitionStatus`.
    GetPartitionStatus,
}

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind", deny_unknown_fields)]
pub enum FaultKind {
    /// Delays the call.
    Latency {
        /// Delay in milliseconds.
        millis: u64,
    },
    /// Fails the call with UNAVAILABLE, with this probability, before it takes effect.
    Error {
        /// Probability from 0 to 1.
        #[serde(default = "default_rate")]
        rate: f64,
        /// Seed of the random sequence: the same seed gives the same sequence.
        #[serde(default)]
        seed: u64,
    },
    /// Executes the call and drops its reply: the stream or connection breaks.
    DropReply,
    /// Executes the call and sends the first half of its reply: the stream or connection breaks then.
    CutReply,
    /// Executes the call twice in sequence, as a repeated delivery does. The caller gets the second reply.
    Twice,
    /// Neither executes the call nor replies.
    Hang,
    /// Breaks the stream or connection without executing the call. Without a method, new connections are
    /// closed immediately as well.
    Refuse,
}

const fn default_rate() -> f64 {
    1.0
}

/// A fault with its scope.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// The kind of a fault.
    #[serde(flatten)]
    pub kind: FaultKind,
    /// Affected call; every call if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Method>,
    /// Remaining activations; unlimited if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
}

impl Fault {
    /// Returns an unlimited fault that affects every call.
    #[must_use]
    pub const fn new(kind: FaultKind) -> Self {
        Self {
            kind,
            method: None,
            count: None,
        }
    }

    /// Restricts the fault to one method.
    #[must_use]
    pub const fn for_method(mut self, method: Method) -> Self {
        self.method = Some(method);
        self
    }

    /// Restricts the fault to the next `count` calls.
    #[must_use]
    pub const fn times(mut self, count: u32) -> Self {
        self.count = Some(count);
        self
    }
}

/// The active faults of one simulator; all clones share them.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<Vec<ActiveFault>>>);

#[derive(Clone, Debug)]
struct ActiveFault {
    fault: Fault,
    random_state: u64,
}

/// The combined effect on one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InjectedFault {
    pub(crate) latency: Duration,
    pub(crate) outcome: FaultOutcome,
}

/// The injected outcome of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FaultOutcome {
    #[default]
    Normal,
    Error,
    DropReply,
    CutReply,
    Twice,
    Hang,
    Refuse,
}

impl Faults {
    /// Replaces all faults.
    pub fn set(&self, faults: Vec<Fault>) {
        *self.0.lock() = faults.into_iter().map(ActiveFault::new).collect();
    }

    /// Adds one fault.
    pub fn add(&self, fault: Fault) {
        self.0.lock().push(ActiveFault::new(fault));
    }

    /// Removes all faults.
    pub fn clear(&self) {
        self.0.lock().clear();
    }

    /// Returns the faults that are still active.
    #[must_use]
    pub fn list(&self) -> Vec<Fault> {
        self.0.lock().iter().map(|active| active.fault.clone()).collect()
    }

    /// Consumes the faults that apply to the next call. Latencies add up; of the other kinds, the first
    /// applies.
    pub(crate) fn inject(&self, method: Method) -> InjectedFault {
        let mut injected = InjectedFault::default();
        let mut active = self.0.lock();
        for candidate in active.iter_mut() {
            if candidate.fault.count == Some(0)
                || candidate.fault.method.is_some_and(|faulty| faulty != method)
            {
                continue;
            }
            let kind = candidate.fault.kind;
            let outcome = match kind {
                FaultKind::Latency { millis } => {
                    injected.latency = injected.latency.saturating_add(Duration::from_millis(millis));
                    candidate.use_up();
                    continue;
                }
                // Every call draws a number, so that the sequence depends only on the number of calls.
                FaultKind::Error { rate, .. } if candidate.next_random() >= rate => continue,
                FaultKind::Error { .. } => FaultOutcome::Error,
                FaultKind::DropReply => FaultOutcome::DropReply,
                FaultKind::CutReply => FaultOutcome::CutReply,
                FaultKind::Twice => FaultOutcome::Twice,
                FaultKind::Hang => FaultOutcome::Hang,
                FaultKind::Refuse => FaultOutcome::Refuse,
            };
            if injected.outcome == FaultOutcome::Normal {
                injected.outcome = outcome;
                candidate.use_up();
            }
        }
        active.retain(|candidate| candidate.fault.count != Some(0));
        injected
    }

    /// Returns whether new connections are closed immediately.
    pub(crate) fn refuses_connections(&self) -> bool {
        let all = |candidate: &ActiveFault| candidate.fault == Fault::new(FaultKind::Refuse);
        self.0.lock().iter().any(all)
    }
}

impl ActiveFault {
    const fn new(fault: Fault) -> Self {
        let random_state = match fault.kind {
            FaultKind::Error { seed, .. } => seed,
            FaultKind::Latency { .. }
            | FaultKind::DropReply
            | FaultKind::CutReply
            | FaultKind::Twice
            | FaultKind::Hang
            | FaultKind::Refuse => 0,
        };
        Self { fault, random_state }
    }

    fn use_up(&mut self) {
        self.fault.count = self.fault.count.map(|count| count.saturating_sub(1));
    }

    /// Returns the next random number from 0 to 1 (SplitMix64).
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit into an f64")]
    fn next_random(&mut self) -> f64 {
        self.random_state = self.random_state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.random_state;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        (bits >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_affects_only_its_method_and_count() {
        let faults = Faults::default();
        faults.add(
            Fault::new(FaultKind::DropReply)
                .for_method(Method::CreatePartition)
                .times(2),
        );
        assert_eq!(faults.inject(Method::ListPartitions), InjectedFault::default());
        for _ in 0..2 {
            assert_eq!(
                faults.inject(Method::CreatePartition).outcome,
                FaultOutcome::DropReply
            );
        }
        assert_eq!(faults.inject(Method::CreatePartition), InjectedFault::default());
        assert!(faults.list().is_empty());
    }

    #[test]
    fn the_same_seed_gives_the_same_errors() {
        let run = |seed| {
            let faults = Faults::default();
            faults.add(Fault::new(FaultKind::Error { rate: 0.5, seed }));
            (0..64)
                .map(|_| faults.inject(Method::GetVersion).outcome == FaultOutcome::Error)
                .collect::<Vec<_>>()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
        let failures = run(7).into_iter().filter(|failures| *failures).count();
        assert!((16..=48).contains(&failures), "{failures}");
    }

    #[test]
    fn faults_parse_from_json() {
        let text = r#"{"kind": "latency", "millis": 5, "method": "ListIPUAttributes", "count": 3}"#;
        let fault: Fault = serde_json::from_str(text).unwrap();
        let latency = FaultKind::Latency { millis: 5 };
        assert_eq!(
            fault,
            Fault::new(latency).for_method(Method::ListIpuAttributes).times(3)
        );
    }
}
