//! The capacity of known and of unknown hardware.

use std::sync::Arc;

use ipu_core::allocator::{
    Capacity, Change, ControllerView, Cordon, CordonTarget, Event, Hardware, InventoryCapacity, Listing,
    OnNoCapacity, Phase, State, Unbounded,
};
use ipu_core::hardware::{Inventory, IpuAddress, IpuPlace, PartitionState, Topology};
use ipu_core::placement::PlacementMode;
use ipu_core::{CordonOwner, ReasonCode};

use super::controller::{Controller, mask, places};
use super::tables::{NOW, changed, entry, found, queued_entry, run};
use super::world::request;

/// Returns four machines of which each two neighbours are an allocation: `left`, `middle` and `right`.
pub(super) fn overlapping() -> Topology {
    let text = r#"{"clusters": [{"id": "c", "linkDomains": [["b1", "b2", "b3", "b4"]]}], "allocations": [
        {"id": "left", "cluster": "c", "agents": ["b1", "b2"]},
        {"id": "middle", "cluster": "c", "agents": ["b2", "b3"]},
        {"id": "right", "cluster": "c", "agents": ["b3", "b4"]}]}"#;
    serde_json::from_str(text).unwrap()
}

/// Returns the open controller `number` that has this capacity and lists nothing.
pub(super) fn view(number: usize, capacity: impl Capacity + 'static) -> ControllerView {
    let mut view = Controller::new(number, 1).view(NOW);
    view.listing = Ok(Arc::new(Listing::new([], Box::new(capacity))));
    view
}

fn administrator() -> CordonOwner {
    CordonOwner::new("administrator").unwrap()
}

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
        assert_eq!(capacity.counts(), None);
        let all = CordonTarget::Controller;
        capacity.cordon(&administrator(), &all).unwrap();
    }
}

#[test]
fn the_map_has_runs_of_equal_ipus_and_the_capacity_has_every_size() {
    let recorded = |(id, ipus): (&str, u64)| {
        changed(&entry(Phase::Active), |entry| {
            (entry.id, entry.places) = (id.parse().unwrap(), places(ipus));
        })
    };
    let entries = [("h0", 3), ("busy", 3), ("placed", 0x30), ("unknown", 0)];
    let hardware = Hardware::new(vec![view(0, pod16(&[2, 1]))]);
    let map = State::new(entries.map(recorded), []).map(&hardware);
    let unplaced = ["busy", "unknown"].map(|id| id.parse().unwrap());
    assert_eq!(map[0].unplaced, unplaced.into());
    let machines = map[0].link_domains[0].machines.iter();
    let lengths = machines.map(|machine| machine.runs.iter().map(|run| run.ipus));
    let lengths: Vec<Vec<u32>> = lengths.map(Iterator::collect).collect();
    assert_eq!(lengths, [vec![2, 1, 1], vec![2, 2], vec![4], vec![4]]);
    let capacity = State::default().capacity_by_size(&hardware).remove(0).1.unwrap();
    let fits = capacity.fits.iter().map(|fit| (fit.size.get(), fit.count));
    assert_eq!(Vec::from_iter(fits), [(1, 13), (2, 6), (4, 3), (8, 1), (16, 0)]);
}

#[test]
fn the_reason_of_a_busy_pin_names_up_to_four_holders_each_once_with_its_machines() {
    let on = |number: u32, machines: &str| format!("h{number} holds IPUs of {machines}");
    let four = || [on(0, "a1"), on(1, "a1"), on(2, "a2"), on(3, "a2")].join(", ");
    let wanted = request(0, 16);
    let mut cordoned = pod16(&[]);
    let machine = CordonTarget::Machine("a2".parse().unwrap());
    cordoned.cordon(&administrator(), &machine).unwrap();
    for (mut capacity, causes) in [
        (pod16(&[8, 4]), format!("{}, {}", on(0, "a1, a2"), on(1, "a3"))),
        (pod16(&[2; 4]), four()),
        (pod16(&[2; 6]), format!("{}, 2 more partitions hold some", four())),
        (cordoned, String::from("4 are cordoned")),
    ] {
        let reason = capacity
            .reserve(&wanted.id, &wanted.spec, &places(0xffff))
            .unwrap_err();
        assert_eq!(reason.code, ReasonCode::PinnedIpusBusy);
        assert_eq!(reason.message.split_once(": ").unwrap().1, causes);
    }
}

