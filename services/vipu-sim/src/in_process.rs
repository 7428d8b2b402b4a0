//! The simulator without a network connection.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};

use crate::api::Api;
use crate::error::SimError;
use crate::faults::Faults;
use crate::server::ServerContext;
use crate::state::PodState;

/// A V-IPU controller that handles gRPC and REST requests passed to it, as over a listener. It serves tests
/// without a network, and gateways with their own server.
///
/// Calls need a tokio runtime with time enabled. With in-memory state and no faults, the response is ready
/// at once.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let controller = vipu_sim::Simulator::builder(ipu_core::hardware::Topology::pod16()).in_process()?;
/// let request = http::Request::get("/v1/version").body(bytes::Bytes::new())?;
/// let response = controller.call(request).await.expect("no fault is active");
/// assert_eq!(response.status(), 200);
/// # Ok(())
/// # }
/// ```
pub struct InProcess {
    context: ServerContext,
    api: Api,
    faults: Faults,
}

impl InProcess {
    pub(crate) fn new(api: Api, users: Option<BTreeMap<String, String>>) -> Self {
        let faults = Faults::default();
        Self {
            context: ServerContext::new(&api, faults.clone(), users),
            api,
            faults,
        }
    }

    /// Returns the response to a request, or `None` if a fault breaks the connection. Trailers, which carry
    /// the gRPC status, are merged into the headers.
    pub async fn call(&self, request: Request<Bytes>) -> Option<Response<Bytes>> {
        let response = self.context.respond(request.map(Full::new)).await.ok()?;
        let (mut head, body) = response.into_parts();
        let body = body.collect().await.ok()?;
        head.headers.extend(body.trailers().cloned().unwrap_or_default());
        Some(Response::from_parts(head, body.to_bytes()))
    }

    /// Returns the injected faults.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.faults.clone()
    }

    /// Returns the current state of the IPU-POD.
    ///
    /// # Errors
    ///
    /// [`SimError::Storage`] if the state file cannot be read.
    pub fn state(&self) -> Result<PodState, SimError> {
        self.api.store().read(|state| Ok(state.pod()))
    }
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcess").finish_non_exhaustive()
    }
}
