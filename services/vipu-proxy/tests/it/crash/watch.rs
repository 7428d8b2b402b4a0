//! What is seen from outside while everything goes on: at no moment is an IPU in two partitions, a client without what it
//! was given, or a namespace beyond its quota.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{NAMESPACES, QUOTA, Scene};

/// What clients hold by their own word.
#[derive(Default)]
pub(super) struct Watch {
    held: Mutex<BTreeMap<String, u64>>,
}

impl Watch {
    /// A client was told that it has `id`.
    pub(super) fn has(&self, id: &str) {
        *self.held().entry(id.to_owned()).or_default() += 1;
    }

    /// A client is about to let go of `id`, or to have it reset.
    pub(super) fn drops(&self, id: &str) {
        self.held().remove(id);
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
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
            for (id, since) in before {
                let all_the_time = after.get(&id) == Some(&since);
                assert!(
                    !all_the_time || there.contains(&id),
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
