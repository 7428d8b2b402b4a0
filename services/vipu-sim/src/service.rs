//! The simulator as a tower service for clients in the same process.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tonic::body::Body;
use tower::Service;

use crate::server::{BrokenConnection, ServerContext};

/// Serves a simulator to its own process without a connection, with the same IPU-POD and faults as over the
/// network. Cheap to clone. A fault that breaks connections is an error of the call.
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
