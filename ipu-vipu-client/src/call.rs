//! The calls of the interface as values: what to send and what an answer means, without a connection. For transports of
//! one's own, recorded conversations and fuzzing; the connected transports are built from the same functions.

use core::time::Duration;

use ipu_core::{AgentId, AllocationId, Partition, PartitionId};

use crate::controller::{AgentIpus, CreatePartition, IpuofConfig, PartitionStatus};
use crate::error::VipuError;
use crate::status_code::{self, RpcMethod, Subject};
use crate::wait::Removal;
use crate::{reply, request, wire};

/// One call of [`VipuController`](crate::VipuController), as a value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VipuCall {
    /// The version.
    Version,
    /// The partitions, of one allocation or of all.
    ListPartitions(Option<AllocationId>),
    /// To start to make a partition.
    CreatePartition(CreatePartition),
    /// How a partition is.
    PartitionStatus(PartitionId),
    /// How to reach the devices of a partition: of one GCD, or of all.
    IpuofConfig(PartitionId, Option<u32>),
    /// To start to reset a partition.
    ResetPartition(PartitionId),
    /// To start to remove a partition.
    RemovePartition(PartitionId, Removal),
    /// The attributes of the IPUs of these agents, or of all if none is named.
    IpuAttributes(Vec<AgentId>),
}

/// What a controller answers to a [`Question`]: the variant of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VipuReply {
    /// The version.
    Version(String),
    /// The partitions.
    ListPartitions(Vec<Partition>),
    /// The partition is being made.
    CreatePartition(PartitionId),
    /// How it is.
    PartitionStatus(PartitionStatus),
    /// How to reach its devices.
    IpuofConfig(IpuofConfig),
    /// The partition is being reset.
    ResetPartition,
    /// The partition is being removed.
    RemovePartition,
    /// The attributes.
    IpuAttributes(Vec<AgentIpus>),
}

/// A question as it goes over HTTP, without the address of the controller.
#[cfg(feature = "rest")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpCall {
    /// `GET`, `POST` or `DELETE`.
    pub method: String,
    /// Path and query, percent-encoded.
    pub path: String,
    /// JSON.
    pub body: Option<Vec<u8>>,
}

impl VipuCall {
    /// Method, path and body of the REST call.
    ///
    /// # Errors
    ///
    /// [`VipuError::ControllerRejection`] for what has no form as a URL or in JSON.
    #[cfg(feature = "rest")]
    pub fn to_http(&self) -> Result<HttpCall, VipuError> {
        use crate::rest::request as rest;
        let request = match self {
            Self::Version => rest::version(),
            Self::ListPartitions(allocation) => rest::list(&request::list(allocation.as_ref())),
            Self::CreatePartition(wanted) => rest::create(&request::create(wanted))?,
            Self::PartitionStatus(id) => rest::status(&request::status(id))?,
            Self::IpuofConfig(id, gcd) => rest::ipuof_config(&request::ipuof_config(id, *gcd))?,
            Self::ResetPartition(id) => rest::reset(&request::reset(id))?,
            Self::RemovePartition(id, how) => rest::remove(&request::remove(id, forced(*how)))?,
            Self::IpuAttributes(agents) => rest::attributes(&request::attributes(agents)),
        };
        Ok(HttpCall {
            method: request.method.to_string(),
            path: request.path,
            body: request.body,
        })
    }

    /// What the HTTP answer `status` with `body` means. `endpoint` is what errors call the controller.
    ///
    /// # Errors
    ///
    /// The error that the controller answers, or [`VipuError::BadReply`] if the answer cannot be understood.
    #[cfg(feature = "rest")]
    pub fn read_http(&self, endpoint: &str, status: u16, body: &[u8]) -> Result<VipuReply, VipuError> {
        let status = http::StatusCode::from_u16(status).map_err(|_| VipuError::BadReply {
            detail: format!("{status} is no HTTP status"),
        })?;
        self.read(Http {
            status,
            body,
            call: self.call(endpoint),
        })
    }

    /// The name of the method in gRPC, with its service, and the encoded message that it takes.
    #[cfg(feature = "grpc")]
    #[must_use]
    pub fn to_grpc(&self) -> (&'static str, Vec<u8>) {
        use prost::Message as _;
        match self {
            Self::Version => (
                "virmgrpc.VersionService/GetVersion",
                wire::VersionRequest::default().encode_to_vec(),
            ),
            Self::ListPartitions(allocation) => (
                "virmgrpc.UserService/ListPartitions",
                request::list(allocation.as_ref()).encode_to_vec(),
            ),
            Self::CreatePartition(wanted) => (
                "virmgrpc.UserService/CreatePartition",
                request::create(wanted).encode_to_vec(),
            ),
            Self::PartitionStatus(id) => (
                "virmgrpc.UserService/GetPartitionStatus",
                request::status(id).encode_to_vec(),
            ),
            Self::IpuofConfig(id, gcd) => (
                "virmgrpc.UserService/GetPartitionIpuofConfig",
                request::ipuof_config(id, *gcd).encode_to_vec(),
            ),
            Self::ResetPartition(id) => (
                "virmgrpc.UserService/ResetPartition",
                request::reset(id).encode_to_vec(),
            ),
            Self::RemovePartition(id, how) => (
                "virmgrpc.UserService/RemovePartition",
                request::remove(id, forced(*how)).encode_to_vec(),
            ),
            Self::IpuAttributes(agents) => (
                "virmgrpc.UserService/ListIPUAttributes",
                request::attributes(agents).encode_to_vec(),
            ),
        }
    }

