//! Partitions on given machines.

use std::sync::Arc;

use ipu_core::{
    Admission, AgentId, ControllerName, Inventory, IpuPlace, MachinesError, PlacementConstraint, Reason,
    ServiceState, Topology, Unbounded,
};

use super::{
    ControllerView, ControllersSnapshot, InventoryCapacity, LedgerHarness, Listing, PartitionSpec,
    controller, request,
};

fn machines(names: &[&str]) -> Vec<AgentId> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

fn view(name: &str, topology: &Topology) -> ControllerView {
    let capacity = InventoryCapacity::new(Inventory::new(topology));
    ControllerView {
        name: name.parse().unwrap(),
        service: ServiceState::Open,
        listing: Ok(Arc::new(Listing::new([], Box::new(capacity)))),
    }
}

fn unavailable(name: &str) -> ControllerView {
    ControllerView {
        name: name.parse().unwrap(),
        service: ServiceState::Open,
        listing: Err(Reason::new("ControllerUnavailable", "it is down")),
    }
}

/// Returns a topology of two machines with these names.
fn two_machines(first: &str, second: &str) -> Topology {
    let text = format!(r#"{{"clusters": [{{"id": "cl", "linkDomains": [["{first}", "{second}"]]}}]}}"#);
    serde_json::from_str(&text).unwrap()
}

fn spec_of(size: u32) -> PartitionSpec {
    PartitionSpec::of_size(size.try_into().unwrap())
}

/// Pins a partition of `size` IPUs at the controllers of `views`.
fn pin(
    views: Vec<ControllerView>,
    names: &[&str],
    controller: Option<&str>,
    size: u32,
) -> Result<PlacementConstraint, MachinesError> {
    let controller: Option<ControllerName> = controller.map(|name| name.parse().unwrap());
    let harness = LedgerHarness::new(&Topology::pod16());
    let (spec, snapshot) = (spec_of(size), ControllersSnapshot::new(views));
    harness
        .state
        .pin_to_machines(&machines(names), controller.as_ref(), &spec, &snapshot)
}

fn pod16() -> Vec<ControllerView> {
    vec![view("c", &Topology::pod16())]
}

#[test]
fn a_partition_on_more_machines_than_it_needs_gets_a_block_of_them_that_is_free() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let on = |harness: &LedgerHarness, name: &str, names: &[&str], size: u32| {
        let mut request = request("ns", name, size);
        let (spec, snapshot) = (&request.spec, harness.snapshot());
        let pin = harness
            .state
            .pin_to_machines(&machines(names), None, spec, &snapshot);
        request.pin = pin.unwrap();
        request
    };
    let first = on(&harness, "first", &["a2", "a3", "a4"], 8);
    assert_eq!(first.pin.controller, Some(controller()));
    assert_eq!(first.pin.ipus.len(), 12);
    let Admission::Drive(entry) = harness.submit(&first) else {
        panic!("it fits");
    };
    let place = |ipu| IpuPlace { link_domain: 0, ipu };
    assert_eq!(entry.places, (8..16).map(place).collect::<Vec<_>>());

    // Half of the machine, then the other half, then neither.
    let one = on(&harness, "one", &["a2"], 2);
    let two = on(&harness, "two", &["a2"], 2);
    let three = on(&harness, "three", &["a2"], 2);
    for (request, ipus) in [(&one, [4, 5]), (&two, [6, 7])] {
        let Admission::Drive(entry) = harness.submit(request) else {
            panic!("it fits");
        };
        assert_eq!(entry.places, ipus.map(place));
    }
    // The other machines have free IPUs.
    let status = harness.expect_queued(&three);
    assert_eq!(status.reason.code, "PinnedIpusBusy");
    let held = |request: &ipu_core::Request| format!("{} holds IPUs of a2", request.id);
    assert_eq!(
        status.reason.message,
        format!(
            "cannot fit 2 IPUs on the 4 requested IPUs: {}, {}",
            held(&one),
            held(&two)
        )
    );
    let blockers: Vec<_> = status.blockers.iter().map(|blocker| &blocker.id).collect();
    assert_eq!(blockers, [&one.id]);
    harness.release(&one);
    let Admission::Drive(entry) = harness.submit(&three) else {
        panic!("its IPUs are free");
    };
    assert_eq!(entry.places, [4, 5].map(place));
}

#[test]
fn a_queued_partition_on_machines_does_not_start_on_others() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let mut holder = request("ns", "holder", 4);
    holder.pin.ipus = (0..4).map(|ipu| IpuPlace { link_domain: 0, ipu }).collect();
    harness.submit(&holder);
    let mut waits = request("ns", "waits", 4);
    let pinned = harness.state.pin_to_machines(
        &machines(&["a1"]),
        Some(&controller()),
        &waits.spec,
        &harness.snapshot(),
    );
    waits.pin = pinned.unwrap();
    let blockers = harness.expect_queued(&waits).blockers;
    assert_eq!(blockers.len(), 1, "{blockers:?}");
    assert_eq!(blockers[0].id, holder.id);
    harness.submit(&request("ns", "other", 4));
    harness.expect_queued(&waits);
    harness.release(&holder);
    assert!(matches!(harness.submit(&waits), Admission::Drive(_)));
}

