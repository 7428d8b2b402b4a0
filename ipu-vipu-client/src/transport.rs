//! The transport of gRPC calls: a connection, or a service in this process.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use tonic::body::Body;
use tonic::codegen::{Service, StdError};
use tonic::transport::Channel;
use tower::util::{BoxCloneSyncService, ServiceExt as _};

use crate::gated_body::GatedBody;
use crate::send_gate::SendGate;

type Request = http::Request<Body>;
type Response = http::Response<Body>;

/// A connection or an in-process service. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Transport {
    Connection(Channel),
    Process(BoxCloneSyncService<Request, Response, StdError>),
}

impl Transport {
    /// Forwards every call to `service`.
    pub(crate) fn process<S>(service: S) -> Self
    where
        S: Service<Request, Response = Response, Error: Into<StdError>, Future: Send>
            + Clone
            + Send
            + Sync
            + 'static,
    {
        Self::Process(BoxCloneSyncService::new(service.map_err(Into::into)))
    }
}

impl Service<Request> for Transport {
    type Response = Response;
    type Error = StdError;
    type Future = Pin<Box<dyn Future<Output = Result<Response, StdError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        match self {
            Self::Connection(channel) => channel.poll_ready(context).map_err(Into::into),
            Self::Process(service) => service.poll_ready(context),
        }
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let request = request.map(|body| Body::new(GatedBody::new(body, SendGate::current())));
        match self {
            Self::Connection(channel) => {
                let response = channel.call(request);
                Box::pin(async move { response.await.map_err(Into::into) })
            }
            Self::Process(service) => service.call(request),
        }
    }
}
