//! Evidence that two names of the list belong to one controller, kept for as long as both are in use.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use ipu_core::{ControllerName, Entry, PartitionId, World};
use ipu_vipu_client::ControllerPool;

use super::locked;

/// Pairs of names of one controller, by the partitions that both listed. A pair stays until one of its names is neither
/// listed nor draining: a controller that restarts without its partitions takes the evidence away.
pub(super) struct Aliases {
    noticed: Mutex<BTreeSet<(ControllerName, ControllerName)>>,
}

impl Aliases {
    pub(super) const fn new() -> Self {
        Self {
            noticed: Mutex::new(BTreeSet::new()),
        }
    }

    /// Enters into `world` the pairs that the pool has by address, and those that two listings have shown.
    pub(super) fn note<C: ?Sized>(
        &self,
        pool: &ControllerPool<C>,
        world: &mut World,
        known: impl Fn(&PartitionId) -> Option<Arc<Entry>>,
    ) {
        let views = &world.controllers;
        let mut noticed = locked(&self.noticed);
        let is_in_use = |name: &ControllerName| pool.get(name).is_some();
        noticed.retain(|(one, other)| is_in_use(one) && is_in_use(other));
        for (index, one) in views.iter().enumerate() {
            for other in &views[index + 1..] {
                let (Ok(shown), Ok(shown_too)) = (&one.listing, &other.listing) else {
                    continue;
                };
                let pair = (one.name.clone(), other.name.clone());
                if shown.is_of_the_controller_of(shown_too, &known) && noticed.insert(pair) {
                    tracing::warn!(
                        name = %one.name, alias = %other.name,
                        "two names of one controller: only one of them takes new partitions"
                    );
                }
            }
        }
        world.aliases.clone_from(&noticed);
        drop(noticed);
        let by_address = world.controllers.iter().filter_map(|view| {
            let other = pool.member(&view.name)?.same_as?;
            Some((view.name.clone(), other))
        });
        let by_address: Vec<_> = by_address.collect();
        world.aliases.extend(by_address);
    }
}
