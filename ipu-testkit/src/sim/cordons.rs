//! Cordons: an administrator cordons machines, and services one once all owners named in the result have left
//! it.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipu_core::{
    ControllerName, Cordon, CordonEffect, CordonId, CordonOwner, CordonTarget, IpuAddress, PartitionId,
};

use super::hosts::other_ledger;
use super::invariants::{BrokenInvariant, broken};
use super::processes::Processes;
use super::store::Entries;
use super::world::SimWorld;
use crate::fake::{HeldPartition, Masks};

/// Machine without new partitions.
pub(super) struct SimCordon {
    id: CordonId,
    controller: ControllerName,
    link_domain: u32,
    mask: u64,
    /// Partitions that the result named and that have not left since.
    named: BTreeSet<PartitionId>,
}

impl SimCordon {
    fn is_on(&self, ipus: &Masks) -> bool {
        ipus.iter()
            .any(|(domain, mask)| *domain == self.link_domain && mask & self.mask != 0)
    }
}

fn owner() -> CordonOwner {
    CordonOwner::new("administrator").expect("a valid owner name")
}

/// Cordons a machine of any controller.
pub(super) async fn cordon(world: &Arc<SimWorld>) {
    let at = world.below(u32::try_from(world.controllers.len()).unwrap_or(1)) as usize;
    let (name, fake) = &world.controllers[at];
    let inventory = fake.snapshot().1;
    let agents: Vec<_> = inventory.topology().agents().map(|(agent, _)| agent).collect();
    let agent = agents[world.below(u32::try_from(agents.len()).unwrap_or(1)) as usize];
    let ipus: [IpuAddress; 4] = inventory
        .topology()
        .agent_ipus(agent)
        .expect("every agent has IPUs");
    let id = CordonId::new(format!("cordon-{at}-{agent}")).expect("a valid cordon id");
    if world.state().cordons.iter().any(|cordon| cordon.id == id) {
        return;
    }
    let target = CordonTarget::Machine(agent.clone());
    let cordon = Cordon::new(id.clone(), name.clone(), target, owner(), "a fan is broken");
    let mut answer = match other_ledger(world).await.cordon(cordon).await {
        Ok(answer) => answer,
        Err(error) => {
            world.log(
                "administrator",
                format_args!("cannot cordon {agent} of {name}: {error}"),
            );
            return;
        }
    };
    if let Some(hook) = &world.options.on_cordoned {
        hook(&mut answer, &fake.ids().into_iter().collect());
    }
    record_cordon(world, name, id, ipus, &answer);
}

fn record_cordon(
    world: &SimWorld,
    name: &ControllerName,
    id: CordonId,
    ipus: [IpuAddress; 4],
    answer: &CordonEffect,
) {
    let named: BTreeSet<PartitionId> = answer.holders.iter().map(|holder| holder.id.clone()).collect();
    let names: Vec<&str> = named.iter().map(PartitionId::as_str).collect();
    world.log(
        "administrator",
        format_args!("{id}: held by {}", names.join(", ")),
    );
    world.count_event("machine cordoned");
    let cordon = SimCordon {
        id,
        controller: name.clone(),
        link_domain: ipus[0].link_domain,
        mask: ipus.iter().fold(0, |mask, at| mask | 1 << at.ipu),
        named,
    };
    world.state().cordons.push(cordon);
    world.check();
}

/// Lifts the oldest cordon; returns whether there was one.
pub(super) async fn uncordon(world: &Arc<SimWorld>) -> bool {
    let Some(id) = world.state().cordons.first().map(|cordon| cordon.id.clone()) else {
        return false;
    };
    // From here on partitions may be created there.
    world.state().cordons.remove(0);
    world.log("administrator", format_args!("lifts {id}"));
    // Retry if the store fails.
    while other_ledger(world).await.uncordon(&id, &owner()).await.is_err() {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    world.count_event("cordon lifted");
    true
}

/// Removes partitions that have left: they must not return to the machine.
pub(super) fn forget_left(cordons: &mut [SimCordon], entries: &Entries) {
    let holds = |id: &PartitionId| entries.get(id).is_some_and(|entry| entry.state.holds());
    for cordon in cordons {
        cordon.named.retain(holds);
    }
}

/// Checks that the result of a cordon names every partition that is on the machine afterwards, and those that
/// workers use.
pub(super) fn invariant_cordons_name_every_holder(
    cordons: &[SimCordon],
    held: &[(&ControllerName, Vec<HeldPartition>)],
    processes: &Processes,
    now: u64,
) -> Result<(), BrokenInvariant> {
    for cordon in cordons {
        let on_controller = held.iter().filter(|(name, _)| **name == cordon.controller);
        let partitions = on_controller
            .flat_map(|(_, held)| held)
            .filter(|held| held.id.is_derived());
        let partitions = partitions.map(|held| (&held.id, &held.masks));
        let used = processes
            .using(now)
            .filter(|used| *used.controller == cordon.controller);
        let used = used.map(|used| (used.id, used.ipus));
        let unnamed = partitions
            .chain(used)
            .find(|(id, ipus)| cordon.is_on(ipus) && !cordon.named.contains(id));
        if let Some((id, _)) = unnamed {
            return broken(
                "cordons_name_every_holder",
                format!(
                    "{id} is on the machine of {}, whose result does not name it",
                    cordon.id
                ),
            );
        }
    }
    Ok(())
}
