//! Faults that tests and demonstrations switch on. They belong to one serving process, not to the Pod: two processes that
//! share a state file have faults of their own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A call of the controller, by its gRPC name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Method {
    /// The version.
    GetVersion,
    /// The list of partitions.
    ListPartitions,
    /// The attributes of the IPUs.
    #[serde(rename = "ListIPUAttributes")]
    ListIpuAttributes,
    /// Create.
    CreatePartition,
    /// Remove.
    RemovePartition,
    /// Reset.
    ResetPartition,
    /// The IPUoF configuration.
    GetPartitionIpuofConfig,
    /// The status.
    GetPartitionStatus,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind", deny_unknown_fields)]
#[non_exhaustive]
pub enum FaultKind {
    /// The call starts later by this many milliseconds.
    Latency {
        /// How much later.
        millis: u64,
    },
    /// The call is answered UNAVAILABLE, and nothing is done, with this probability.
    Error {
        /// From 0 to 1.
        #[serde(default = "certain")]
        rate: f64,
        /// Where the sequence of chances starts: the same seed gives the same sequence.
        #[serde(default)]
        seed: u64,
    },
    /// The call is done, and its reply never sent: the stream or connection breaks.
    DropReply,
    /// Nothing is done, and no reply ever comes.
    Hang,
    /// Nothing is done, and the stream or connection breaks. Without a method new connections are closed at once too.
    Refuse,
}

const fn certain() -> f64 {
    1.0
}

/// One fault and when it strikes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// What goes wrong.
    #[serde(flatten)]
    pub kind: FaultKind,
    /// With which calls; every one if none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Method>,
    /// How many more times it strikes; without end if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
}

impl Fault {
    /// A fault of every call, without end.
    #[must_use]
    pub const fn new(kind: FaultKind) -> Self {
        Self {
            kind,
            method: None,
            count: None,
        }
    }

    /// The same for one method only.
    #[must_use]
    pub const fn of(mut self, method: Method) -> Self {
        self.method = Some(method);
        self
    }

    /// The same for the next `count` calls only.
    #[must_use]
    pub const fn times(mut self, count: u32) -> Self {
        self.count = Some(count);
        self
    }
}

/// The faults of one simulator; all clones are the same set.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<Vec<ActiveFault>>>);

#[derive(Clone, Debug)]
struct ActiveFault {
    fault: Fault,
    chances: u64,
}

/// What strikes one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InjectedFault {
    pub(crate) latency: Duration,
    pub(crate) outcome: FaultOutcome,
}

/// How the call ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FaultOutcome {
    #[default]
    Normal,
    Error,
    DropReply,
    Hang,
    Refuse,
}

impl Faults {
    /// Replaces all faults.
    pub fn set(&self, faults: Vec<Fault>) {
        *self.armed() = faults.into_iter().map(ActiveFault::new).collect();
    }

    /// Adds one fault.
    pub fn add(&self, fault: Fault) {
        self.armed().push(ActiveFault::new(fault));
    }

    /// Ends all faults.
    pub fn clear(&self) {
        self.armed().clear();
    }

    /// The faults that are still to strike.
    #[must_use]
    pub fn list(&self) -> Vec<Fault> {
        self.armed().iter().map(|armed| armed.fault.clone()).collect()
    }

    /// What strikes the call that comes now. Latencies add up; of the others the first one counts.
    pub(crate) fn strike(&self, method: Method) -> InjectedFault {
        let mut strike = InjectedFault::default();
        let mut armed = self.armed();
        for one in armed.iter_mut() {
            if one.fault.count == Some(0) || one.fault.method.is_some_and(|of| of != method) {
                continue;
            }
            let kind = one.fault.kind;
            let outcome = match kind {
                FaultKind::Latency { millis } => {
                    strike.latency = strike.latency.saturating_add(Duration::from_millis(millis));
                    one.use_up();
                    continue;
                }
                // Every call takes a chance, so that the sequence depends on the number of calls alone.
                FaultKind::Error { rate, .. } if one.chance() >= rate => continue,
                FaultKind::Error { .. } => FaultOutcome::Error,
                FaultKind::DropReply => FaultOutcome::DropReply,
                FaultKind::Hang => FaultOutcome::Hang,
                FaultKind::Refuse => FaultOutcome::Refuse,
            };
            if strike.outcome == FaultOutcome::Normal {
                strike.outcome = outcome;
                one.use_up();
            }
        }
        armed.retain(|one| one.fault.count != Some(0));
        strike
    }

    /// Whether new connections are closed at once.
    pub(crate) fn refuses_connections(&self) -> bool {
        let all = |one: &ActiveFault| one.fault == Fault::new(FaultKind::Refuse);
        self.armed().iter().any(all)
    }

    fn armed(&self) -> MutexGuard<'_, Vec<ActiveFault>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ActiveFault {
    const fn new(fault: Fault) -> Self {
        let chances = match fault.kind {
            FaultKind::Error { seed, .. } => seed,
            FaultKind::Latency { .. } | FaultKind::DropReply | FaultKind::Hang | FaultKind::Refuse => 0,
        };
        Self { fault, chances }
    }

    fn use_up(&mut self) {
        self.fault.count = self.fault.count.map(|count| count.saturating_sub(1));
    }

    /// The next number from 0 to 1 of the sequence (SplitMix64).
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit into an f64")]
    fn chance(&mut self) -> f64 {
        self.chances = self.chances.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.chances;
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
    fn a_fault_strikes_its_method_and_no_more_often_than_asked() {
        let faults = Faults::default();
        faults.add(
            Fault::new(FaultKind::DropReply)
                .of(Method::CreatePartition)
                .times(2),
        );
        assert_eq!(faults.strike(Method::ListPartitions), InjectedFault::default());
        for _ in 0..2 {
            assert_eq!(
                faults.strike(Method::CreatePartition).outcome,
                FaultOutcome::DropReply
            );
        }
        assert_eq!(faults.strike(Method::CreatePartition), InjectedFault::default());
        assert!(faults.list().is_empty());
    }

    #[test]
    fn the_same_seed_gives_the_same_errors() {
        let run = |seed| {
            let faults = Faults::default();
            faults.add(Fault::new(FaultKind::Error { rate: 0.5, seed }));
            (0..64)
                .map(|_| faults.strike(Method::GetVersion).outcome == FaultOutcome::Error)
                .collect::<Vec<_>>()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
        let struck = run(7).into_iter().filter(|struck| *struck).count();
        assert!((16..=48).contains(&struck), "{struck}");
    }

    #[test]
    fn faults_read_as_json() {
        let text = r#"{"kind": "latency", "millis": 5, "method": "ListIPUAttributes", "count": 3}"#;
        let fault: Fault = serde_json::from_str(text).unwrap();
        let latency = FaultKind::Latency { millis: 5 };
        assert_eq!(fault, Fault::new(latency).of(Method::ListIpuAttributes).times(3));
    }
}
