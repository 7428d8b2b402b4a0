//! Owners and partitions that are almost the same.

use ipu_core::hardware::PartitionSpec;
use ipu_core::{AllocationId, JobKey, Owner};
use proptest::prelude::*;
use proptest::sample::select;

/// Returns two owners that differ in one part only: the kind, the namespace, the name or the uid.
pub fn similar_owners() -> impl Strategy<Value = (Owner, Owner)> {
    let parts = prop::collection::vec(select(vec!["a", "b", "a-0"]), 4);
    (parts, 0_usize..4).prop_map(|(parts, differing)| {
        let owner = |parts: &[&str]| {
            let job = JobKey::new(parts[1], parts[2], parts[3]).expect("valid names");
            Owner::new(parts[0], job)
        };
        let mut other = parts.clone();
        other[differing] = "c";
        (owner(&parts), owner(&other))
    })
}

/// Returns two valid specifications with several GCDs or replicas that differ in one property only: the size,
/// the number of GCDs or of replicas, reconfigurability, or the allocation.
pub fn similar_specs() -> impl Strategy<Value = (PartitionSpec, PartitionSpec)> {
    let orders = (0_u32..4).prop_flat_map(|gcds| (Just(gcds), gcds + 1..5));
    let orders = orders.prop_flat_map(|(gcds, replicas)| (Just(gcds), Just(replicas), replicas..6));
    (orders, any::<bool>(), 0..5).prop_map(|((gcds, replicas, size), reconfigurable, differing)| {
        let allocation = |id: &str| Some(AllocationId::new(id).expect("a valid id"));
        let spec = PartitionSpec {
            size: (1_u32 << size).try_into().expect("a power of two"),
            gcds: 1 << gcds,
            replicas: 1 << replicas,
            reconfigurable,
            allocation: allocation("a"),
        };
        let mut other = spec.clone();
        match differing {
            0 => other.size = (2_u32 << size).try_into().expect("a power of two"),
            1 => other.gcds *= 2,
            2 => other.replicas -= 1,
            3 => other.reconfigurable = !reconfigurable,
            _ => other.allocation = allocation("b"),
        }
        (spec, other)
    })
}