#[test]
fn a_dry_run_names_the_holders_that_have_to_end_beside_its_own_partitions() {
    let hardware = Hardware::new(vec![view(0, pod16(&[8]))]);
    let specs = [4, 8].map(|size| request(0, size).spec);
    let results = State::default().dry_run(&hardware, &specs, &[]);
    assert_eq!(results[1].blockers, ["h0".parse().unwrap()]);
}

#[test]
fn pinned_ipus_that_form_no_partition_are_refused_for_ever_and_busy_ones_for_now() {
    for (pinned, code) in [
        (0b101, "TooLarge"),
        (0b1_1010, "TooLarge"),
        (0b11, "PinnedIpusBusy"),
        (0b1100, ""),
    ] {
        let (mut capacity, wanted) = (pod16(&[2]), request(1, 2));
        let placed = capacity.reserve(&wanted.id, &wanted.spec, &places(pinned));
        let found = placed
            .err()
            .map_or_else(String::new, |reason| reason.code.as_str().to_owned());
        assert_eq!(found, code, "{pinned:b}");
    }
}

#[test]
fn a_free_ipu_is_counted_once_even_if_it_is_unhealthy_and_cordoned() {
    let mut inventory = Inventory::new(&Topology::pod16());
    let ipus = |numbers: &[u8]| {
        Vec::from_iter(numbers.iter().map(|ipu| IpuAddress {
            link_domain: 0,
            ipu: *ipu,
        }))
    };
    inventory.cordon(&CordonOwner::health(), ipus(&[0])).unwrap();
    inventory.cordon(&administrator(), ipus(&[0, 1, 2])).unwrap();
    let counts = InventoryCapacity::new(inventory).counts().unwrap();
    assert_eq!((counts.unhealthy, counts.cordoned, counts.free), (1, 2, 13));
}

#[test]
fn a_capacity_has_a_partition_from_its_reservation_to_its_release() {
    let (id, spec, ipus) = (request(0, 2).id, request(0, 2).spec, places(0b11));
    let capacities: [Box<dyn Capacity>; 2] = [Box::new(pod16(&[])), Box::new(Unbounded::default())];
    for mut capacity in capacities {
        assert_eq!(capacity.reserve(&id, &spec, &ipus), Ok(ipus.clone()));
        assert!(capacity.has(&id));
        capacity.release(&id);
        assert!(!capacity.has(&id));
    }
}

#[test]
fn numbers_identify_ipus_only_together_with_their_cluster_if_there_are_several() {
    let mut partition = found(2, 0b11, PartitionState::Active);
    partition.cluster = Some("left".parse().unwrap());
    for (topology, is_several) in [("left=1x4", false), ("left=1x4;right=1x1", true)] {
        let mut capacity = InventoryCapacity::new(Inventory::new(&topology.parse().unwrap()));
        let listing = Listing::new([], Box::new(capacity.clone()));
        assert_eq!(listing.cluster_of(&partition).is_some(), is_several);
        let named = capacity.reserve(&partition.id, &partition.spec, &[]).unwrap();
        assert_eq!(named.is_empty(), is_several);
        let chosen = capacity.reserve(&request(1, 2).id, &partition.spec, &places(0xf0));
        assert_eq!(chosen, Ok(places(0b11_0000)));
    }
}

