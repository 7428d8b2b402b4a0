//! What is seen from outside while everything goes on: at no moment is an IPU in two partitions, a client without what it
//! was given, or a namespace beyond its quota.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::{NAMESPACES, QUOTA, Scene};

/// Time after which a controller that came back empty has been noticed, and no grant rests on an earlier list.
const NOTICED: Duration = Duration::from_secs(15);

/// A partition that a client holds by its own word.
#[derive(Clone)]
struct Hold {
    /// Rises with each grant.
    number: u64,
    owner: String,
    controller: String,
    ipus: BTreeSet<String>,
    since: Instant,
}

/// Partitions that clients hold by their own word.
#[derive(Default)]
pub(super) struct Watch {
    held: Mutex<BTreeMap<String, Hold>>,
    grants: AtomicU64,
    times_emptied: AtomicU64,
    /// The time at which a controller last came back empty, by its name.
    emptied: Mutex<BTreeMap<String, Instant>>,
}

impl Watch {
    /// The proxy has granted the partition `id` to `owner`: neither the id nor an IPU is another client's.
    pub(super) fn has(&self, id: &str, owner: &str, document: &Value) {
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

    /// A client is about to release `id`, or to have it reset.
    pub(super) fn drops(&self, id: &str) {
        self.held().remove(id);
    }

    /// The controller `name` has come back empty.
    pub(super) fn emptied(&self, name: String) {
        let mut emptied = self.emptied.lock().unwrap_or_else(PoisonError::into_inner);
        emptied.insert(name, Instant::now());
        self.times_emptied.fetch_add(1, Ordering::SeqCst);
    }

    /// The number of times that a controller has come back empty.
    pub(super) fn times_emptied(&self) -> u64 {
        self.times_emptied.load(Ordering::SeqCst)
    }

    /// Whether the controller may have lost the partition of `hold`.
    fn may_be_lost(&self, hold: &Hold) -> bool {
        let emptied = self.emptied.lock().unwrap_or_else(PoisonError::into_inner);
        let at = emptied.get(&hold.controller);
        at.is_some_and(|at| hold.since < *at + NOTICED)
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<String, Hold>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks again and again until all operations are done. Answers how often.
pub(super) async fn look(scene: Arc<Scene>) -> u64 {
    let mut looks = 0;
    while scene.left.load(Ordering::SeqCst) > 0 {
        let before = scene.watch.held().clone();
        let mut there = BTreeSet::new();
        let mut all_answered = true;
        for simulator in &scene.simulators {
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
                assert!(there.insert(partition.id), "{id} is at two controllers");
            }
        }
        let after = scene.watch.held().clone();
        if all_answered {
            for (id, hold) in before {
                let all_the_time = after.get(&id).is_some_and(|now| now.number == hold.number);
                assert!(
                    !all_the_time || there.contains(&id) || scene.watch.may_be_lost(&hold),
                    "a client holds {id}, and no controller has it"
                );
            }
        }
        if let Some(stats) = scene.proxy.stats().await {
            for number in 0..NAMESPACES {
                let used = stats[format!("ns{number}")]["used"].as_u64().unwrap_or(0);
                assert!(used <= u64::from(QUOTA), "ns{number} holds {used} IPUs: {stats}");
            }
        }
        looks += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    looks
}
