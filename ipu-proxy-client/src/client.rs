//! The client: one method for each operation of the API.

mod clock;
mod connection;
mod error;
mod events;
mod options;
mod request;
mod response;
mod retry;
mod sse;
#[cfg(feature = "tls")]
mod tls;
mod transport;
mod wait;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use ipu_core::{CordonId, PartitionId, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use self::error::{ClientError, SetupError};
pub use self::events::{Event, EventKind, Events};
pub use self::options::{ClientOptions, RetryOptions, Token};
#[cfg(feature = "tls")]
pub use self::tls::{ClientCertificate, TlsFiles};

use self::request::{ApiRequest, Idempotency};
use self::transport::Transport;
use crate::api::{
    CapacityQuery, ControllerList, CordonList, CordonRequest, CordonedDocument, DeletedDocument,
    DryRunRequest, DryRunResponse, Fit, Heartbeat, LeaseDocument, OwnerDocument, PartitionDocument,
    PartitionList, PutPartition, RecordList, RepairDocument, ResetPartition, Stats, Uncordoned, WaitingList,
};

/// The longest that the proxy lets one request wait; longer waits are several requests.
pub const MAX_WAIT: Duration = Duration::from_secs(60);

/// What to do with a request that does not fit now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnNoCapacity {
    /// It joins the line, and the answer comes when the partition is ready, at the latest after this time (at most
    /// [`LONGEST_WAIT`]); zero answers at once.
    Join(Duration),
    /// It is refused: a problem with the code `DoesNotFit`.
    Refuse,
}

/// How a partition is given back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeletePartition {
    /// The uid that the owner has to have, so that nothing is taken from a later owner of the same id.
    pub uid: Option<String>,
    /// The newest attempt that is meant.
    pub attempt: Option<u32>,
    /// Also what was found and nobody owns.
    pub quarantined: bool,
    /// How long to wait until it is gone: at most [`LONGEST_WAIT`].
    pub wait: Duration,
}

/// A client of one proxy. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct ProxyClient(Arc<Transport>);

impl fmt::Debug for ProxyClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyClient")
            .field("url", &self.0.url())
            .finish_non_exhaustive()
    }
}

impl ProxyClient {
    /// A client of the proxy at `url`: `http://host[:port][/path]`, or `https` with the feature `tls`; without a scheme it is
    /// `http`. Nothing is sent before the first call. Proxies of the environment are not used.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if the URL or the options cannot be used.
    pub fn new(url: &str, options: ClientOptions) -> Result<Self, SetupError> {
        Ok(Self(Arc::new(Transport::new(url, options)?)))
    }

    /// Where the proxy is.
    #[must_use]
    pub fn url(&self) -> &str {
        self.0.url()
    }

    /// How many IPUs are used and available.
    ///
    /// # Errors
    ///
    /// [`ClientError`], as of every method here.
    pub async fn stats(&self) -> Result<Stats, ClientError> {
        self.get("/stats").await
    }