#[test]
fn a_create_call_names_ipus_unless_the_controller_may_choose_among_all_free_ones() {
    let delegated = || pod16(&[]).with_placement(PlacementMode::Delegated);
    let name = Controller::new(0, 16).name;
    let machine = CordonTarget::Machine("a4".parse().unwrap());
    let cordon = Cordon::new("k".parse().unwrap(), name, machine, administrator(), "");
    let ahead = State::new([queued_entry(&request(0, 2))], []);
    for (state, capacity, pinned, named) in [
        (State::default(), delegated(), 0, 0),
        (State::default(), delegated(), 0b1100, 0b1100),
        (State::default(), pod16(&[]), 0, 0b11),
        (State::new([], [cordon]), delegated(), 0, 0b11),
        (State::new([entry(Phase::Active)], []), delegated(), 0, 0b1100),
        (ahead, delegated(), 0, 0b1100),
    ] {
        let mut wanted = request(1, 2).when_full(OnNoCapacity::Reject);
        wanted.pin.ipus = places(pinned);
        let hardware = Hardware::new(vec![view(0, capacity)]);
        let step = run(&state, &hardware, &Event::Ensure(wanted));
        assert!(matches!(&step.changes[..], [Change::Put(entry)] if mask(&entry.places) == named));
    }
}

#[test]
fn unknown_hardware_takes_nothing_while_it_does_not_list_a_partition_that_may_be_in_use() {
    let located = entry(Phase::Active);
    let unlocated = changed(&located, |entry| {
        (entry.id, entry.places) = ("chosen".parse().unwrap(), Vec::new());
    });
    let lost = [located.id.clone(), unlocated.id.clone()];
    let (state, spec) = (State::new([located, unlocated], []), request(1, 2).spec);
    let hardware = Hardware::new(vec![view(0, Unbounded::default())]);
    for ended in 0..=2 {
        let results = state.dry_run(&hardware, std::slice::from_ref(&spec), &lost[..ended]);
        assert_eq!(results[0].controller.is_some(), ended == 2, "{ended} have ended");
    }
}

#[test]
fn machines_that_cannot_have_the_partition_are_refused_with_a_fix() {
    let capacity = InventoryCapacity::new(Inventory::new(&overlapping()));
    let hardware = Hardware::new(vec![view(0, capacity)]);
    for (machines, size, allocation, expected) in [
        ("b1 b2 b1", 8, None, "b1 occurs twice; name it once"),
        ("b1 b9", 8, None, "b9; use machines that exist: b1, b2"),
        ("b1", 4, Some("right"), "name machines of that allocation"),
        ("b1", 8, None, "; request at most 4 IPUs, or name more"),
        ("b2 b3", 8, None, "; name other machines, or request"),
        ("b2 b1", 8, None, "c0 11111111"),
    ] {
        let machines = machines.split_whitespace().map(|name| name.parse().unwrap());
        let mut spec = request(0, size).spec;
        spec.allocation = allocation.map(|id: &str| id.parse().unwrap());
        let found = match hardware.pin_to_machines(&Vec::from_iter(machines), None, &spec) {
            Ok(pin) => format!("{} {:b}", pin.controller.unwrap(), mask(&pin.ipus)),
            Err(error) => format!("{error}; {}", error.fix()),
        };
        assert!(found.contains(expected), "{found}");
    }
}

#[test]
fn machines_are_those_of_the_named_controller() {
    let capacity = InventoryCapacity::new(Inventory::new(&overlapping()));
    let hardware = Hardware::new(vec![view(0, Unbounded::default()), view(1, capacity)]);
    let (machines, spec) = (["b1".parse().unwrap()], request(0, 4).spec);
    let pin = |name: &str| hardware.pin_to_machines(&machines, Some(&name.parse().unwrap()), &spec);
    let controller = pin("c1").unwrap().controller.unwrap();
    assert_eq!(controller.as_str(), "c1");
    for other in ["c0", "c9"] {
        assert!(pin(other).is_err(), "{other}");
    }
}
