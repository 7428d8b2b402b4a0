//! The capacity of known and of unknown hardware.

use std::sync::Arc;

use ipu_core::allocator::{Capacity, CordonTarget, Hardware, InventoryCapacity, Listing, State, Unbounded};
use ipu_core::hardware::{Inventory, IpuPlace, Topology};
use ipu_core::{CordonOwner, ReasonCode, Timestamp};

use super::controller::{Controller, places};
use super::world::request;

/// Returns the capacity of 16 IPUs, less the first ones, which holders of these sizes have.
fn pod16(sizes: &[u32]) -> InventoryCapacity {
    let mut capacity = InventoryCapacity::new(Inventory::new(&Topology::pod16()));
    for (number, size) in sizes.iter().enumerate() {
        let (holder, spec) = (format!("h{number}").parse().unwrap(), request(0, *size).spec);
        capacity.reserve(&holder, &spec, &[]).unwrap();
    }
    capacity
}

#[test]
fn withheld_ipus_take_no_partition() {
    let (mut capacity, wanted) = (pod16(&[2]), request(0, 1));
    capacity.withhold(&places(0b1110));
    assert_eq!(capacity.free(), 12);
    let placed: Vec<IpuPlace> = capacity.reserve(&wanted.id, &wanted.spec, &[]).unwrap();
    assert_eq!(placed, places(0b1_0000));
}

#[test]
fn unknown_hardware_takes_partitions_of_every_size_until_it_is_cordoned() {
    let (mut capacity, spec) = (Unbounded::default(), request(0, 64).spec);
    for expected in [u32::MAX, 0] {
        assert_eq!(capacity.free(), expected);
        assert_eq!(capacity.largest_block(), expected);
        assert_eq!(capacity.fit_count(&spec), expected);
        let owner = CordonOwner::new("administrator").unwrap();
        capacity.cordon(&owner, &CordonTarget::Controller).unwrap();
    }
}

#[test]
fn the_map_has_runs_of_equal_ipus_and_the_capacity_has_every_size() {
    let mut view = Controller::new(0, 16).view(Timestamp::from_millis(1));
    view.listing = Ok(Arc::new(Listing::new([], Box::new(pod16(&[2, 1])))));
    let (state, hardware) = (State::default(), Hardware::new(vec![view]));
    let map = state.map(&hardware);
    let machines = map[0].link_domains[0].machines.iter();
    let lengths = machines.map(|machine| machine.runs.iter().map(|run| run.ipus));
    let lengths: Vec<Vec<u32>> = lengths.map(Iterator::collect).collect();
    assert_eq!(lengths, [vec![2, 1, 1], vec![4], vec![4], vec![4]]);
    let capacity = state.capacity_by_size(&hardware).remove(0).1.unwrap();
    let fits = capacity.fits.iter().map(|fit| (fit.size.get(), fit.count));
    assert_eq!(Vec::from_iter(fits), [(1, 13), (2, 6), (4, 3), (8, 1), (16, 0)]);
}

#[test]
fn the_reason_of_a_busy_pin_names_up_to_four_holders_each_once_with_its_machines() {
    let on = |number: u32, machines: &str| format!("h{number} holds IPUs of {machines}");
    let four = || [on(0, "a1"), on(1, "a1"), on(2, "a2"), on(3, "a2")].join(", ");
    let wanted = request(0, 16);
    for (sizes, causes) in [
        (&[8, 4][..], format!("{}, {}", on(0, "a1, a2"), on(1, "a3"))),
        (&[2; 4], four()),
        (&[2; 6], format!("{}, 2 more partitions hold some", four())),
    ] {
        let reason = pod16(sizes)
            .reserve(&wanted.id, &wanted.spec, &places(0xffff))
            .unwrap_err();
        assert_eq!(reason.code, ReasonCode::PinnedIpusBusy);
        assert_eq!(reason.message.split_once(": ").unwrap().1, causes);
    }
}

#[test]
fn a_dry_run_names_the_holders_that_have_to_end_beside_its_own_partitions() {
    let mut view = Controller::new(0, 16).view(Timestamp::from_millis(1));
    view.listing = Ok(Arc::new(Listing::new([], Box::new(pod16(&[8])))));
    let (hardware, specs) = (
        Hardware::new(vec![view]),
        [4, 8].map(|size| request(0, size).spec),
    );
    let results = State::default().dry_run(&hardware, &specs, &[]);
    assert_eq!(results[1].blockers, ["h0".parse().unwrap()]);
}
