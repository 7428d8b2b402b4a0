//! Flood: one owner fills the queue with hundreds of requests, keeps its partitions for a while and leaves.

use std::sync::Arc;
use std::time::Duration;

use ipu_core::{JobKey, Owner, PartitionId, PartitionSpec, Request};
use ipu_ledger::Released;

use super::driver::SimLedger;
use super::hosts::other_ledger;
use super::world::SimWorld;

/// Minimum number of requests of a flood, and the range of additional ones.
const REQUESTS: (u32, u32) = (100, 200);

/// Maximum duration of a flood, in milliseconds.
const MAX_DURATION_MS: u32 = 40_000;

/// Floods the queue, unless there was a flood before.
pub(super) fn flood(world: &Arc<SimWorld>) {
    if !world.profile.floods || world.state().flood.is_some() {
        return;
    }
    let namespace = format!("ns{}", world.below(2));
    let job = JobKey::new(&namespace, "flood", "flood").expect("a valid job key");
    let owner = Owner {
        kind: "Sim".into(),
        job,
    };
    let count = REQUESTS.0 + world.below(REQUESTS.1);
    world.state().flood = Some(owner.clone());
    world.count_event("queue flooded");
    world.log("world", format_args!("{owner} requests {count} partitions"));
    let world = Arc::clone(world);
    tokio::spawn(async move { run(&world, &owner, count).await });
}

async fn run(world: &Arc<SimWorld>, owner: &Owner, count: u32) {
    let ledger = other_ledger(world).await;
    for instance in 0..count {
        let size = 1 << world.below(3);
        let spec = PartitionSpec::of_size(size.try_into().expect("a valid partition size"));
        let request = Request::of_instance(owner.clone(), instance, spec);
        world.state().wanted.request(&request.id);
        // A rejected request is not repeated.
        let _ = ledger.ensure(request).await;
    }
    let pause = Duration::from_millis(u64::from(world.below(MAX_DURATION_MS)));
    tokio::time::sleep(pause).await;
    for instance in (0..count).rev() {
        let id = owner.job.partition_id(instance);
        world.state().wanted.release(&id);
        release(world, &ledger, &id, owner).await;
    }
    world.log("world", format_args!("{owner} leaves"));
    world.state().flood_is_over = true;
}

async fn release(world: &SimWorld, ledger: &SimLedger, id: &PartitionId, owner: &Owner) {
    while world.state().broken.is_none() {
        match ledger.release(id, owner, None).await {
            Ok(Released::InProgress { .. }) | Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
            Ok(_) => return,
        }
    }
}
