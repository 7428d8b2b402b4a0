//! The inventory from a controller listing.

use ipu_core::hardware::{
    Inventory, IpuAddress, IpuPlace, ListedInventory, ListingConflict, Partition, PartitionSpec,
    PartitionState, Topology,
};
use ipu_core::{CordonOwner, IpuCount, PartitionId};

fn id(text: &str) -> PartitionId {
    text.parse().unwrap()
}

/// Returns a partition on IPUs of link domain 0 of the only cluster; an empty list means an unknown place.
fn partition(name: &str, size: u32, ipus: impl IntoIterator<Item = u32>) -> Partition {
    Partition {
        id: id(name),
        spec: PartitionSpec::of_size(IpuCount::try_from(size).unwrap()),
        cluster: None,
        ipus: ipus
            .into_iter()
            .map(|ipu| IpuPlace { link_domain: 0, ipu })
            .collect(),
        state: PartitionState::Active,
    }
}

/// Observes the partitions; names with prefix `p` are ours.
fn observe(partitions: &[Partition], unhealthy: &[IpuAddress]) -> ListedInventory {
    Inventory::from_listing(&Topology::pod16(), unhealthy, partitions, |id| {
        id.as_str().starts_with('p')
    })
}

fn at(ipu: u8) -> IpuAddress {
    IpuAddress { link_domain: 0, ipu }
}

#[test]
fn own_partitions_are_held_and_foreign_partitions_and_bad_ipus_are_cordoned() {
    let partitions = [partition("p1", 4, 0..4), partition("theirs", 2, [8, 9])];
    let observed = observe(&partitions, &[at(1), at(15), at(40)]);
    let inventory = observed.inventory;
    assert_eq!(observed.conflicts, []);
    assert_eq!(
        inventory.block_of(&id("p1")).unwrap().to_string(),
        "IPUs 0 to 3 of link domain 0"
    );
    assert_eq!(inventory.block_of(&id("theirs")), None);
    let owners: Vec<(String, u8)> = inventory
        .cordons()
        .map(|(owner, at)| (owner.to_string(), at.ipu))
        .collect();
    let expected = [("foreign", 8), ("foreign", 9), ("health", 1), ("health", 15)];
    assert_eq!(owners, expected.map(|(owner, ipu)| (owner.to_owned(), ipu)));
    assert_eq!(inventory.free(), 16 - 4 - 2 - 1);
}

#[test]
fn a_partition_without_a_listed_place_reserves_ipus() {
    let partitions = [
        partition("theirs", 2, []),
        partition("p-large", 8, []),
        partition("p1", 1, [1]),
    ];
    let observed = observe(&partitions, &[]);
    assert_eq!(observed.conflicts, []);
    assert_eq!(observed.inventory.free(), 16 - 2 - 8 - 1);
    // The largest is placed first, so that every listed partition fits.
    assert_eq!(
        observed.inventory.block_of(&id("p-large")).unwrap().first(),
        at(8)
    );
    assert_eq!(
        observed.inventory.cordoned_by(at(2)).collect::<Vec<_>>(),
        [&CordonOwner::foreign()]
    );
}

#[test]
fn conflicting_partitions_are_reported_and_still_reserve_ipus() {
    let partitions = [
        partition("p1", 4, 0..4),
        partition("p2", 2, [3, 4]),
        partition("p3", 2, [90, 91]),
        partition("p4", 2, [6, 6]),
        partition("p5", 16, []),
    ];
    let observed = observe(&partitions, &[]);
    let conflicts: Vec<String> = observed
        .conflicts
        .iter()
        .map(|(id, conflict)| format!("{id}: {conflict}"))
        .collect();
    assert_eq!(
        conflicts,
        [
            "p2: the controller lists it on IPUs of another partition",
            "p3: the controller lists invalid IPUs for it",
            "p4: the controller lists invalid IPUs for it",
            "p5: the controller does not list its IPUs, and no free block of 16 IPUs is left to reserve",
        ]
    );
    assert!(matches!(
        observed.conflicts[3].1,
        ListingConflict::NoFreeBlock { ipus: 16 }
    ));
    assert_eq!(observed.inventory.free(), 16 - 4 - 2 - 2 - 2);
}

#[test]
fn a_partition_outside_the_buddy_model_is_held_on_its_ipus() {
    let observed = observe(&[partition("p1", 4, [1, 2, 5, 6])], &[]);
    let inventory = observed.inventory;
    let block = inventory.block_of(&id("p1")).unwrap();
    assert_eq!(
        (block.size(), block.to_string()),
        (None, "IPUs 1, 2, 5, 6 of link domain 0".to_owned())
    );
    assert_eq!(inventory.free(), 12);
    assert_eq!(inventory.fit_count(IpuCount::try_from(8).unwrap(), None), 1);
}
