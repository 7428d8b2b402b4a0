//! Invariants that hold at any time: no IPU is in two partitions, every granted partition exists, and no
//! namespace exceeds its quota.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::{Harness, NAMESPACES, QUOTA};

/// Time after which the proxy has detected the loss of a controller state, and grants no partition from an
/// earlier list.
const DETECTION_TIMEOUT: Duration = Duration::from_secs(15);

/// Partition that a client holds.
#[derive(Clone)]
struct Hold {
    /// Grant number, which increases with each grant.
    number: u64,
    owner: String,
    controller: String,
    ipus: BTreeSet<String>,
    since: Instant,
}

/// Partitions that clients hold, and the state losses of controllers.
#[derive(Default)]
pub(super) struct InvariantMonitor {
    held: Mutex<BTreeMap<String, Hold>>,
    grants: AtomicU64,
    state_losses: AtomicU64,
    /// Time of the last state loss of a controller, by name.
    lost_state: Mutex<BTreeMap<String, Instant>>,
}

impl InvariantMonitor {
    /// Records the grant of the partition `id` to `owner`; asserts that no other client has the id or an IPU
    /// of it.
    pub(super) fn record_grant(&self, id: &str, owner: &str, document: &Value) {
        let controller = document["controller"]["name"].as_str().unwrap_or_default();
        let ipus = document["ipus"].as_array().into_iter().flatten();
        let hold = Hold {
            number: self.grants.fetch_add(1, Ordering::SeqCst),
            owner: owner.to_owned(),
            controller: controller.to_owned(),
            ipus: ipus.map(Value::to_string).collect(),
            since: Instant::now(),
        };
        assert!(!hold.ipus.is_empty(), "{id} has no IPUs: {document}");
        let mut held = self.held();
        for (other, theirs) in held.iter() {
            let same = other == id || theirs.controller == hold.controller;
            let shared: Vec<&String> = hold.ipus.intersection(&theirs.ipus).collect();
            assert!(
                theirs.owner == owner || !same || (other != id && shared.is_empty()),
                "{id} was granted to {owner}, and {} holds {other} on {shared:?} of {controller}",
                theirs.owner
            );
        }
        held.insert(id.to_owned(), hold);
    }

    /// Records that a client is about to release or reset `id`.
    pub(super) fn record_release(&self, id: &str) {
        self.held().remove(id);
    }

    /// Records that the controller `name` has restarted without its state.
    pub(super) fn record_state_loss(&self, name: String) {
        let mut lost_state = self.lost_state.lock().unwrap_or_else(PoisonError::into_inner);
        lost_state.insert(name, Instant::now());
        self.state_losses.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the number of state losses of controllers.
    pub(super) fn state_losses(&self) -> u64 {
        self.state_losses.load(Ordering::SeqCst)
    }

    /// Returns whether the controller may have lost the partition of `hold`.
    fn may_be_lost(&self, hold: &Hold) -> bool {
        let lost_state = self.lost_state.lock().unwrap_or_else(PoisonError::into_inner);
        let at = lost_state.get(&hold.controller);
        at.is_some_and(|at| hold.since < *at + DETECTION_TIMEOUT)
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<String, Hold>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks the invariants until all operations are done; returns the number of checks.
pub(super) async fn run(harness: Arc<Harness>) -> u64 {
    let mut checks = 0;
    while harness.remaining.load(Ordering::SeqCst) > 0 {
        let before = harness.monitor.held().clone();
        let mut existing = BTreeSet::new();
        let mut all_answered = true;
        for simulator in &harness.simulators {
            let Some(listed) = simulator.partitions().await else {
                all_answered = false;
                continue;
            };
            let mut ipus = BTreeSet::new();
            for partition in listed {
                assert!(!partition.ipus.is_empty(), "{} has no IPUs", partition.id);
                for ipu in partition.ipus {
                    assert!(
                        ipus.insert(ipu.clone()),
                        "{ipu:?} is in two partitions, one is {}",
                        partition.id
                    );
                }
                let id = partition.id.clone();
                assert!(existing.insert(partition.id), "{id} is at two controllers");
            }
        }
        let after = harness.monitor.held().clone();
        if all_answered {
            for (id, hold) in before {
                let is_unchanged = after.get(&id).is_some_and(|now| now.number == hold.number);
                assert!(
                    !is_unchanged || existing.contains(&id) || harness.monitor.may_be_lost(&hold),
                    "a client holds {id}, and no controller has it"
                );
            }
        }
        if let Some(stats) = harness.proxy.stats().await {
            for number in 0..NAMESPACES {
                let used = stats[format!("ns{number}")]["used"].as_u64().unwrap_or(0);
                assert!(used <= u64::from(QUOTA), "ns{number} holds {used} IPUs: {stats}");
            }
        }
        checks += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    checks
}
