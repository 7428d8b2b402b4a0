//! The gRPC transport of V-IPU controllers. It is thin: pure modules encode requests and decode replies and
//! errors.

use core::fmt;
use core::future::Future;
use core::time::Duration;

use async_trait::async_trait;
use hyper_util::client::legacy::connect::HttpConnector;
use ipu_core::hardware::Partition;
use ipu_core::{AgentId, AllocationId, ErrorChain, PartitionId};
use tonic::body::Body;
use tonic::codegen::{Service, StdError};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Response, Status};

use crate::controller::{AgentIpus, CreatePartition, IpuofConfig, PartitionStatus, VipuController};
use crate::endpoint::ControllerEndpoint;
use crate::error::VipuError;
use crate::limits::MAX_REPLY_BYTES;
use crate::options::{
    ACCESS_KEY_HEADER, ConnectError, ConnectOptions, Credentials, TlsOptions, USER_ID_HEADER,
};
use crate::send_before::send_deadline;
use crate::send_gate::SendGate;
use crate::status_code::{self, RpcMethod, Subject};
use crate::transport::Transport;
use crate::wire::user_service_client::UserServiceClient;
use crate::wire::version_service_client::VersionServiceClient;
use crate::{reply, request, tls};

/// Silence of a connection with open calls before an HTTP/2 keepalive ping: twice within the default call
/// deadline. No pings without open calls, because gRPC servers may then close the connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);

/// Time limit for the reply to a ping: ten round trips of a slow network.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// A V-IPU controller over gRPC. Cheap to clone. Clones share one HTTP/2 connection, which is established at
/// the first call and again after it broke.
#[derive(Clone)]
pub struct GrpcController {
    users: UserServiceClient<Transport>,
    versions: VersionServiceClient<Transport>,
    endpoint: String,
    deadline: Duration,
    credentials: Option<Metadata>,
}

#[derive(Clone)]
struct Metadata {
    user_id: MetadataValue<Ascii>,
    access_key: MetadataValue<Ascii>,
}

impl fmt::Debug for GrpcController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcController")
            .field("endpoint", &self.endpoint)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl GrpcController {
    /// Prepares a client of the controller at `endpoint`. Nothing is sent before the first call, which shows
    /// whether the controller is reachable.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if the options are invalid, or if there is no tokio runtime to drive the connection.
    pub fn connect(endpoint: &ControllerEndpoint, options: &ConnectOptions) -> Result<Self, ConnectError> {
        let name = endpoint.name().to_string();
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(ConnectError::NoRuntime { endpoint: name });
        }
        let channel = channel(&name, options)?.connect_with_connector_lazy(connector(options));
        Self::with_transport(Transport::Connection(channel), name, options)
    }

    /// Creates a client of `service`, a controller in this process, under the name `endpoint`. Only the
    /// deadline and the credentials of the options apply. Calls need a tokio runtime with time enabled.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Credential`].
    pub fn in_process<S>(
        endpoint: &ControllerEndpoint,
        service: S,
        options: &ConnectOptions,
    ) -> Result<Self, ConnectError>
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>, Error: Into<StdError>, Future: Send>
            + Clone
            + Send
            + Sync
            + 'static,
    {
        Self::with_transport(Transport::process(service), endpoint.name().to_string(), options)
    }

    fn with_transport(
        transport: Transport,
        endpoint: String,
        options: &ConnectOptions,
    ) -> Result<Self, ConnectError> {
        Ok(Self {
            users: UserServiceClient::new(transport.clone()).max_decoding_message_size(MAX_REPLY_BYTES),
            versions: VersionServiceClient::new(transport),
            endpoint,
            deadline: options.deadline,
            credentials: options.credentials.as_ref().map(metadata).transpose()?,
        })
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(credentials) = &self.credentials {
            let metadata = request.metadata_mut();
            metadata.insert(USER_ID_HEADER, credentials.user_id.clone());
            metadata.insert(ACCESS_KEY_HEADER, credentials.access_key.clone());
        }
        request
    }

    /// Waits for `call` up to the deadline. Dropping it then cancels the call at the controller.
    async fn with_deadline<T>(
        &self,
        subject: Subject<'_>,
        call: impl Future<Output = Result<Response<T>, Status>> + Send,
    ) -> Result<T, VipuError> {
        let method = RpcMethod {
            endpoint: &self.endpoint,
            subject,
            deadline: self.deadline,
        };
        let call = async {
            match call.await {
                Ok(response) => Ok(response.into_inner()),
                Err(status) => Err(error(&status, &method)),
            }
        };
        let gate = SendGate::new(send_deadline());
        tokio::time::timeout(self.deadline, gate.run(call))
            .await
            .unwrap_or_else(|_| {
                Err(VipuError::Timeout {
                    endpoint: self.endpoint.clone(),
                    waited: self.deadline,
                })
            })
    }
}

