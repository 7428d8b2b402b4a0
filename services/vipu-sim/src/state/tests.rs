//! The state machine alone: no clock, no file, no network.

use ipu_core::hardware::Allocation;
use ipu_core::{AgentId, ClusterId};
use ipu_vipu_client::wire::{
    CreatePartitionRequest, IpuLinkRoutingType, PartitionIpu, PartitionOperationState, PartitionReadyState,
    PartitionRequirements, SyncType,
};
use tonic::Code;

use super::*;
use crate::error::SimError;

const MINUTE: Duration = Duration::from_secs(60);

pub(super) fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

pub(super) fn pod(text: &str) -> SimState {
    let mut settings = Settings::all(Duration::from_millis(100));
    settings.auto_reset_ms = 1_000;
    SimState::new(text.parse().unwrap(), settings)
}

pub(super) fn requirements_of(id: &str, size: u32) -> PartitionRequirements {
    PartitionRequirements {
        id: id.to_owned(),
        size,
        ..Default::default()
    }
}

pub(super) fn create(
    state: &mut SimState,
    requirements: PartitionRequirements,
    now: u64,
) -> Result<PartitionId, SimError> {
    let request = CreatePartitionRequest {
        requirements: Some(requirements),
        ..Default::default()
    };
    state.create(&request, at(now))
}

fn ipus(range: std::ops::Range<u32>) -> Vec<PartitionIpu> {
    range
        .map(|topology_id| PartitionIpu {
            topology_id,
            ..Default::default()
        })
        .collect()
}

#[track_caller]
fn assert_refused(state: &mut SimState, requirements: PartitionRequirements, code: Code, text: &str) {
    let before = state.clone();
    let refusal = create(state, requirements, 0).unwrap_err();
    assert_eq!(refusal.code(), code, "{refusal}");
    assert!(refusal.to_string().contains(text), "{refusal}");
    assert_eq!(*state, before);
}

fn states(state: &SimState, id: &str) -> (PartitionReadyState, PartitionOperationState) {
    let status = state.status(id).unwrap();
    (status.ready_state(), status.operation_state())
}

#[test]
fn create_reset_and_remove_are_asynchronous() {
    use PartitionOperationState as Op;
    use PartitionReadyState as Ready;
    let mut state = pod("pod16");
    create(&mut state, requirements_of("p", 4), 0).unwrap();
    assert_eq!(states(&state, "p"), (Ready::PsPending, Op::PosCreating));
    state.advance(at(99));
    assert_eq!(states(&state, "p"), (Ready::PsPending, Op::PosCreating));
    state.advance(at(100));
    assert_eq!(states(&state, "p"), (Ready::PsActive, Op::PosIdle));
    state.reset("p", Relocation::Keep, at(200)).unwrap();
    assert_eq!(states(&state, "p"), (Ready::PsPending, Op::PosResetting));
    state.advance(at(300));
    assert_eq!(states(&state, "p"), (Ready::PsActive, Op::PosIdle));
    state.remove("p", Force::No, at(400)).unwrap();
    assert_eq!(states(&state, "p"), (Ready::PsRemoved, Op::PosRemoving));
    assert_eq!(state.pod().free, 12, "a partition in removal holds its IPUs");
    state.remove("p", Force::No, at(450)).unwrap();
    state.advance(at(500));
    assert_eq!(state.status("p").unwrap_err().code(), Code::NotFound);
    assert_eq!(
        state.remove("p", Force::Yes, at(500)).unwrap_err().code(),
        Code::NotFound
    );
    assert_eq!(state.pod().free, 16);
}

