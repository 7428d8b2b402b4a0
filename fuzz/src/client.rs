//! What a controller answers, over REST and over gRPC, as the client understands it.

use ipu_core::{AgentId, IpuCount, Partition, PartitionId, PartitionSpec};
use ipu_vipu_client::{CreatePartition, Removal, VipuCall, VipuError, VipuReply};

use crate::error_messages::said_of;

const ENDPOINT: &str = "pod1:8090";
/// Which partition the questions are about.
const ID: &str = "p1";

/// One question of each kind, by the word that the corpus calls it.
pub(crate) fn questions() -> [(&'static str, VipuCall); 8] {
    let id = || PartitionId::new(ID).expect("it is an id");
    let wanted = CreatePartition {
        id: id(),
        spec: PartitionSpec::of_size(IpuCount::ONE),
        ipus: Vec::new(),
    };
    let agent = AgentId::new("a1").expect("it is an id");
    [
        ("version", VipuCall::Version),
        ("list", VipuCall::ListPartitions(None)),
        ("create", VipuCall::CreatePartition(wanted)),
        ("status", VipuCall::PartitionStatus(id())),
        ("config", VipuCall::IpuofConfig(id(), Some(0))),
        ("reset", VipuCall::ResetPartition(id())),
        ("remove", VipuCall::RemovePartition(id(), Removal::Regular)),
        ("attributes", VipuCall::IpuAttributes(vec![agent])),
    ]
}

/// `QUESTION STATUS`, a line feed, and the body; without such a line the body answers every question with 200.
///
/// # Panics
///
/// If an answer is about another partition, a partition passes for gone without the controller's word, or an error says
/// nothing or too much.
pub fn rest_reply(bytes: &[u8]) {
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let head = crate::error_messages::text(&bytes[..end]);
    let (word, status) = head.split_once(' ').unwrap_or(("", ""));
    let status = status.trim().parse().ok();
    let body = if status.is_some() {
        &bytes[end + 1..]
    } else {
        bytes
    };
    let status = status.unwrap_or(200);
    let questions = questions();
    let one = questions.iter().position(|(known, _)| *known == word);
    for (index, (_, question)) in questions.iter().enumerate() {
        if one.is_some_and(|one| one != index) {
            continue;
        }
        let answer = question.read_http(ENDPOINT, status, body);
        if let Err(VipuError::NotFound { .. }) = answer {
            // A page of something in between does not pass for the controller's word.
            assert!(!(200..300).contains(&status) && body.contains(&b'{'));
        }
        if answer.is_ok() {
            assert!((200..300).contains(&status), "{status} passes for an answer");
        }
        understood(question, answer);
    }
}

/// One byte for the question, and the message.
///
/// # Panics
///
/// As [`rest_reply`].
pub fn grpc_reply(bytes: &[u8]) {
    let Some((which, message)) = bytes.split_first() else {
        return;
    };
    let questions = questions();
    let (_, question) = &questions[usize::from(*which) % questions.len()];
    understood(question, question.read_grpc(message));
    // The same bytes as the text of an error, with every code that there is.
    let text = crate::error_messages::text(message);
    for code in -1..=17 {
        understood(question, Err(question.error(ENDPOINT, code, &text)));
    }
}

/// What holds of everything that the client makes of an answer.
pub(crate) fn understood(question: &VipuCall, answer: Result<VipuReply, VipuError>) {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            // A controller's words are clipped, whatever it sends.
            said_of(&error, 500);
            assert!(!error.label().is_empty());
            return;
        }
    };
    match (question, answer) {
        (VipuCall::Version, VipuReply::Version(version)) => assert!(!version.is_empty()),
        (VipuCall::ListPartitions(_), VipuReply::ListPartitions(listed)) => listed.iter().for_each(is_sound),
        (VipuCall::CreatePartition(wanted), VipuReply::CreatePartition(id)) => assert_eq!(id, wanted.id),
        (VipuCall::PartitionStatus(asked), VipuReply::PartitionStatus(status)) => {
            assert_eq!(status.id, *asked)
        }
        (VipuCall::IpuofConfig(..), VipuReply::IpuofConfig(config)) => {
            for gcd in &config.gcds {
                assert!(gcd.devices.is_sorted_by_key(|device| device.device_id));
            }
        }
        (VipuCall::ResetPartition(_), VipuReply::ResetPartition)
        | (VipuCall::RemovePartition(..), VipuReply::RemovePartition)
        | (VipuCall::IpuAttributes(_), VipuReply::IpuAttributes(_)) => {}
        (question, answer) => panic!("{answer:?} answers {question:?}"),
    }
}

fn is_sound(partition: &Partition) {
    assert!(partition.spec.gcds >= 1 && partition.spec.replicas >= 1);
    assert!(
        partition.ipus.len() <= partition.spec.size.get() as usize,
        "IPUs beyond its size would look free"
    );
    crate::decide::prints_as_itself(partition);
}
