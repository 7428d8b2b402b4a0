//! A port of this host that leads to a Pod.

use std::net::{Ipv4Addr, SocketAddr};

use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::exit_code::{Code, Failure, api_failure};

/// Forwards connections of a port of this host to the Pod.
pub(super) async fn forward(
    pods: Api<Pod>,
    pod: String,
    port: u16,
) -> Result<(SocketAddr, JoinHandle<()>), Failure> {
    let listen = |error| Failure::because(Code::Host, "listen on a port of this host", error);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    // Errors such as a missing right are reported before the first request.
    let mut first = Some(open(&pods, &pod, port).await?);
    let task = tokio::spawn(async move {
        while let Ok((mut local, _)) = listener.accept().await {
            let opened = match first.take() {
                Some(stream) => Ok(stream),
                None => open(&pods, &pod, port).await,
            };
            // Without a stream the connection is closed, and the client reports or repeats that.
            if let Ok(mut remote) = opened {
                tokio::spawn(async move { tokio::io::copy_bidirectional(&mut local, &mut remote).await });
            }
        }
    });
    Ok((address, task))
}

/// Opens a stream to the port of the Pod.
async fn open(
    pods: &Api<Pod>,
    pod: &str,
    port: u16,
) -> Result<impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + use<>, Failure> {
    let mut forwarder = pods
        .portforward(pod, &[port])
        .await
        .map_err(|error| api_failure(format!("forward a port of Pod {pod}"), error))?;
    let stream = forwarder.take_stream(port);
    // It continues in the background, and ends with its stream.
    tokio::spawn(async move { forwarder.join().await });
    stream.ok_or_else(|| Failure::new(Code::Unavailable, format!("Pod {pod} opened no stream")))
}
