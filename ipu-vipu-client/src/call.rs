//! The calls of the API as values: encodes requests and decodes replies without a connection. For custom
//! transports, recorded traffic and fuzzing. The connected transports use the same functions.

use core::time::Duration;

use ipu_core::{AgentId, AllocationId, Partition, PartitionId};

use crate::controller::{AgentIpus, CreatePartition, IpuofConfig, PartitionStatus};
use crate::error::VipuError;
use crate::status_code::{self, RpcMethod, Subject};
use crate::wait::Removal;
use crate::{reply, request, wire};

/// One call of [`VipuController`](crate::VipuController), as a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VipuCall {
    /// The version.
    Version,
    /// The partitions, of one allocation or of all.
    ListPartitions(Option<AllocationId>),
    /// Starts to create a partition.
    CreatePartition(CreatePartition),
    /// The status of a partition.
    PartitionStatus(PartitionId),
    /// The IPUoF configuration of a partition: of one GCD, or of all.
    IpuofConfig(PartitionId, Option<u32>),
    /// Starts to reset a partition.
    ResetPartition(PartitionId),
    /// Starts to remove a partition.
    RemovePartition(PartitionId, Removal),
    /// The attributes of the IPUs of these agents, or of all agents if the list is empty.
    IpuAttributes(Vec<AgentId>),
}

/// A controller's reply to a [`VipuCall`]: the variant of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VipuReply {
    /// The version.
    Version(String),
    /// The partitions.
    ListPartitions(Vec<Partition>),
    /// The partition is being created.
    CreatePartition(PartitionId),
    /// The status of the partition.
    PartitionStatus(PartitionStatus),
    /// The IPUoF configuration of the partition.
    IpuofConfig(IpuofConfig),
    /// The partition is being reset.
    ResetPartition,
    /// The partition is being removed.
    RemovePartition,
    /// The attributes.
    IpuAttributes(Vec<AgentIpus>),
}

/// A call in HTTP form, without the address of the controller.
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
    /// Returns method, path and body of the REST call.
    ///
    /// # Errors
    ///
    /// [`VipuError::Refused`] for a value without a form as a URL or in JSON.
    #[cfg(feature = "rest")]
    pub fn encode_http(&self) -> Result<HttpCall, VipuError> {
        use crate::rest::request as rest;
        let request = match self {
            Self::Version => rest::version(),
            Self::ListPartitions(allocation) => rest::list(&request::list(allocation.as_ref())),
            Self::CreatePartition(creation) => rest::create(&request::create(creation))?,
            Self::PartitionStatus(id) => rest::status(&request::status(id))?,
            Self::IpuofConfig(id, gcd) => rest::ipuof_config(&request::ipuof_config(id, *gcd))?,
            Self::ResetPartition(id) => rest::reset(&request::reset(id))?,
            Self::RemovePartition(id, removal) => rest::remove(&request::remove(id, is_forced(*removal)))?,
            Self::IpuAttributes(agents) => rest::attributes(&request::attributes(agents)),
        };
        Ok(HttpCall {
            method: request.method.to_string(),
            path: request.path,
            body: request.body,
        })
    }

    /// Decodes the HTTP reply with `status` and `body`. `endpoint` is the name of the controller in errors.
    ///
    /// # Errors
    ///
    /// The controller's error, or [`VipuError::BadReply`] if the reply is invalid.
    #[cfg(feature = "rest")]
    pub fn decode_http(&self, endpoint: &str, status: u16, body: &[u8]) -> Result<VipuReply, VipuError> {
        let status = http::StatusCode::from_u16(status).map_err(|_| VipuError::BadReply {
            detail: format!("{status} is no HTTP status"),
        })?;
        self.read(Http {
            status,
            body,
            call: self.call(endpoint),
        })
    }

    /// Returns the name of the gRPC method with its service, and the encoded request message.
    #[cfg(feature = "grpc")]
    #[must_use]
    pub fn encode_grpc(&self) -> (&'static str, Vec<u8>) {
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
            Self::CreatePartition(creation) => (
                "virmgrpc.UserService/CreatePartition",
                request::create(creation).encode_to_vec(),
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
            Self::RemovePartition(id, removal) => (
                "virmgrpc.UserService/RemovePartition",
                request::remove(id, is_forced(*removal)).encode_to_vec(),
            ),
            Self::IpuAttributes(agents) => (
                "virmgrpc.UserService/ListIPUAttributes",
                request::attributes(agents).encode_to_vec(),
            ),
        }
    }

    /// Decodes the message of a successful gRPC call.
    ///
    /// # Errors
    ///
    /// [`VipuError::BadReply`] if the message is invalid.
    #[cfg(feature = "grpc")]
    pub fn decode_grpc(&self, message: &[u8]) -> Result<VipuReply, VipuError> {
        self.read(Grpc { message })
    }

    /// Returns the error for the gRPC status `code` with `message`. `endpoint` is the name of the controller
    /// in the error.
    #[must_use]
    pub fn error(&self, endpoint: &str, code: i32, message: &str) -> VipuError {
        status_code::error(code, message, &self.call(endpoint))
    }

    fn read(&self, from: impl ReceivedReply) -> Result<VipuReply, VipuError> {
        Ok(match self {
            Self::Version => VipuReply::Version(reply::version(from.message()?)?),
            Self::ListPartitions(_) => VipuReply::ListPartitions(reply::partitions(from.message()?)?),
            Self::CreatePartition(creation) => {
                VipuReply::CreatePartition(reply::created(from.message()?, &creation.id)?)
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
                Self::CreatePartition(creation) => Subject::New(&creation.id),
                Self::PartitionStatus(id)
                | Self::IpuofConfig(id, _)
                | Self::ResetPartition(id)
                | Self::RemovePartition(id, _) => Subject::Existing(id),
            },
            // No call waits here.
            deadline: Duration::ZERO,
        }
    }
}

