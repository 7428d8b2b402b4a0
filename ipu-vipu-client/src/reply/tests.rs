//! Valid and invalid replies, without a server.

use ipu_core::hardware::PartitionState;

use super::*;

fn id() -> PartitionId {
    PartitionId::new("p1").unwrap()
}

fn ipu(domain: u32, domain_routing: u32, topology_id: u32, routing_id: u32) -> wire::PartitionIpu {
    wire::PartitionIpu {
        ipulink_domain_topology_id: domain,
        ipulink_domain_routing_id: domain_routing,
        topology_id,
        routing_id,
    }
}

fn listed(ipus: Vec<wire::PartitionIpu>) -> wire::Partition {
    wire::Partition {
        id: "p1".into(),
        spec: Some(wire::PartitionSpec {
            ipus,
            ..wire::PartitionSpec::default()
        }),
        ready_state: 2,
        ..wire::Partition::default()
    }
}

#[track_caller]
fn detail<T: std::fmt::Debug>(result: Result<T, VipuError>) -> String {
    match result {
        Err(VipuError::BadReply { detail }) => detail,
        other => panic!("not a bad reply: {other:?}"),
    }
}

#[test]
fn a_listed_partition_has_the_size_of_its_ipus_and_the_documented_defaults() {
    let found = partition(listed(vec![ipu(0, 0, 5, 1), ipu(0, 0, 4, 0)])).unwrap();
    let expected = Partition {
        id: id(),
        spec: PartitionSpec::of_size(IpuCount::try_from(2).unwrap()),
        cluster: None,
        ipus: vec![
            IpuPlace {
                link_domain: 0,
                ipu: 4,
            },
            IpuPlace {
                link_domain: 0,
                ipu: 5,
            },
        ],
        state: PartitionState::Active,
    };
    assert_eq!(found, expected);
}

#[test]
fn every_field_of_a_listed_partition_is_read() {
    let mut partition_ = listed(vec![ipu(7, 0, 3, 0)]);
    partition_.ready_state = 4;
    let spec = partition_.spec.as_mut().unwrap();
    spec.cluster_id = "cl".into();
    spec.allocation_id = "al".into();
    spec.num_gcds = 1;
    spec.num_replicas = 3;
    spec.reconfigurable = true;
    let found = partition(partition_).unwrap();
    assert_eq!(found.cluster, Some(ClusterId::new("cl").unwrap()));
    assert_eq!(found.spec.allocation, Some(AllocationId::new("al").unwrap()));
    assert_eq!((found.spec.gcds, found.spec.replicas), (1, 3));
    assert!(found.spec.reconfigurable);
    assert_eq!(found.state, PartitionState::Failed { errors: Vec::new() });
}

#[test]
fn missing_replicas_default_to_the_number_of_gcds() {
    let mut partition_ = listed(vec![ipu(0, 0, 0, 0), ipu(0, 0, 1, 1)]);
    partition_.spec.as_mut().unwrap().num_gcds = 2;
    assert_eq!(partition(partition_).unwrap().spec.replicas, 2);
}

#[test]
fn routing_order_is_correct_for_ids_per_partition_and_per_link_domain() {
    let global = vec![ipu(9, 1, 0, 2), ipu(4, 0, 1, 1), ipu(9, 1, 1, 3), ipu(4, 0, 0, 0)];
    let local = vec![ipu(9, 1, 0, 0), ipu(4, 0, 1, 1), ipu(9, 1, 1, 1), ipu(4, 0, 0, 0)];
    let places_of = |ipus| -> Vec<_> {
        places(ipus)
            .iter()
            .map(|place| (place.link_domain, place.ipu))
            .collect()
    };
    assert_eq!(places_of(global), [(4, 0), (4, 1), (9, 0), (9, 1)]);
    assert_eq!(places_of(local), [(4, 0), (4, 1), (9, 0), (9, 1)]);
}

#[test]
fn an_odd_number_of_ipus_is_rounded_up_and_keeps_the_listing_valid() {
    for (count, size) in [(0, 1), (3, 4), (6, 8), (12, 16)] {
        let reply = wire::ListPartitionsReply {
            partitions: vec![
                listed(vec![ipu(0, 0, 0, 0)]),
                listed((0..count).map(|n| ipu(0, 0, n, n)).collect()),
            ],
        };
        let found = partitions(reply).unwrap();
        assert_eq!(found[1].spec.size.get(), size);
        assert_eq!(found[1].ipus.len(), count as usize);
    }
}

#[test]
fn an_invalid_foreign_id_is_replaced_by_a_foreign_name() {
    let long = "p-a-0-".to_owned() + &"a".repeat(60);
    for name in ["two words", "täglich", &long] {
        let mut foreign = listed(vec![ipu(0, 0, 0, 0)]);
        foreign.id = name.into();
        let found = partition(foreign).unwrap();
        assert!(found.id.as_str().starts_with("foreign-"), "{}", found.id);
        assert!(!found.id.is_derived());
    }
}

#[test]
fn a_listing_without_a_specification_or_with_an_invalid_name_is_a_bad_reply() {
    let mut bare = listed(Vec::new());
    bare.spec = None;
    assert_eq!(
        detail(partition(bare)),
        "listed partition p1: it has no specification"
    );

    let mut unnamed = listed(vec![ipu(0, 0, 0, 0)]);
    unnamed.id = String::new();
    assert!(detail(partition(unnamed)).contains("partition id"));

    let mut odd = listed(vec![ipu(0, 0, 0, 0)]);
    odd.spec.as_mut().unwrap().allocation_id = "two words".into();
    assert!(detail(partition(odd)).contains("allocation id"));

    let mut unknown = listed(vec![ipu(0, 0, 0, 0)]);
    unknown.ready_state = 17;
    assert!(detail(partition(unknown)).contains("ready state 17"));
}