    /// How many partitions of `size` IPUs fit now.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn query(&self, size: u32) -> Result<Fit, ClientError> {
        self.post("/query", &CapacityQuery::new(size), Idempotency::Safe)
            .await
    }

    /// Whether the proxy can serve.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; the problem says why not.
    pub async fn ready(&self) -> Result<(), ClientError> {
        self.get::<serde_json::Value>("/readyz").await.map(drop)
    }

    /// All partitions, by id: those that are held and those that wait.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn partitions(&self) -> Result<Vec<PartitionDocument>, ClientError> {
        let list: PartitionList = self.get("/v1/partitions").await?;
        Ok(list.partitions)
    }

    /// One partition.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; a problem with the code `NotFound` if the ledger does not know it.
    pub async fn partition(&self, id: &PartitionId) -> Result<PartitionDocument, ClientError> {
        self.get(&format!("/v1/partitions/{id}")).await
    }

    /// Sees to a partition: makes it, resets it for a newer attempt, or answers how far it is. Safe to repeat;
    /// [`ensure_active`](Self::ensure_active) does so until it is ready.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn put(
        &self,
        id: &PartitionId,
        wanted: &PutPartition,
        line: OnNoCapacity,
    ) -> Result<PartitionDocument, ClientError> {
        let path = format!("/v1/partitions/{id}");
        let ask = ApiRequest::new(Method::PUT, path, Idempotency::Safe)
            .expiring()
            .body(wanted)?;
        let partition: PartitionDocument = self
            .0
            .call(match line {
                OnNoCapacity::Join(wait) => ask.waiting(wait),
                OnNoCapacity::Refuse => ask.query("nowait", "true"),
            })
            .await?;
        match mismatch(id, wanted, &partition) {
            None => Ok(partition),
            Some(detail) => Err(ClientError::InvalidResponse {
                url: self.url().to_owned(),
                status: 200,
                detail,
            }),
        }
    }

    /// Gives a partition back, or takes the request out of the line. Safe to repeat, and recorded also while the controller
    /// is down; [`wait_gone`](Self::wait_gone) repeats it until it is gone.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn delete(
        &self,
        id: &PartitionId,
        how: &DeletePartition,
    ) -> Result<DeletedDocument, ClientError> {
        let path = format!("/v1/partitions/{id}");
        let mut ask = ApiRequest::new(Method::DELETE, path, Idempotency::Safe)
            .expiring()
            .waiting(how.wait);
        if let Some(uid) = &how.uid {
            ask = ask.query("uid", uid);
        }
        if let Some(attempt) = how.attempt {
            ask = ask.query("attempt", &attempt.to_string());
        }
        if how.quarantined {
            ask = ask.query("quarantined", "true");
        }
        self.0.call(ask).await
    }

    /// Has a partition reset. Not repeated unless it is certain that it was not done: a second reset would end what runs
    /// after the first.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn reset(
        &self,
        id: &PartitionId,
        how: &ResetPartition,
    ) -> Result<PartitionDocument, ClientError> {
        let path = format!("/v1/partitions/{id}/reset");
        let ask = ApiRequest::new(Method::POST, path, Idempotency::Unsafe).expiring();
        self.0.call(ask.body(how)?).await
    }

    /// Says that the owner of a partition is alive, and for how long that holds. To be said three times in that time.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn heartbeat(&self, id: &PartitionId, beat: &Heartbeat) -> Result<LeaseDocument, ClientError> {
        self.post(&format!("/v1/partitions/{id}/heartbeat"), beat, Idempotency::Safe)
            .await
    }

    /// The line, first come first.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn waiting(&self) -> Result<Vec<PartitionDocument>, ClientError> {
        let list: WaitingList = self.get("/v1/waiting").await?;
        Ok(list.waiting)
    }

    /// The controllers and how they are.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn controllers(&self) -> Result<ControllerList, ClientError> {
        self.get("/v1/controllers").await
    }

    /// What would fit, side by side; nothing is recorded.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn plan(&self, question: &DryRunRequest) -> Result<DryRunResponse, ClientError> {
        self.post("/v1/plan", question, Idempotency::Safe).await
    }

    /// What gets nothing new, by whose order.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn cordons(&self) -> Result<CordonList, ClientError> {
        self.get("/v1/exclusions").await
    }

    /// Has something get nothing new. Safe to repeat: the answer says who holds something there.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn cordon(&self, what: &CordonRequest) -> Result<CordonedDocument, ClientError> {
        self.post("/v1/exclusions", what, Idempotency::Safe).await
    }

    /// Lifts an cordon. Safe to repeat.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn uncordon(&self, id: &CordonId) -> Result<Uncordoned, ClientError> {
        let path = format!("/v1/exclusions/{}", request::encoded(id.as_str()));
        self.0
            .call(ApiRequest::new(Method::DELETE, path, Idempotency::Safe))
            .await
    }

    /// The holds that ended at `since` or later, of all pages.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn usage(&self, since: Timestamp) -> Result<RecordList, ClientError> {
        let mut all = self.usage_page(since, None).await?;
        while let Some(token) = all.continue_token.take() {
            let page = self.usage_page(since, Some(&token)).await?;
            // A page without records would be the same page for ever.
            all.continue_token = page.continue_token.filter(|_| !page.records.is_empty());
            all.records.extend(page.records);
        }
        Ok(all)
    }

    /// A page of the holds that ended at `since` or later: the first one, or the one that `continue_token` of the page
    /// before names.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn usage_page(
        &self,
        since: Timestamp,
        continue_token: Option<&str>,
    ) -> Result<RecordList, ClientError> {
        let ask = ApiRequest::new(Method::GET, "/v1/usage".to_owned(), Idempotency::Safe);
        let ask = ask.query("since", &since.as_millis().to_string());
        self.0
            .call(match continue_token {
                Some(token) => ask.query("continue", token),
                None => ask,
            })
            .await
    }

    /// Has ledger, controllers and owners compared now, and says what was mended. Safe to repeat.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn repair(&self) -> Result<RepairDocument, ClientError> {
        let ask = ApiRequest::new(Method::POST, "/v1/repair".to_owned(), Idempotency::Safe);
        // Controllers that hang are given up after a while, one after the other.
        self.0.call(ask.taking(MAX_WAIT)).await
    }

    /// What happens to partitions from now on, beginning with all of them as they are; or what happened after the event
    /// `after`, if the proxy still knows that.
    #[must_use]
    pub fn events(&self, after: Option<String>) -> Events {
        Events::new(Arc::clone(&self.0), after)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.0
            .call(ApiRequest::new(Method::GET, path.to_owned(), Idempotency::Safe))
            .await
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        repeat: Idempotency,
    ) -> Result<T, ClientError> {
        let ask = ApiRequest::new(Method::POST, path.to_owned(), repeat);
        self.0.call(ask.body(body)?).await
    }
}

/// The property in which `partition` is not the one that was asked for: the environment of another owner's partition would
/// lead a program to its IPUs.
fn mismatch(id: &PartitionId, wanted: &PutPartition, partition: &PartitionDocument) -> Option<String> {
    let differs = |field: &str, asked: String, answered: String| {
        (asked != answered).then(|| format!("{field} {answered}, asked for {asked}"))
    };
    let owner = |owner: Option<&OwnerDocument>| {
        owner.map_or_else(|| "none".to_owned(), |owner| format!("{owner} ({})", owner.uid))
    };
    differs("partition", id.to_string(), partition.id.to_string())
        .or_else(|| {
            differs(
                "owner",
                owner(Some(&wanted.owner)),
                owner(partition.owner.as_ref()),
            )
        })
        .or_else(|| {
            differs(
                "instance",
                wanted.instance.to_string(),
                partition.instance.to_string(),
            )
        })
        .or_else(|| differs("size", wanted.size.to_string(), partition.size.to_string()))
}