fn connector(options: &ConnectOptions) -> HttpConnector {
    let mut connector = HttpConnector::new();
    // The channel adds TLS to `https` addresses.
    connector.enforce_http(false);
    connector.set_connect_timeout(Some(options.connect_deadline));
    // Without it a small request waits for the acknowledgement of the previous one: 40 ms at the tail.
    connector.set_nodelay(true);
    // Otherwise the system delivers a request minutes later, when an interrupted network works again.
    connector.set_tcp_user_timeout(Some(options.deadline));
    connector
}

fn channel(name: &str, options: &ConnectOptions) -> Result<Endpoint, ConnectError> {
    let refuse = |error: tonic::transport::Error| ConnectError::Transport {
        endpoint: name.to_owned(),
        detail: ErrorChain(&error).to_string(),
    };
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let channel = Endpoint::from_shared(format!("{scheme}://{name}"))
        .and_then(|channel| channel.user_agent(concat!("ipu-vipu-client/", env!("CARGO_PKG_VERSION"))))
        .map_err(refuse)?
        .connect_timeout(options.connect_deadline)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    match &options.tls {
        Some(tls) => channel.tls_config(tls_config(tls)?).map_err(refuse),
        None => Ok(channel),
    }
}

fn tls_config(options: &TlsOptions) -> Result<ClientTlsConfig, ConnectError> {
    // The transport would accept a text without certificates as an empty set, and report a key that does not
    // match only at the first call.
    tls::client_config(options)?;
    let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&options.ca_pem));
    if let Some(identity) = &options.identity {
        config = config.identity(Identity::from_pem(&identity.cert_pem, &identity.key_pem));
    }
    if let Some(name) = &options.server_name {
        config = config.domain_name(name);
    }
    Ok(config)
}

fn metadata(credentials: &Credentials) -> Result<Metadata, ConnectError> {
    let value = |what, text: &str| {
        let mut value = MetadataValue::try_from(text).map_err(|_| ConnectError::Credential { what })?;
        value.set_sensitive(true);
        Ok(value)
    };
    Ok(Metadata {
        user_id: value("user id", &credentials.user_id)?,
        access_key: value("access key", &credentials.access_key)?,
    })
}

fn error(status: &Status, call: &RpcMethod<'_>) -> VipuError {
    use std::error::Error as _;

    let Some(source) = status.source() else {
        return status_code::error(i32::from(status.code()), status.message(), call);
    };
    // A status with a source was created by this client: the controller did not reply.
    if tls::is_refused_certificate(source) {
        return VipuError::Denied {
            detail: ErrorChain(source).to_string(),
        };
    }
    status_code::unreachable(call, ErrorChain(source).to_string())
}

#[async_trait]
impl VipuController for GrpcController {
    async fn version(&self) -> Result<String, VipuError> {
        let mut client = self.versions.clone();
        let call = client.get_version(self.request(crate::wire::VersionRequest {}));
        self.with_deadline(Subject::None, call)
            .await
            .and_then(reply::version)
    }

    async fn list_partitions(&self, allocation: Option<AllocationId>) -> Result<Vec<Partition>, VipuError> {
        let mut client = self.users.clone();
        let call = client.list_partitions(self.request(request::list(allocation.as_ref())));
        self.with_deadline(Subject::None, call)
            .await
            .and_then(reply::partitions)
    }

    async fn create_partition(&self, request: CreatePartition) -> Result<PartitionId, VipuError> {
        let mut client = self.users.clone();
        let call = client.create_partition(self.request(request::create(&request)));
        let reply = self.with_deadline(Subject::New(&request.id), call).await?;
        reply::created(reply, &request.id)
    }

    async fn partition_status(&self, id: &PartitionId) -> Result<PartitionStatus, VipuError> {
        let mut client = self.users.clone();
        let call = client.get_partition_status(self.request(request::status(id)));
        let reply = self.with_deadline(Subject::Existing(id), call).await?;
        reply::status(reply, id)
    }

    async fn ipuof_config(&self, id: &PartitionId, gcd: Option<u32>) -> Result<IpuofConfig, VipuError> {
        let mut client = self.users.clone();
        let call = client.get_partition_ipuof_config(self.request(request::ipuof_config(id, gcd)));
        let reply = self.with_deadline(Subject::Existing(id), call).await?;
        reply::ipuof_config(reply)
    }

    async fn reset_partition(&self, id: &PartitionId) -> Result<(), VipuError> {
        let mut client = self.users.clone();
        let call = client.reset_partition(self.request(request::reset(id)));
        self.with_deadline(Subject::Existing(id), call).await.map(drop)
    }

    async fn remove_partition(&self, id: &PartitionId, force: bool) -> Result<(), VipuError> {
        let mut client = self.users.clone();
        let call = client.remove_partition(self.request(request::remove(id, force)));
        self.with_deadline(Subject::Existing(id), call).await.map(drop)
    }

    async fn ipu_attributes(&self, agents: &[AgentId]) -> Result<Vec<AgentIpus>, VipuError> {
        let mut client = self.users.clone();
        let call = client.list_ipu_attributes(self.request(request::attributes(agents)));
        self.with_deadline(Subject::None, call)
            .await
            .and_then(reply::attributes)
    }
}