#[test]
fn an_impossible_partition_is_an_invalid_argument() {
    let mut state = pod("pod16");
    let with = |change: fn(&mut PartitionRequirements)| {
        let mut requirements = requirements_of("p", 4);
        change(&mut requirements);
        requirements
    };
    for (requirements, text) in [
        (with(|r| r.size = 3), "requirements.size is 3"),
        (with(|r| r.size = 0), "power of two"),
        (with(|r| r.num_gcds = 3), "must divide"),
        (with(|r| r.num_replicas = 8), "num_replicas"),
        (with(|r| r.id = "x".repeat(51)), "1 to 50"),
        (with(|r| r.id = "a b".to_owned()), "letters, digits"),
        (with(|r| r.id.clear()), "requirements.id"),
        (with(|r| r.allocation_id = "none".to_owned()), "allocations: cl1"),
        (with(|r| r.sync_type = 99), "SyncType"),
        (
            with(|r| r.sync_type = SyncType::StGs2IndependentRails.into()),
            "not supported",
        ),
        (with(|r| r.gw_routing_type = 1), "GatewayRoutingType"),
        (with(|r| r.num_ipulink_segments = 2), "link domains"),
        (with(|r| r.ipus = ipus(0..3)), "as many as"),
        (with(|r| r.ipus = ipus(2..6)), "aligned block"),
        (with(|r| r.ipus = ipus(16..20)), "not all of them exist"),
        (with(|r| r.ipus = vec![PartitionIpu::default(); 4]), "named once"),
    ] {
        assert_refused(&mut state, requirements, Code::InvalidArgument, text);
    }
    let mut reconfigurable = requirements_of("p", 4);
    reconfigurable.reconfigurable = true;
    reconfigurable.sync_type = SyncType::StPodNativeDefault.into();
    assert_refused(
        &mut state,
        reconfigurable,
        Code::InvalidArgument,
        "ST_GS2_DEFAULT",
    );
}

#[test]
fn a_partition_that_does_not_fit_is_refused_with_free_and_largest_counts() {
    let mut state = pod("pod16");
    for (id, first) in [("a", 0), ("b", 5)] {
        let requirements = PartitionRequirements {
            ipus: ipus(first..first + 1),
            ..requirements_of(id, 1)
        };
        create(&mut state, requirements, 0).unwrap();
    }
    assert_refused(
        &mut state,
        requirements_of("p", 16),
        Code::ResourceExhausted,
        "14 free, largest block 8",
    );
    assert_refused(&mut state, requirements_of("a", 1), Code::AlreadyExists, "\"a\"");
    let taken = PartitionRequirements {
        ipus: ipus(4..8),
        ..requirements_of("p", 4)
    };
    assert_refused(&mut state, taken, Code::ResourceExhausted, "held by partition b");
    assert_refused(
        &mut state,
        requirements_of("p", 64),
        Code::ResourceExhausted,
        "not enough free IPUs for 64",
    );
}

#[test]
fn absent_fields_get_defaults_and_given_fields_are_kept() {
    let mut state = pod("pod256");
    create(&mut state, requirements_of("small", 4), 0).unwrap();
    create(&mut state, requirements_of("rack", 64), 0).unwrap();
    let two = PartitionRequirements {
        num_gcds: 2,
        ..requirements_of("two", 128)
    };
    create(&mut state, two, 0).unwrap();
    let ipus_reversed = ipus(60..64).into_iter().zip([3, 2, 1, 0]);
    let ipus_reversed = ipus_reversed
        .map(|(ipu, routing_id)| PartitionIpu { routing_id, ..ipu })
        .collect();
    let explicit = PartitionRequirements {
        ipus: ipus_reversed,
        reconfigurable: true,
        ipulink_routing_type: IpuLinkRoutingType::IrtBtnc.into(),
        ..requirements_of("explicit", 4)
    };
    create(&mut state, explicit, 0).unwrap();
    let spec = |id: &str| state.partitions[&PartitionId::new(id).unwrap()].spec.clone();
    let small = spec("small");
    assert_eq!(
        (small.num_gcds, small.num_replicas, small.num_ipulink_segments),
        (1, 1, 1)
    );
    assert_eq!(small.ipulink_routing_type(), IpuLinkRoutingType::IrtDnc);
    assert_eq!(small.sync_type(), SyncType::StPodNativeDefault);
    assert_eq!((&*small.cluster_id, &*small.allocation_id), ("cl1", "cl1"));
    assert_eq!(
        spec("rack").ipulink_routing_type(),
        IpuLinkRoutingType::IrtRingswnc
    );
    assert_eq!(spec("rack").ipus[63].ipulink_domain_topology_id, 1);
    let two = spec("two");
    assert_eq!((two.num_replicas, two.num_ipulink_segments), (2, 2));
    assert_eq!(
        (two.ipus[64].ipulink_domain_routing_id, two.ipus[64].routing_id),
        (1, 64)
    );
    let explicit = spec("explicit");
    assert_eq!(explicit.sync_type(), SyncType::StGs2Default);
    assert_eq!(explicit.ipulink_routing_type(), IpuLinkRoutingType::IrtBtnc);
    assert_eq!(
        explicit
            .ipus
            .iter()
            .map(|ipu| ipu.topology_id)
            .collect::<Vec<_>>(),
        [63, 62, 61, 60]
    );
}

