//! The simulator without a connection: a request in, its answer out.

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

/// A V-IPU controller that answers the requests that are handed to it, gRPC and REST like one that listens. For tests that
/// need no network and for gateways that have a server of their own.
///
/// Calls are made within a tokio runtime with time; with the state in memory and without faults an answer is there at once.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let controller = vipu_sim::Simulator::builder(ipu_core::Topology::pod16()).in_process()?;
/// let request = http::Request::get("/v1/version").body(bytes::Bytes::new())?;
/// let answer = controller.call(request).await.expect("no fault is switched on");
/// assert_eq!(answer.status(), 200);
/// # Ok(())
/// # }
/// ```
pub struct InProcess {
    front: ServerContext,
    api: Api,
    faults: Faults,
}

impl InProcess {
    pub(crate) fn new(api: Api, users: Option<BTreeMap<String, String>>) -> Self {
        let faults = Faults::default();
        Self {
            front: ServerContext::new(&api, faults.clone(), users),
            api,
            faults,
        }
    }

    /// The answer to a request; none if a fault breaks the connection. Trailers, in which gRPC tells how a call ended, are
    /// among the headers.
    pub async fn call(&self, request: Request<Bytes>) -> Option<Response<Bytes>> {
        let answer = self.front.answer(request.map(Full::new)).await.ok()?;
        let (mut head, body) = answer.into_parts();
        let body = body.collect().await.ok()?;
        head.headers.extend(body.trailers().cloned().unwrap_or_default());
        Some(Response::from_parts(head, body.to_bytes()))
    }

    /// Its faults, to be switched on and off.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.faults.clone()
    }

    /// The Pod as it is now.
    ///
    /// # Errors
    ///
    /// [`Refusal::Storage`] if the state file cannot be read.
    pub fn state(&self) -> Result<PodState, SimError> {
        self.api.store().read(|state| Ok(state.pod()))
    }
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcess").finish_non_exhaustive()
    }
}
