//! The REST transport of the same API, as `vipu-sim` and JSON gateways serve it.

use core::fmt;
use core::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::Method;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http_body_util::Full;
use ipu_core::ErrorChain;

use crate::endpoint::ControllerEndpoint;
use crate::error::VipuError;
use crate::gated_body::GatedBody;
use crate::json::{JsonController, JsonReply, JsonRequest, JsonTransport};
use crate::limits::MAX_REPLY_BYTES;
use crate::options::{ACCESS_KEY_HEADER, ConnectError, ConnectOptions, Credentials, USER_ID_HEADER};
use crate::send_before::send_deadline;
use crate::send_gate::SendGate;
use crate::tls;

/// A V-IPU controller over REST. Cheap to clone; clones share their connections.
pub type RestController = JsonController<HttpTransport>;

/// HTTP/1.1 to one address.
#[derive(Clone)]
pub struct HttpTransport {
    client: reqwest::Client,
    base: String,
    endpoint: String,
    deadline: Duration,
}

impl fmt::Debug for HttpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpTransport")
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
        Ok(Self::new(HttpTransport {
            client,
            base: format!("{scheme}://{name}"),
            endpoint: name,
            deadline: options.deadline,
        }))
    }
}

#[async_trait]
impl JsonTransport for HttpTransport {
    fn endpoint(&self) -> &str {
        &self.endpoint
    }

    async fn exchange(&self, request: JsonRequest) -> Result<JsonReply, VipuError> {
        let gate = SendGate::new(send_deadline());
        gate.run(self.send(request, &gate)).await
    }
}

impl HttpTransport {
    async fn send(&self, request: JsonRequest, gate: &SendGate) -> Result<JsonReply, VipuError> {
        let to_error = |error: reqwest::Error| self.to_error(&error);
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
        Ok(JsonReply {
            status: status.as_u16(),
            body,
        })
    }

    fn to_error(&self, error: &reqwest::Error) -> VipuError {
        let (endpoint, detail) = (self.endpoint.clone(), ErrorChain(error).to_string());
        if tls::is_refused_certificate(error) {
            return VipuError::Denied { detail };
        }
        // The deadline of connection setup is shorter than that of the call: the controller is unreachable.
        if error.is_timeout() && !error.is_connect() {
            return VipuError::Timeout {
                endpoint,
                waited: self.deadline,
            };
        }
        VipuError::Unreachable { endpoint, detail }
    }
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
