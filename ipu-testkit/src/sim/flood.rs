//! One owner that fills the queue with hundreds of requests, keeps what it gets for a while and leaves.

use std::sync::Arc;
use std::time::Duration;

use ipu_core::{JobKey, Owner, PartitionId, PartitionSpec, Request};
use ipu_ledger::Released;

use super::driver::SimLedger;
use super::hosts::other_ledger;
use super::world::SimWorld;

/// The fewest requests of a flood, and how many more there are at most.
const REQUESTS: (u32, u32) = (100, 200);

/// How long a flood lasts at most, in milliseconds.
const LASTS: u32 = 40_000;

/// Floods the queue, unless there was a flood before.
pub(super) fn flood(world: &Arc<SimWorld>) {
    if !world.profile.floods || world.state().flood.is_some() {
        return;
    }
    let namespace = format!("ns{}", world.below(2));
    let job = JobKey::new(&namespace, "flood", "flood").expect("the key of a job");
    let owner = Owner {
        kind: "Sim".into(),
        job,
    };
    let count = REQUESTS.0 + world.below(REQUESTS.1);
    world.state().flood = Some(owner.clone());
    world.count_event("queue flooded");
    world.say("world", format_args!("{owner} asks for {count} partitions"));
    let world = Arc::clone(world);
    tokio::spawn(async move { live(&world, &owner, count).await });
}

async fn live(world: &Arc<SimWorld>, owner: &Owner, count: u32) {
    let ledger = other_ledger(world).await;
    for instance in 0..count {
        let size = 1 << world.below(3);
        let spec = PartitionSpec::of_size(size.try_into().expect("a size of a partition"));
        let request = Request::of_instance(owner.clone(), instance, spec);
        world.state().wanted.asks(&request.id);
        // What is refused is not asked for again.
        let _ = ledger.ensure(request).await;
    }
    let pause = Duration::from_millis(u64::from(world.below(LASTS)));
    tokio::time::sleep(pause).await;
    for instance in (0..count).rev() {
        let id = owner.job.partition_id(instance);
        world.state().wanted.releases(&id);
        release(world, &ledger, &id, owner).await;
    }
    world.say("world", format_args!("{owner} leaves"));
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