const fn is_forced(removal: Removal) -> bool {
    matches!(removal, Removal::Forced)
}

/// A reply in its transport's encoding.
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
    fn a_call_is_encoded_and_its_reply_decoded_without_a_connection() {
        let call = VipuCall::IpuofConfig(id(), Some(1));
        let http_call = call.encode_http().unwrap();
        assert_eq!(
            (http_call.method.as_str(), http_call.path.as_str()),
            ("GET", "/v1/partitions/p1/ipuof-config?gcdId=1")
        );
        let error = call.decode_http("pod1:8090", 404, br#"{"code":5,"message":"no"}"#);
        assert_eq!(error, Err(VipuError::NotFound { id: id() }));
        let reply = VipuCall::Version.decode_http("pod1:8090", 200, br#"{"version":"1.18"}"#);
        assert_eq!(reply, Ok(VipuReply::Version("1.18".into())));
        assert!(VipuCall::Version.decode_http("pod1:8090", 1, b"").is_err());
    }

    #[cfg(feature = "grpc")]
    #[test]
    fn a_call_has_its_grpc_method_and_message() {
        let (method, message) = VipuCall::RemovePartition(id(), Removal::Forced).encode_grpc();
        assert_eq!(method, "virmgrpc.UserService/RemovePartition");
        assert_eq!(message, b"\x0a\x02p1\x10\x01");
        assert_eq!(
            VipuCall::CreatePartition(CreatePartition {
                id: id(),
                spec: ipu_core::PartitionSpec::of_size(ipu_core::IpuCount::ONE),
                ipus: Vec::new(),
            })
            .decode_grpc(b""),
            Ok(VipuReply::CreatePartition(id()))
        );
        assert!(VipuCall::Version.decode_grpc(b"\xff").is_err());
        assert_eq!(
            VipuCall::PartitionStatus(id()).error("pod1:8090", 5, "").label(),
            "not_found"
        );
    }
}
