//! The partition API of `vipu-proxy`: its documents as types, and a client.
//!
//! ```
//! # #[cfg(not(feature = "client"))]
//! # fn main() {}
//! # #[cfg(feature = "client")]
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let settings = vipu_proxy::Settings::simulated("pod16");
//! # let server = vipu_proxy::Proxy::start(settings.check()?).await?;
//! # let address = format!("http://{}", server.addr());
//! use std::time::Duration;
//!
//! use ipu_core::PartitionId;
//! use ipu_proxy_client::{ClientOptions, DeletePartition, HoldState, OwnerDocument, ProxyClient, PutPartition};
//!
//! // The address of a proxy, such as http://vipu-proxy:8080.
//! let proxy = ProxyClient::new(&address, ClientOptions::default())?;
//!
//! let id = PartitionId::new("training")?;
//! let request = PutPartition::new(OwnerDocument::new("IPUJob", "default", "mnist", "1"), 4);
//! let hour = Duration::from_secs(3600);
//! let partition = proxy
//!     .ensure_active(&id, &request, hour, &mut |pending| println!("{:?}", pending.reason))
//!     .await?;
//! assert_eq!(partition.state, HoldState::Active);
//!
//! proxy.wait_released(&id, &DeletePartition::default(), hour, &mut |_| ()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`PutPartition`] requests a partition and [`PartitionDocument`] describes its state. The proxy uses the
//! same types, so that both sides agree on every name. Requests are parsed strictly: an unknown field is an
//! error. Responses are parsed leniently, because a newer proxy may add fields. Errors are
//! [`ProblemDocument`]s.
//!
//! `ProxyClient` has a method for each operation. It retries idempotent requests with exponential back-off,
//! or after the time that the proxy requests. Other requests are retried only if the proxy certainly did not
//! execute them. An error carries the problem of the proxy, and reports whether the request may have been
//! executed.
//!
//! # Features
//!
//! - `client` (default): `ProxyClient`, on the tokio runtime of the caller. Without it the crate has the
//!   documents only.
//! - `tls` (default): `https` and client certificates.
//! - `cli`: the documents as tables, and the arguments of `ipuctl` and `kubectl ipu`.
//! - `top`: the view of both programs on a terminal.

mod api;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "client")]
mod client;
mod system_clock;

pub use api::{
    AllocationPartitions, BlockerDocument, CapacityQuery, ChangeDocument, ControllerDocument,
    ControllerHealth, ControllerList, ControllerMapDocument, ControllerReason, ControllerStatus,
    CordonDocument, CordonList, CordonRequest, CordonedDocument, DeletedDocument, DryRunRequest,
    DryRunResponse, DryRunResult, Fit, FitDocument, Heartbeat, HoldState, IpuofConfigDocument,
    IpuofFileDocument, LeaseDocument, LinkDomainDocument, MachineDocument, MachineMapDocument, MapDocument,
    OwnerDocument, PartitionDocument, PartitionList, PreemptionDocument, ProblemDocument, PutPartition,
    QuotaDocument, Readiness, ReadyDocument, RecordDocument, RecordList, RepairAction, RepairDocument,
    ResetPartition, RunDocument, Stats, Subject, UnavailableController, UncordonedDocument, UnfinishedRepair,
    UnrecordedPartition, Usage, WaitingDocument, WaitingList,
};
#[cfg(feature = "tls")]
pub use client::{ClientCertificate, TlsFiles};
#[cfg(feature = "client")]
pub use client::{
    ClientError, ClientOptions, DeletePartition, Event, EventKind, Events, MAX_WAIT, OnNoCapacity,
    ProxyClient, RetryOptions, SetupError, Token,
};
pub use system_clock::now;

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
