//! The inventory of what a controller lists.

use ipu_core::{
    CordonOwner, Inventory, IpuAddress, IpuCount, IpuPlace, ListedInventory, ListingConflict, Partition,
    PartitionId, PartitionSpec, PartitionState, Topology, check_inventory,
};

fn id(text: &str) -> PartitionId {
    text.parse().unwrap()
}

/// A partition on IPUs of link domain 0 of the only cluster; of untold place if there are none.
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

/// Ours are those whose name starts with `p`.
fn observe(partitions: &[Partition], unhealthy: &[IpuAddress]) -> ListedInventory {
    let observed = Inventory::observe(&Topology::pod16(), unhealthy, partitions, |id| {
        id.as_str().starts_with('p')
    });
    assert_eq!(check_inventory(&observed.inventory), []);
    observed
}

fn at(ipu: u8) -> IpuAddress {
    IpuAddress { link_domain: 0, ipu }
}

#[test]
fn ours_are_held_others_are_cordoned_as_foreign_and_bad_ipus_as_unhealthy() {
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
fn a_partition_of_untold_place_still_counts() {
    let partitions = [
        partition("theirs", 2, []),
        partition("p-large", 8, []),
        partition("p1", 1, [1]),
    ];
    let observed = observe(&partitions, &[]);
    assert_eq!(observed.conflicts, []);
    assert_eq!(observed.inventory.free(), 16 - 2 - 8 - 1);
    // The largest first, so that what is known to exist finds room.
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
fn what_does_not_add_up_is_told_and_still_counts() {
    let partitions = [
        partition("p1", 4, 0..4),
        partition("p2", 2, [3, 4]),
        partition("p3", 2, [90, 91]),
        partition("p4", 2, [6, 6]),
        partition("p5", 16, []),
    ];
    let observed = observe(&partitions, &[]);
    let told: Vec<String> = observed
        .conflicts
        .iter()
        .map(|(id, misfit)| format!("{id}: {misfit}"))
        .collect();
    assert_eq!(
        told,
        [
            "p2: the controller places it where another partition is",
            "p3: the controller names its IPUs wrongly",
            "p4: the controller names its IPUs wrongly",
            "p5: the controller does not say where it is, and no free block of 16 IPUs is left to reserve",
        ]
    );
    assert!(matches!(
        observed.conflicts[3].1,
        ListingConflict::NoRoom { ipus: 16 }
    ));
    assert_eq!(observed.inventory.free(), 16 - 4 - 2 - 2 - 2);
}

#[test]
fn a_partition_that_the_buddy_model_does_not_know_is_held_as_it_is() {
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
