//! The REST transport of the same API, as `vipu-sim` and JSON gateways serve it: proto3 canonical JSON over
//! HTTP. `request` and `reply` are pure; this module only transfers bytes.

pub(crate) mod reply;
pub(crate) mod request;

use core::fmt;
use core::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::Method;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http_body_util::Full;
use ipu_core::{AgentId, AllocationId, ErrorChain, Partition, PartitionId};
use serde::de::DeserializeOwned;

use crate::controller::{AgentIpus, CreatePartition, IpuofConfig, PartitionStatus, VipuController};
use crate::endpoint::ControllerEndpoint;
use crate::error::VipuError;
use crate::gated_body::GatedBody;
use crate::limits::MAX_REPLY_BYTES;
use crate::options::{ACCESS_KEY_HEADER, ConnectError, ConnectOptions, Credentials, USER_ID_HEADER};
use crate::send_before::send_deadline;
use crate::send_gate::SendGate;
use crate::status_code::{self, RpcMethod, Subject};
use crate::{request as message, tls, wire};
use request::RestRequest;

/// A V-IPU controller over REST. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct RestController {
    client: reqwest::Client,
    base: String,
    endpoint: String,
    deadline: Duration,
}

impl fmt::Debug for RestController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RestController")
            .field("base", &self.base)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl RestController {
    /// Prepares a client of the controller at `endpoint`. Nothing is sent before the first call, which shows
    /// whether the controller is reachable. Proxies of the environment are not used.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if the options are invalid.
    pub fn connect(endpoint: &ControllerEndpoint, options: &ConnectOptions) -> Result<Self, ConnectError> {
        let name = endpoint.name().to_string();
        let headers = options.credentials.as_ref().map(headers).transpose()?;
        let tls = match &options.tls {
            Some(tls) => tls::client_config(tls)?,
            // A plain connection never uses it; without it the transport would look for a provider of its
            // own.
            None => tls::plaintext_config()?,
        };
        let client = reqwest::Client::builder()
            .user_agent(concat!("ipu-vipu-client/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers.unwrap_or_default())
            .connect_timeout(options.connect_deadline)
            .timeout(options.deadline)
            .tcp_nodelay(true)
            .tcp_user_timeout(options.deadline)
            // Before HTTP/2 takes the body of a request, it sends the headers; vipu-sim acts on those of a
            // removal.
            .http1_only()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .tls_backend_preconfigured(tls)
            .build()
            .map_err(|error| ConnectError::Transport {
                endpoint: name.clone(),
                detail: ErrorChain(&error).to_string(),
            })?;
        let scheme = if options.tls.is_some() { "https" } else { "http" };
        Ok(Self {
            client,
            base: format!("{scheme}://{name}"),
            endpoint: name,
            deadline: options.deadline,
        })
    }

    /// Sends `request` and decodes the reply as `T`.
    async fn call<T: DeserializeOwned>(
        &self,
        subject: Subject<'_>,
        request: RestRequest,
    ) -> Result<T, VipuError> {
        let call = RpcMethod {
            endpoint: &self.endpoint,
            subject,
            deadline: self.deadline,
        };
        let gate = SendGate::new(send_deadline());
        gate.run(self.exchange(&call, request, &gate)).await
    }

    async fn exchange<T: DeserializeOwned>(
        &self,
        call: &RpcMethod<'_>,
        request: RestRequest,
        gate: &SendGate,
    ) -> Result<T, VipuError> {
        let to_error = |error: reqwest::Error| transport_error(&error, call);
        let url = format!("{}{}", self.base, request.path);
        let is_read = request.method == Method::GET;
        let mut outgoing = self.client.request(request.method, url);
        if request.body.is_some() {
            outgoing = outgoing.header(CONTENT_TYPE, "application/json");
        }
        if is_read {
            gate.pass().map_err(|_| VipuError::NotSent)?;
        } else {
            let body = Full::<Bytes>::from(request.body.unwrap_or_default());
            outgoing = outgoing.body(reqwest::Body::wrap(GatedBody::new(body, gate.clone())));
        }
        let mut response = outgoing.send().await.map_err(to_error)?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(to_error)? {
            if body.len() + chunk.len() > MAX_REPLY_BYTES {
                return Err(VipuError::BadReply {
                    detail: format!("it is longer than {MAX_REPLY_BYTES} bytes"),
                });
            }
            body.extend_from_slice(&chunk);
        }
        reply::parse(status, &body, call)
    }
}

fn transport_error(error: &reqwest::Error, call: &RpcMethod<'_>) -> VipuError {
    if tls::is_refused_certificate(error) {
        return VipuError::Denied {
            detail: ErrorChain(error).to_string(),
        };
    }
    // The deadline of connection setup is shorter than that of the call: the controller is unreachable.
    if error.is_timeout() && !error.is_connect() {
        return VipuError::Timeout {
            endpoint: call.endpoint.to_owned(),
            waited: call.deadline,
        };
    }
    status_code::unreachable(call, ErrorChain(error).to_string())
}

fn headers(credentials: &Credentials) -> Result<HeaderMap, ConnectError> {
    let mut headers = HeaderMap::new();
    for (header, what, text) in [
        (USER_ID_HEADER, "user id", &credentials.user_id),
        (ACCESS_KEY_HEADER, "access key", &credentials.access_key),
    ] {
        let mut value = HeaderValue::from_str(text).map_err(|_| ConnectError::Credential { what })?;
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    Ok(headers)
}

#[async_trait]
impl VipuController for RestController {
    async fn version(&self) -> Result<String, VipuError> {
        self.call(Subject::None, request::version())
            .await
            .and_then(crate::reply::version)
    }

    async fn list_partitions(&self, allocation: Option<AllocationId>) -> Result<Vec<Partition>, VipuError> {
        self.call(Subject::None, request::list(&message::list(allocation.as_ref())))
            .await
            .and_then(crate::reply::partitions)
    }

    async fn create_partition(&self, request: CreatePartition) -> Result<PartitionId, VipuError> {
        let create = request::create(&message::create(&request))?;
        let reply = self.call(Subject::New(&request.id), create).await?;
        crate::reply::created(reply, &request.id)
    }

    async fn partition_status(&self, id: &PartitionId) -> Result<PartitionStatus, VipuError> {
        let request = request::status(&message::status(id))?;
        let reply = self.call(Subject::Existing(id), request).await?;
        crate::reply::status(reply, id)
    }

    async fn ipuof_config(&self, id: &PartitionId, gcd: Option<u32>) -> Result<IpuofConfig, VipuError> {
        let request = request::ipuof_config(&message::ipuof_config(id, gcd))?;
        let reply = self.call(Subject::Existing(id), request).await?;
        crate::reply::ipuof_config(reply)
    }

    async fn reset_partition(&self, id: &PartitionId) -> Result<(), VipuError> {
        let request = request::reset(&message::reset(id))?;
        let _: wire::ResetPartitionReply = self.call(Subject::Existing(id), request).await?;
        Ok(())
    }

    async fn remove_partition(&self, id: &PartitionId, force: bool) -> Result<(), VipuError> {
        let request = request::remove(&message::remove(id, force))?;
        let _: wire::RemovePartitionReply = self.call(Subject::Existing(id), request).await?;
        Ok(())
    }

    async fn ipu_attributes(&self, agents: &[AgentId]) -> Result<Vec<AgentIpus>, VipuError> {
        self.call(Subject::None, request::attributes(&message::attributes(agents)))
            .await
            .and_then(crate::reply::attributes)
    }
}
