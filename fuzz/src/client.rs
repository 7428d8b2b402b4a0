//! Controller responses over REST and gRPC, as the client parses them.

use ipu_core::{AgentId, IpuCount, Partition, PartitionId, PartitionSpec};
use ipu_vipu_client::{CreatePartition, Removal, VipuCall, VipuError, VipuReply};

use crate::error_messages::check_error;

const ENDPOINT: &str = "pod1:8090";
/// Partition id of all calls.
const PARTITION_ID: &str = "p1";

/// Returns one call of each kind, by its name in the corpus.
pub(crate) fn calls() -> [(&'static str, VipuCall); 8] {
    let id = || PartitionId::new(PARTITION_ID).expect("a valid id");
    let request = CreatePartition {
        id: id(),
        spec: PartitionSpec::of_size(IpuCount::ONE),
        ipus: Vec::new(),
    };
    let agent = AgentId::new("a1").expect("a valid id");
    [
        ("version", VipuCall::Version),
        ("list", VipuCall::ListPartitions(None)),
        ("create", VipuCall::CreatePartition(request)),
        ("status", VipuCall::PartitionStatus(id())),
        ("config", VipuCall::IpuofConfig(id(), Some(0))),
        ("reset", VipuCall::ResetPartition(id())),
        ("remove", VipuCall::RemovePartition(id(), Removal::Regular)),
        ("attributes", VipuCall::IpuAttributes(vec![agent])),
    ]
}

/// Input: `CALL STATUS`, a line feed, and the body. Without such a line, the body is the response of every
/// call with status 200.
///
/// # Panics
///
/// If a response is about another partition, if a partition counts as missing without a controller
/// response, or if an error message is empty or too long.
pub fn rest_reply(bytes: &[u8]) {
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let first_line = crate::error_messages::text(&bytes[..end]);
    let (name, status) = first_line.split_once(' ').unwrap_or(("", ""));
    let status = status.trim().parse().ok();
    let body = if status.is_some() {
        &bytes[end + 1..]
    } else {
        bytes
    };
    let status = status.unwrap_or(200);
    let calls = calls();
    let selected = calls.iter().position(|(call_name, _)| *call_name == name);
    for (index, (_, call)) in calls.iter().enumerate() {
        if selected.is_some_and(|selected| selected != index) {
            continue;
        }
        let reply = call.decode_http(ENDPOINT, status, body);
        if let Err(VipuError::NotFound { .. }) = reply {
            // An intermediary's page must not count as a controller response.
            assert!(!(200..300).contains(&status) && body.contains(&b'{'));
        }
        if reply.is_ok() {
            assert!((200..300).contains(&status), "status {status} counts as success");
        }
        check_reply(call, reply);
    }
}

/// Input: one byte that selects the call, and the message.
///
/// # Panics
///
/// As [`rest_reply`].
pub fn grpc_reply(bytes: &[u8]) {
    let Some((selector, message)) = bytes.split_first() else {
        return;
    };
    let calls = calls();
    let (_, call) = &calls[usize::from(*selector) % calls.len()];
    check_reply(call, call.decode_grpc(message));
    // An error message with these bytes, for each code.
    let text = crate::error_messages::text(message);
    for code in -1..=17 {
        check_reply(call, Err(call.error(ENDPOINT, code, &text)));
    }
}

/// Asserts the invariants of a parsed response.
pub(crate) fn check_reply(call: &VipuCall, reply: Result<VipuReply, VipuError>) {
    let reply = match reply {
        Ok(reply) => reply,
        Err(error) => {
            // The client truncates controller messages.
            check_error(&error, 500);
            assert!(!error.label().is_empty());
            return;
        }
    };
    match (call, reply) {
        (VipuCall::Version, VipuReply::Version(version)) => assert!(!version.is_empty()),
        (VipuCall::ListPartitions(_), VipuReply::ListPartitions(listed)) => {
            listed.iter().for_each(check_partition)
        }
        (VipuCall::CreatePartition(request), VipuReply::CreatePartition(id)) => assert_eq!(id, request.id),
        (VipuCall::PartitionStatus(id), VipuReply::PartitionStatus(status)) => {
            assert_eq!(status.id, *id)
        }
        (VipuCall::IpuofConfig(..), VipuReply::IpuofConfig(config)) => {
            for gcd in &config.gcds {
                assert!(gcd.devices.is_sorted_by_key(|device| device.device_id));
            }
        }
        (VipuCall::ResetPartition(_), VipuReply::ResetPartition)
        | (VipuCall::RemovePartition(..), VipuReply::RemovePartition)
        | (VipuCall::IpuAttributes(_), VipuReply::IpuAttributes(_)) => {}
        (call, reply) => panic!("unexpected reply {reply:?} to {call:?}"),
    }
}

fn check_partition(partition: &Partition) {
    assert!(partition.spec.gcds >= 1 && partition.spec.replicas >= 1);
    assert!(
        partition.ipus.len() <= partition.spec.size.get() as usize,
        "IPUs beyond the partition size would appear free"
    );
    crate::decide::assert_round_trip(partition);
}