#[test]
fn an_empty_listing_is_valid() {
    assert_eq!(partitions(wire::ListPartitionsReply::default()), Ok(Vec::new()));
    assert_eq!(
        attributes(wire::ListIpuAttributesReply::default()),
        Ok(Vec::new())
    );
}

#[test]
fn a_reply_about_another_partition_is_a_bad_reply() {
    let reply = |id: &str| wire::CreatePartitionReply {
        partition_id: id.into(),
    };
    assert_eq!(created(reply("p1"), &id()), Ok(id()));
    assert_eq!(created(reply(""), &id()), Ok(id()));
    assert!(detail(created(reply("p2"), &id())).contains("\"p2\""));

    let status_ = wire::PartitionStatus {
        partition_id: "p2".into(),
        ready_state: 2,
        operation_state: 1,
        ..wire::PartitionStatus::default()
    };
    let reply = wire::GetPartitionStatusReply {
        status: Some(status_),
    };
    assert!(detail(status(reply, &id())).contains("\"p2\""));
}

#[test]
fn every_field_of_a_status_is_read() {
    let time = |seconds, nanos| Some(prost_types::Timestamp { seconds, nanos });
    let reply = |last_auto_reset_time| wire::GetPartitionStatusReply {
        status: Some(wire::PartitionStatus {
            partition_id: "p1".into(),
            ready_state: 4,
            operation_state: 5,
            errors: vec!["no link".into()],
            max_auto_reset_retries: 3,
            auto_reset_retry_count: 2,
            last_auto_reset_time,
        }),
    };
    let found = status(reply(time(1_700_000_000, 123_456_789)), &id()).unwrap();
    let expected = PartitionStatus {
        id: id(),
        state: PartitionState::Failed {
            errors: vec!["no link".into()],
        },
        max_auto_resets: 3,
        auto_resets: 2,
        last_auto_reset: Some(Timestamp::from_millis(1_700_000_000_123)),
    };
    assert_eq!(found, expected);

    for never in [None, time(-62_135_596_800, 0), time(i64::MAX, 0), time(0, -1)] {
        assert_eq!(status(reply(never), &id()).unwrap().last_auto_reset, None);
    }
}

#[test]
fn a_reply_without_its_content_is_a_bad_reply() {
    assert!(detail(status(wire::GetPartitionStatusReply::default(), &id())).contains("without a status"));
    assert!(detail(ipuof_config(wire::GetPartitionIpuofConfigReply::default())).contains("without one"));
    assert!(detail(version(wire::VersionReply::default())).contains("empty version"));
}

#[test]
fn a_version_is_returned_verbatim() {
    let reply = wire::VersionReply {
        version: "1.18.0".into(),
    };
    assert_eq!(version(reply), Ok("1.18.0".into()));
}

#[test]
fn devices_are_sorted_by_id_with_every_field() {
    let first = wire::IpuofDevice {
        ip: "10.1.5.1".into(),
        server_port: 1,
        rdma_port: 2,
        device_id: 0,
        ipulink_segment_id: 3,
        routing_id: 4,
        ipu_arch_id: 5,
        ipu_id: 6,
        chip_id: "c".into(),
        gwsw_version: "g".into(),
        ipum_sw_version: "m".into(),
    };
    let second = wire::IpuofDevice {
        device_id: 1,
        ..wire::IpuofDevice::default()
    };
    let facts = BTreeMap::from([("GCD Id".to_owned(), "0".to_owned())]);
    let config = wire::PartitionConfig {
        reconfigurable: true,
        gcd_configs: vec![wire::Gcd {
            devices: vec![second, first],
            attributes: facts.clone(),
        }],
        ipuof_server_version: "1.10.0".into(),
        ..wire::PartitionConfig::default()
    };
    let found = ipuof_config(wire::GetPartitionIpuofConfigReply {
        ipuof_config: Some(config),
    })
    .unwrap();
    assert!(found.reconfigurable);
    assert_eq!(found.server_version, "1.10.0");
    let expected = IpuofDevice {
        ip: "10.1.5.1".into(),
        server_port: 1,
        rdma_port: 2,
        device_id: 0,
        ipulink_segment_id: 3,
        routing_id: 4,
        ipu_arch_id: 5,
        ipu_id: 6,
        chip_id: "c".into(),
        gwsw_version: "g".into(),
        ipum_sw_version: "m".into(),
    };
    assert_eq!(found.gcds[0].devices[0], expected);
    assert_eq!(found.gcds[0].devices[1].device_id, 1);
    assert_eq!(found.gcds[0].attributes, facts);
}

#[test]
fn attributes_are_read_for_each_agent_and_ipu() {
    use wire::list_ipu_attributes_reply::{Attributes, Entry};
    let facts = BTreeMap::from([("health".to_owned(), "ok".to_owned())]);
    let entry = |agent: &str| Entry {
        agent: agent.into(),
        ipu_attributes: BTreeMap::from([(
            3,
            Attributes {
                attributes: facts.clone(),
            },
        )]),
    };
    let reply = |agent| wire::ListIpuAttributesReply {
        entries: vec![entry(agent)],
    };
    let expected = AgentIpus {
        agent: AgentId::new("ag1").unwrap(),
        ipus: BTreeMap::from([(3, facts.clone())]),
    };
    assert_eq!(attributes(reply("ag1")), Ok(vec![expected]));
    assert!(detail(attributes(reply(""))).contains("agent id"));
}