#[test]
fn machines_that_break_a_rule_are_refused_with_the_rule_and_the_fix() {
    let expected = |names: &[&str], size: u32, rule: &str, fix: &str| {
        let error = pin(pod16(), names, None, size).unwrap_err();
        assert_eq!((&*error.to_string(), &*error.fix()), (rule, fix), "{names:?}");
    };
    expected(
        &[],
        4,
        "must name at least one machine",
        "name the machines, or leave the field out",
    );
    expected(
        &["a1", "a2", "a1"],
        4,
        "must name each machine once, and a1 occurs twice",
        "name it once",
    );
    expected(
        &["a1", "a9"],
        4,
        "must exist, and no controller has a machine a9",
        "use machines that exist: a1, a2, a3, a4",
    );
    let neighbours = "must be neighbours, the first one at a multiple of the size, so that a partition of 8 IPUs \
                      can lie on them";
    expected(
        &["a1"],
        8,
        neighbours,
        "request at most 4 IPUs, or name more machines",
    );
    expected(
        &["a2", "a3"],
        8,
        neighbours,
        "name other machines, or request fewer IPUs",
    );
    let many: Vec<String> = (0..=PlacementConstraint::MAX_MACHINES)
        .map(|number| format!("a{number}"))
        .collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    expected(
        &many,
        4,
        "must name at most 256 machines, and names 257",
        "name fewer machines",
    );
}

#[test]
fn machines_belong_to_one_controller() {
    let both = || {
        vec![
            view("left", &two_machines("m1", "m2")),
            view("right", &two_machines("m2", "m3")),
        ]
    };
    let chosen = pin(both(), &["m3"], None, 4).unwrap();
    assert_eq!(chosen.controller, Some("right".parse().unwrap()));
    assert!(matches!(
        pin(both(), &["m2"], None, 4).unwrap_err(),
        MachinesError::Ambiguous { controllers } if controllers.len() == 2
    ));
    let chosen = pin(both(), &["m2"], Some("right"), 4).unwrap();
    assert_eq!(chosen.controller, Some("right".parse().unwrap()));
    let error = pin(both(), &["m1", "m3"], None, 8).unwrap_err();
    assert_eq!(
        error.to_string(),
        "must belong to one controller, and m1 is of left, which does not have m3"
    );
    assert!(matches!(
        pin(both(), &["m1"], Some("right"), 4).unwrap_err(),
        MachinesError::Unknown { machine, .. } if machine.as_str() == "m1"
    ));
    assert!(matches!(
        pin(both(), &["m1"], Some("elsewhere"), 4).unwrap_err(),
        MachinesError::NoSuchController { .. }
    ));
}

#[test]
fn machines_that_no_available_controller_has_may_belong_to_an_unavailable_one() {
    let views = || vec![view("left", &two_machines("m1", "m2")), unavailable("right")];
    assert!(pin(views(), &["m1"], None, 4).is_ok());
    for (names, controller) in [(["m9"], None), (["m1"], Some("right"))] {
        let error = pin(views(), &names, controller, 4).unwrap_err();
        assert!(
            matches!(&error, MachinesError::Unavailable { controller, .. } if controller.as_str() == "right"),
            "{error}"
        );
    }
}

#[test]
fn a_controller_of_unknown_hardware_has_no_machines_and_no_block_among_ipus() {
    let mut unknown = unavailable("c");
    unknown.listing = Ok(Arc::new(Listing::new([], Box::new(Unbounded::default()))));
    let error = pin(vec![unknown], &["a1"], None, 4).unwrap_err();
    assert_eq!(
        error.fix(),
        "leave the field out: no controller reports its machines"
    );
    let mut capacity = Unbounded::default();
    let places: Vec<_> = (0..8).map(|ipu| IpuPlace { link_domain: 0, ipu }).collect();
    let spec = spec_of(4);
    let id = "p".parse().unwrap();
    let reserve = |capacity: &mut Unbounded, places: &[IpuPlace]| {
        ipu_core::Capacity::reserve(capacity, &id, &spec, places)
    };
    assert_eq!(
        reserve(&mut capacity, &places).unwrap_err().code,
        "HardwareUnknown"
    );
    assert_eq!(reserve(&mut capacity, &places[..4]).unwrap(), places[..4]);
}

#[test]
fn machines_are_numbered_by_cluster_and_belong_to_the_allocation() {
    let text = r#"{"clusters": [{"id": "left", "linkDomains": [["m1", "m2"]]},
                                {"id": "right", "linkDomains": [["m3", "m4"]]}]}"#;
    let topology: Topology = serde_json::from_str(text).unwrap();
    let views = || vec![view("c", &topology)];
    assert_eq!(
        pin(views(), &["m3"], None, 4).unwrap_err(),
        MachinesError::AllocationRequired
    );
    let harness = LedgerHarness::new(&topology);
    let mut spec = spec_of(4);
    let mut pinned = |allocation: usize, machine: &str| {
        spec.allocation = Some(topology.allocations()[allocation].id.clone());
        let snapshot = ControllersSnapshot::new(views());
        harness
            .state
            .pin_to_machines(&machines(&[machine]), None, &spec, &snapshot)
    };
    let second = pinned(1, "m3").unwrap();
    assert_eq!(
        second.ipus[0],
        IpuPlace {
            link_domain: 0,
            ipu: 0
        }
    );
    assert!(matches!(
        pinned(0, "m3").unwrap_err(),
        MachinesError::OutsideAllocation { .. }
    ));
}
