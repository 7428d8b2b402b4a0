//! The simulator without a network connection.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use tonic::body::Body;
use tower::Service;

use crate::error::SimError;
use crate::faults::Faults;
use crate::server::{BrokenConnection, ServerContext};
use crate::state::PodState;

/// A simulated controller without a connection, for tests and for gateways with their own server. The
/// service of a [`Simulator`](crate::Simulator) has its IPU-POD and its faults. Cheap to clone.
///
/// It is a tower service for clients in this process. A fault that breaks connections is an error of the
/// call.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use ipu_vipu_client::{ConnectOptions, GrpcController, VipuController as _};
///
/// let simulator = vipu_sim::Simulator::builder(ipu_core::hardware::Topology::pod16()).start().await?;
/// let address = simulator.addr().try_into()?;
/// let controller = GrpcController::in_process(&address, simulator.service(), &ConnectOptions::default())?;
/// assert!(controller.list_partitions(None).await?.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SimulatorService(Arc<ServerContext>);

impl SimulatorService {
    pub(crate) fn new(context: &Arc<ServerContext>) -> Self {
        Self(Arc::clone(context))
    }

    /// Returns the response to a gRPC or REST request, or `None` if a fault breaks the connection. Trailers,
    /// which carry the gRPC status, are merged into the headers.
    ///
    /// The call needs a tokio runtime with time enabled. With in-memory state and no faults, the response is
    /// ready at once.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let controller = vipu_sim::Simulator::builder(ipu_core::hardware::Topology::pod16()).in_process()?;
    /// let request = http::Request::get("/v1/version").body(bytes::Bytes::new())?;
    /// let response = controller.exchange(request).await.expect("no fault is active");
    /// assert_eq!(response.status(), 200);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn exchange(&self, request: Request<Bytes>) -> Option<Response<Bytes>> {
        let response = self.0.respond(request.map(Full::new)).await.ok()?;
        let (mut head, body) = response.into_parts();
        let body = body.collect().await.ok()?;
        head.headers.extend(body.trailers().cloned().unwrap_or_default());
        Some(Response::from_parts(head, body.to_bytes()))
    }

    /// Returns the injected faults.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.0.faults.clone()
    }

    /// Returns the current state of the IPU-POD.
    ///
    /// # Errors
    ///
    /// [`SimError::Storage`] if the state file cannot be read.
    pub fn state(&self) -> Result<PodState, SimError> {
        self.0.state()
    }
}

impl fmt::Debug for SimulatorService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatorService").finish_non_exhaustive()
    }
}

impl Service<Request<Body>> for SimulatorService {
    type Response = Response<Body>;
    type Error = BrokenConnection;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BrokenConnection>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BrokenConnection>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let context = Arc::clone(&self.0);
        Box::pin(async move {
            if context.refuses_connections() {
                return Err(BrokenConnection);
            }
            context.respond(request).await
        })
    }
}
