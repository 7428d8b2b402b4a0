//! The partition API of `vipu-proxy`: everything that it takes and answers, as types, and a client.
//!
//! [`PutPartition`] asks for a partition and [`PartitionDocument`] says how far it is; the proxy uses the same types, so that
//! both sides agree on every name. Requests are parsed strictly: a field that is not known is an error. Answers are read
//! leniently, because a newer proxy may say more. What is wrong is a [`ProblemDocument`].
//!
//! `ProxyClient` has a method for each operation. It sends again what is safe to repeat, a few times, after pauses that
//! grow or that the proxy wishes; what is not safe is sent again only if it was certainly not done. An error carries what
//! the proxy says, and tells whether what was asked for may have been done all the same.
//!
//! ```no_run
//! # #[cfg(feature = "client")]
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use ipu_core::PartitionId;
//! use ipu_proxy_client::{ClientOptions, DeletePartition, OwnerDocument, ProxyClient, PutPartition, Token};
//!
//! let mut options = ClientOptions::default();
//! options.token = Some(Token::File("/var/run/secrets/tokens/vipu-proxy".into()));
//! let proxy = ProxyClient::new("http://vipu-proxy:8080", options)?;
//!
//! let id = PartitionId::new("training")?;
//! let wanted = PutPartition::new(OwnerDocument::new("IPUJob", "default", "mnist", "1"), 4);
//! let hour = Duration::from_secs(3600);
//! let partition = proxy
//!     .ensure_active(&id, &wanted, hour, &mut |waits| println!("{:?}", waits.reason))
//!     .await?;
//! println!("{:?}", partition.env);
//!
//! proxy.wait_gone(&id, &DeletePartition::default(), hour, &mut |_| ()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! - `client` (default): `ProxyClient`, on a tokio runtime of the caller's. Without it the documents alone, built from `serde`.
//! - `tls` (default): `https`, and certificates of the client.

mod api;
#[cfg(feature = "client")]
mod client;

pub use api::{
    BlockerDocument, CapacityQuery, ChangeDocument, ControllerDocument, ControllerList, ControllerReason,
    ControllerStatus, CordonDocument, CordonList, CordonRequest, CordonedDocument, DeletedDocument,
    DryRunRequest, DryRunResponse, Fit, Heartbeat, HoldState, LeaseDocument, OwnerDocument,
    PartitionDocument, PartitionList, Planned, ProblemDocument, PutPartition, RecordDocument, RecordList,
    RepairAction, RepairDocument, RepairLater, ResetPartition, SilentController, Stats, Uncordoned, Usage,
    WaitingDocument, WaitingList,
};
#[cfg(feature = "tls")]
pub use client::{ClientCertificate, TlsFiles};
#[cfg(feature = "client")]
pub use client::{
    ClientError, ClientOptions, DeletePartition, Event, EventKind, Events, MAX_WAIT, OnNoCapacity,
    ProxyClient, RetryOptions, SetupError, Token,
};

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
