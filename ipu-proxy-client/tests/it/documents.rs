//! Documents as JSON: the names are stable, requests are parsed strictly and responses leniently.

use std::sync::Arc;

use ipu_core::allocator::{ControllerView, Hardware, InventoryCapacity, Listing, ServiceState, State};
use ipu_core::hardware::{Block, Inventory, Topology};
use ipu_core::{ControllerName, IpuCount, PartitionId};
use ipu_proxy_client::{
    ChangeDocument, ControllerHealth, ControllerMapDocument, CordonRequest, DeletedDocument, DryRunRequest,
    DryRunResponse, HoldState, LinkDomainDocument, MapDocument, OwnerDocument, PartitionDocument,
    ProblemDocument, PutPartition, ResetPartition, Stats, Usage,
};
use serde_json::{Value, json};

fn partition() -> Value {
    json!({
        "id": "training", "state": "waiting",
        "owner": {"kind": "IPUJob", "namespace": "default", "name": "mnist", "uid": "1"},
        "instance": 0, "attempt": 1, "size": 16, "gcds": 1, "replicas": 1, "reconfigurable": false,
        "controller": null, "ipus": [{"linkDomain": 0, "ipu": 3}], "since": 1000, "heldSince": null, "priority": -1,
        "account": null, "preemptible": false, "maxRuntimeSeconds": 60, "leaseUntil": null,
        "reason": {"code": "NotEnoughFree", "numbers": {"free": 4}, "message": "4 are free"},
        "waiting": {
            "position": 1, "reason": {"code": "NotEnoughFree", "numbers": {"free": 4}, "message": "4 are free"},
            "blockers": [{"id": "other", "owner": null, "size": 16, "until": 2000}], "earliestFit": 2000,
        },
        "errors": [], "env": {"IPUOF_VIPU_API_HOST": "pod1"},
    })
}

#[test]
fn a_response_is_serialized_as_it_was_parsed() {
    let read: PartitionDocument = serde_json::from_value(partition()).unwrap();
    assert_eq!(read.state, HoldState::Waiting);
    assert_eq!(serde_json::to_value(&read).unwrap(), partition());
    let change = json!({"at": 5, "id": "training", "from": "creating", "to": "gone", "partition": null});
    let read: ChangeDocument = serde_json::from_value(change.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), change);
    let planned = json!({"planned": [{
        "size": 4, "fits": false, "controller": null,
        "reasons": [{"controller": "pod:8090", "code": "NotEnoughFree", "numbers": {"free": 0}, "message": "none is free"}],
    }]});
    let read: DryRunResponse = serde_json::from_value(planned.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), planned);
}

#[test]
fn a_map_of_65536_ipus_has_less_than_two_megabytes() {
    let topology: Topology = "1024x16".parse().unwrap();
    let mut inventory = Inventory::new(&topology);
    // Every machine has partitions of its own, with ids of the longest kind that is derived from a job.
    for domain in 0..topology.link_domains() {
        for machine in 0..16 {
            let id = format!("ipu-{domain:05}-{machine:02}-{:024}-0", 7);
            let block = Block::within(domain, 4 * machine, IpuCount::try_from(4).unwrap()).unwrap();
            inventory.occupy(PartitionId::new(id).unwrap(), block).unwrap();
        }
    }
    let name: ControllerName = "pod1.example.org:8090".parse().unwrap();
    let view = ControllerView {
        name: name.clone(),
        service: ServiceState::Open,
        listing: Ok(Arc::new(Listing::new(
            [],
            Box::new(InventoryCapacity::new(inventory)),
        ))),
        alias_of: None,
    };
    let maps = State::default().map(&Hardware::new(vec![view]));
    let mut controller = ControllerMapDocument::new(name, ControllerHealth::Available);
    let domains = maps.into_iter().flat_map(|map| map.link_domains);
    controller.link_domains = domains.map(LinkDomainDocument::from).collect();
    let text = serde_json::to_string(&MapDocument::new(vec![controller], Vec::new())).unwrap();
    assert_eq!(text.matches("\"holder\"").count(), 16_384);
    assert!(text.len() < 2_000_000, "{} bytes", text.len());
}

#[test]
fn unknown_fields_and_states_of_a_newer_proxy_are_accepted() {
    let mut newer = partition();
    newer["colour"] = json!("blue");
    newer["state"] = json!("sleeping");
    newer["waiting"]["since"] = json!(1);
    let read: PartitionDocument = serde_json::from_value(newer).unwrap();
    assert_eq!(read.state, HoldState::Other);
    let deleted = json!({"id": "training", "state": "releasing", "more": 1});
    let read: DeletedDocument = serde_json::from_value(deleted).unwrap();
    assert_eq!((read.state, read.detail), (HoldState::Releasing, None));
}

#[test]
fn a_request_has_the_fields_that_are_set_and_rejects_unknown_ones() {
    let owner = OwnerDocument::new("IPUJob", "default", "mnist", "1");
    let mut request = PutPartition::new(owner, 4);
    let written = serde_json::to_value(&request).unwrap();
    let owner = json!({"kind": "IPUJob", "namespace": "default", "name": "mnist", "uid": "1"});
    assert_eq!(written, json!({"owner": owner, "size": 4}));
    request.lease_seconds = Some(300);
    request.priority = -3;
    let mut written = serde_json::to_value(&request).unwrap();
    assert_eq!(written["leaseSeconds"], 300);
    assert_eq!(
        serde_json::from_value::<PutPartition>(written.clone()).unwrap(),
        request
    );
    written["colour"] = json!("blue");
    assert!(serde_json::from_value::<PutPartition>(written).is_err());
    assert_eq!(
        serde_json::to_value(ResetPartition::default()).unwrap(),
        json!({})
    );
    let mut cordon = CordonRequest::new("fan", "pod:8090", "a fan is broken");
    cordon.machine = Some("a1".into());
    let written = serde_json::to_value(&cordon).unwrap();
    assert_eq!(
        written,
        json!({"id": "fan", "controller": "pod:8090", "machine": "a1", "reason": "a fan is broken"})
    );
    let dry_run = serde_json::to_value(DryRunRequest::new(vec![4, 16])).unwrap();
    assert_eq!(dry_run, json!({"sizes": [4, 16]}));
}

#[test]
fn the_usage_of_the_whole_system_has_the_key_total() {
    let text = r#"{"default":{"used":4,"available":28},"total":{"used":4,"available":28}}"#;
    let stats: Stats = serde_json::from_str(text).unwrap();
    assert_eq!(stats.total(), Some(Usage::new(4, 28)));
    assert_eq!(serde_json::to_string(&stats).unwrap(), text);
}

#[test]
fn a_problem_has_the_reason_that_a_request_does_not_fit() {
    let mut document = serde_json::to_value(ProblemDocument::new(409, "DoesNotFit", "4 are free")).unwrap();
    document["waiting"] = partition()["waiting"].clone();
    let problem: ProblemDocument = serde_json::from_value(document).unwrap();
    assert_eq!(problem.reason().unwrap().code, "NotEnoughFree");
    assert_eq!(problem.title, "Does not fit");
}