#[test]
fn a_partition_never_spans_two_allocations() {
    let mut state = pod("1x6");
    state.remove_allocation("cl1", at(0)).unwrap();
    for (id, agents) in [
        ("four", ["a1", "a2", "a3", "a4"].as_slice()),
        ("two", &["a5", "a6"]),
    ] {
        let agents = agents.iter().map(|agent| AgentId::new(*agent).unwrap()).collect();
        let cluster = ClusterId::new("cl1").unwrap();
        state
            .add_allocation(
                Allocation {
                    id: id.parse().unwrap(),
                    cluster,
                    agents,
                },
                at(0),
            )
            .unwrap();
    }
    let of_two = |id, size| PartitionRequirements {
        allocation_id: "two".to_owned(),
        ..requirements_of(id, size)
    };
    assert_refused(
        &mut state,
        of_two("p", 16),
        Code::ResourceExhausted,
        "allocation two: 8 free, largest block 8",
    );
    create(&mut state, of_two("p", 8), 0).unwrap();
    create(&mut state, requirements_of("q", 16), 0).unwrap();
    assert_eq!(state.list("two").unwrap().len(), 1);
    assert_eq!(state.list("").unwrap().len(), 2);
    assert_eq!(state.list("three").unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(
        state.remove_allocation("two", at(0)).unwrap_err().code(),
        Code::FailedPrecondition
    );
    assert_eq!(
        state.remove_agent("a5", at(0)).unwrap_err().code(),
        Code::FailedPrecondition
    );
}

#[test]
fn a_failed_partition_is_reset_a_bounded_number_of_times() {
    let mut state = pod("pod4");
    create(&mut state, requirements_of("p", 4), 0).unwrap();
    state.set_health("a1", 0, Health::Bad, at(1_000)).unwrap();
    assert_eq!(
        states(&state, "p"),
        (PartitionReadyState::PsError, PartitionOperationState::PosFailed)
    );
    state.advance(at(2_050));
    let status = state.status("p").unwrap();
    assert_eq!(
        (status.operation_state(), status.auto_reset_retry_count),
        (PartitionOperationState::PosResetting, 1)
    );
    assert_eq!(status.last_auto_reset_time.unwrap().seconds, 2);
    state.advance(at(0).plus(MINUTE));
    let status = state.status("p").unwrap();
    assert_eq!(
        (status.ready_state(), status.auto_reset_retry_count),
        (PartitionReadyState::PsError, 3)
    );
    assert!(
        status.errors[0].contains("IPU 0 of agent a1"),
        "{:?}",
        status.errors
    );
    let refusal = state.remove("p", Force::No, at(60_001)).unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition);
    state.set_health("a1", 0, Health::Ok, at(60_002)).unwrap();
    assert_eq!(
        state.status("p").unwrap().ready_state(),
        PartitionReadyState::PsError,
        "automatic resets are exhausted"
    );
    state.reset("p", Relocation::Keep, at(60_003)).unwrap();
    state.advance(at(60_103));
    assert_eq!(
        state.status("p").unwrap().ready_state(),
        PartitionReadyState::PsActive
    );
}