    /// What the encoded message of a successful gRPC call means.
    ///
    /// # Errors
    ///
    /// [`VipuError::BadReply`] if it cannot be understood.
    #[cfg(feature = "grpc")]
    pub fn read_grpc(&self, message: &[u8]) -> Result<VipuReply, VipuError> {
        self.read(Grpc { message })
    }

    /// The error that the gRPC status `code` with `message` means. `endpoint` is what it calls the controller.
    #[must_use]
    pub fn error(&self, endpoint: &str, code: i32, message: &str) -> VipuError {
        status_code::error(code, message, &self.call(endpoint))
    }

    fn read(&self, from: impl ReceivedReply) -> Result<VipuReply, VipuError> {
        Ok(match self {
            Self::Version => VipuReply::Version(reply::version(from.message()?)?),
            Self::ListPartitions(_) => VipuReply::ListPartitions(reply::partitions(from.message()?)?),
            Self::CreatePartition(wanted) => {
                VipuReply::CreatePartition(reply::created(from.message()?, &wanted.id)?)
            }
            Self::PartitionStatus(id) => VipuReply::PartitionStatus(reply::status(from.message()?, id)?),
            Self::IpuofConfig(..) => VipuReply::IpuofConfig(reply::ipuof_config(from.message()?)?),
            Self::ResetPartition(_) => {
                let wire::ResetPartitionReply {} = from.message()?;
                VipuReply::ResetPartition
            }
            Self::RemovePartition(..) => {
                let wire::RemovePartitionReply {} = from.message()?;
                VipuReply::RemovePartition
            }
            Self::IpuAttributes(_) => VipuReply::IpuAttributes(reply::attributes(from.message()?)?),
        })
    }

    fn call<'a>(&'a self, endpoint: &'a str) -> RpcMethod<'a> {
        RpcMethod {
            endpoint,
            subject: match self {
                Self::Version | Self::ListPartitions(_) | Self::IpuAttributes(_) => Subject::None,
                Self::CreatePartition(wanted) => Subject::New(&wanted.id),
                Self::PartitionStatus(id)
                | Self::IpuofConfig(id, _)
                | Self::ResetPartition(id)
                | Self::RemovePartition(id, _) => Subject::Existing(id),
            },
            // Nobody waits here.
            deadline: Duration::ZERO,
        }
    }
}

const fn forced(how: Removal) -> bool {
    matches!(how, Removal::Forced)
}

/// An answer as it was received.
trait ReceivedReply {
    fn message<T: serde::de::DeserializeOwned + prost::Message + Default>(&self) -> Result<T, VipuError>;
}

#[cfg(feature = "rest")]
struct Http<'a> {
    status: http::StatusCode,
    body: &'a [u8],
    call: RpcMethod<'a>,
}

#[cfg(feature = "rest")]
impl ReceivedReply for Http<'_> {
    fn message<T: serde::de::DeserializeOwned + prost::Message + Default>(&self) -> Result<T, VipuError> {
        crate::rest::reply::parse(self.status, self.body, &self.call)
    }
}

#[cfg(feature = "grpc")]
struct Grpc<'a> {
    message: &'a [u8],
}

#[cfg(feature = "grpc")]
impl ReceivedReply for Grpc<'_> {
    fn message<T: serde::de::DeserializeOwned + prost::Message + Default>(&self) -> Result<T, VipuError> {
        T::decode(self.message).map_err(|error| VipuError::BadReply {
            detail: error.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> PartitionId {
        PartitionId::new("p1").unwrap()
    }

    #[cfg(feature = "rest")]
    #[test]
    fn a_question_is_asked_and_answered_without_a_connection() {
        let question = VipuCall::IpuofConfig(id(), Some(1));
        let asked = question.to_http().unwrap();
        assert_eq!(
            (asked.method.as_str(), asked.path.as_str()),
            ("GET", "/v1/partitions/p1/ipuof-config?gcdId=1")
        );
        let error = question.read_http("pod1:8090", 404, br#"{"code":5,"message":"no"}"#);
        assert_eq!(error, Err(VipuError::NotFound { id: id() }));
        let reply = VipuCall::Version.read_http("pod1:8090", 200, br#"{"version":"1.18"}"#);
        assert_eq!(reply, Ok(VipuReply::Version("1.18".into())));
        assert!(VipuCall::Version.read_http("pod1:8090", 1, b"").is_err());
    }

    #[cfg(feature = "grpc")]
    #[test]
    fn a_question_has_its_method_and_message_in_grpc() {
        let (method, message) = VipuCall::RemovePartition(id(), Removal::Forced).to_grpc();
        assert_eq!(method, "virmgrpc.UserService/RemovePartition");
        assert_eq!(message, b"\x0a\x02p1\x10\x01");
        assert_eq!(
            VipuCall::CreatePartition(CreatePartition {
                id: id(),
                spec: ipu_core::PartitionSpec::of_size(ipu_core::IpuCount::ONE),
                ipus: Vec::new(),
            })
            .read_grpc(b""),
            Ok(VipuReply::CreatePartition(id()))
        );
        assert!(VipuCall::Version.read_grpc(b"\xff").is_err());
        assert_eq!(
            VipuCall::PartitionStatus(id()).error("pod1:8090", 5, "").label(),
            "not_found"
        );
    }
}