#[test]
fn a_partition_without_auto_reset_remains_failed_until_a_forced_removal() {
    let mut state = pod("pod4");
    let request = CreatePartitionRequest {
        requirements: Some(requirements_of("p", 4)),
        disable_auto_reset: true,
        ..Default::default()
    };
    state.create(&request, at(0)).unwrap();
    state.set_health("a1", 3, Health::Bad, at(50)).unwrap();
    assert_eq!(
        state.status("p").unwrap().ready_state(),
        PartitionReadyState::PsPending,
        "health is checked when creation ends"
    );
    state.advance(at(0).plus(MINUTE));
    let status = state.status("p").unwrap();
    assert_eq!(
        (status.ready_state(), status.auto_reset_retry_count),
        (PartitionReadyState::PsError, 0)
    );
    state.remove("p", Force::Yes, at(60_000)).unwrap();
    state.advance(at(60_100));
    assert_eq!(state.pod().free, 3);
}

#[test]
fn a_relocatable_partition_moves_away_from_a_bad_ipu() {
    let mut state = pod("pod16");
    let request = CreatePartitionRequest {
        requirements: Some(requirements_of("p", 4)),
        relocatable: true,
        ..Default::default()
    };
    state.create(&request, at(0)).unwrap();
    create(&mut state, requirements_of("q", 4), 0).unwrap();
    state.set_health("a1", 2, Health::Bad, at(1_000)).unwrap();
    state.advance(at(0).plus(MINUTE));
    let pod = state.pod();
    assert_eq!(pod.partitions[0].state, "ACTIVE");
    assert_eq!(pod.partitions[0].ipus[0], (0, 8), "the next free block");
    assert_eq!(pod.partitions[0].auto_resets, 1);
    assert_eq!(pod.free, 7);
}

#[test]
fn an_operation_in_progress_blocks_reset_and_unforced_remove() {
    let mut state = pod("pod4");
    create(&mut state, requirements_of("p", 1), 0).unwrap();
    let reset = state.reset("p", Relocation::Keep, at(1)).unwrap_err();
    let without_force = state.remove("p", Force::No, at(1)).unwrap_err();
    assert_eq!(
        (reset.code(), without_force.code()),
        (Code::FailedPrecondition, Code::FailedPrecondition)
    );
    state.remove("p", Force::Yes, at(1)).unwrap();
    assert_eq!(
        state.reset("p", Relocation::Keep, at(2)).unwrap_err().code(),
        Code::FailedPrecondition
    );
}

#[test]
fn a_gcd_lists_its_devices() {
    let mut state = pod("pod16");
    let config = |state: &SimState, id: &str, gcd| state.ipuof_config(id, gcd).unwrap().gcd_configs;
    create(
        &mut state,
        PartitionRequirements {
            reconfigurable: true,
            ..requirements_of("r", 4)
        },
        0,
    )
    .unwrap();
    let devices = &config(&state, "r", None)[0].devices;
    assert_eq!(devices.len(), 7, "2N-1: four singles, two pairs, one quad");
    assert_eq!(devices[0].ipu_id, 3, "the order in a machine is reversed");
    let starts = |id: usize| (devices[id].device_id, devices[id].routing_id);
    assert_eq!((starts(4), starts(5), starts(6)), ((4, 0), (5, 2), (6, 0)));
    create(
        &mut state,
        PartitionRequirements {
            num_gcds: 2,
            ..requirements_of("f", 8)
        },
        0,
    )
    .unwrap();
    let gcds = config(&state, "f", None);
    assert_eq!(
        gcds.iter().map(|gcd| gcd.devices.len()).collect::<Vec<_>>(),
        [5, 5]
    );
    assert_eq!(gcds[1].attributes["GCD Id"], "1");
    assert_eq!(gcds[1].devices[0].ip, "10.0.0.4");
    assert_eq!(config(&state, "f", Some(1)), gcds[1..]);
    assert_eq!(
        state.ipuof_config("f", Some(2)).unwrap_err().code(),
        Code::InvalidArgument
    );
}
