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
use ipu_core::{AllocationId, ControllerName, CordonId, PartitionId, Timestamp};
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
    AllocationPartitions, CapacityQuery, ControllerList, CordonList, CordonRequest, CordonedDocument,
    DeletedDocument, DryRunRequest, DryRunResponse, Fit, Heartbeat, IpuofConfigDocument, LeaseDocument,
    MapDocument, OwnerDocument, PartitionDocument, PartitionList, PutPartition, Readiness, ReadyDocument,
    RecordList, RepairDocument, ResetPartition, Stats, UncordonedDocument, WaitingList,
};

/// Maximum wait of one request at the proxy. Longer waits take several requests.
pub const MAX_WAIT: Duration = Duration::from_secs(60);

/// Action for a request that does not fit now.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let settings = vipu_proxy::Settings::simulated("pod16");
/// # let server = vipu_proxy::Proxy::start(settings.check()?).await?;
/// # let proxy = ipu_proxy_client::ProxyClient::new(&server.addr().to_string(), Default::default())?;
/// use std::time::Duration;
///
/// use ipu_core::PartitionId;
/// use ipu_proxy_client::{HoldState, OnNoCapacity, OwnerDocument, PutPartition};
///
/// // The only controller has 16 IPUs.
/// let id = PartitionId::new("training")?;
/// let request = PutPartition::new(OwnerDocument::new("IPUJob", "default", "mnist", "1"), 64);
/// let error = proxy.put(&id, &request, OnNoCapacity::Reject).await.unwrap_err();
/// assert_eq!(error.code(), Some("DoesNotFit"));
/// assert!(error.reason().is_some_and(|reason| reason.code == "TooLarge"));
///
/// let partition = proxy.put(&id, &request, OnNoCapacity::Queue(Duration::ZERO)).await?;
/// assert_eq!(partition.state, HoldState::Waiting);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnNoCapacity {
    /// Queue the request. The proxy responds when the partition is active, at the latest after this time (at
    /// most [`MAX_WAIT`]); zero responds immediately.
    Queue(Duration),
    /// Reject the request: a problem with the code `DoesNotFit`.
    Reject,
}

/// Options of a deletion.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let settings = vipu_proxy::Settings::simulated("pod16");
/// # let server = vipu_proxy::Proxy::start(settings.check()?).await?;
/// # let proxy = ipu_proxy_client::ProxyClient::new(&server.addr().to_string(), Default::default())?;
/// use std::time::Duration;
///
/// use ipu_core::PartitionId;
/// use ipu_proxy_client::{DeletePartition, OnNoCapacity, OwnerDocument, PutPartition};
///
/// let id = PartitionId::new("training")?;
/// let request = PutPartition::new(OwnerDocument::new("IPUJob", "default", "mnist", "2"), 4);
/// proxy.put(&id, &request, OnNoCapacity::Queue(Duration::ZERO)).await?;
///
/// // The program of an earlier job of the same name cleans up late.
/// let mut options = DeletePartition::default();
/// options.uid = Some("1".into());
/// let error = proxy.delete(&id, &options).await.unwrap_err();
/// assert_eq!(error.code(), Some("NotTheOwner"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeletePartition {
    /// Required uid of the owner, so that the partition of a later owner is not deleted.
    pub uid: Option<String>,
    /// Newest attempt that is deleted.
    pub attempt: Option<u32>,
    /// True if a quarantined partition, without a known owner, is deleted too.
    pub quarantined: bool,
    /// True if the controller must not be forced to remove the partition. If it refuses, such as for a
    /// partition in error, the partition keeps its IPUs until it is deleted with force.
    pub without_force: bool,
    /// Maximum wait until the partition is removed, at most [`MAX_WAIT`].
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
    /// Creates a client of the proxy at `url`: `http://host[:port][/path]`, or `https` with the feature
    /// `tls`, or `unix:PATH` for a Unix socket. The default scheme is `http`. Sends nothing before the first
    /// call. HTTP proxies of the environment are not used.
    ///
    /// ```
    /// use ipu_proxy_client::{ClientOptions, ProxyClient};
    ///
    /// let proxy = ProxyClient::new("vipu-proxy:8080/", ClientOptions::default())?;
    /// assert_eq!(proxy.url(), "http://vipu-proxy:8080");
    ///
    /// let error = ProxyClient::new("http://me:secret@vipu-proxy", ClientOptions::default()).unwrap_err();
    /// assert!(error.to_string().ends_with("use a token or a certificate instead of a user and a password"));
    /// # Ok::<(), ipu_proxy_client::SetupError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SetupError`] if the URL or the options are invalid.
    pub fn new(url: &str, options: ClientOptions) -> Result<Self, SetupError> {
        Ok(Self(Arc::new(Transport::new(url, options)?)))
    }

    /// Returns the URL of the proxy without a trailing slash, or `unix:` and the path of its socket.
    #[must_use]
    pub fn url(&self) -> &str {
        self.0.url()
    }

    /// Returns the used and available IPUs.
    ///
    /// # Errors
    ///
    /// [`ClientError`], as for every method.
    pub async fn stats(&self) -> Result<Stats, ClientError> {
        self.get("/stats").await
    }

    /// Returns how many partitions fit now.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let settings = vipu_proxy::Settings::simulated("pod16");
    /// # let server = vipu_proxy::Proxy::start(settings.check()?).await?;
    /// # let proxy = ipu_proxy_client::ProxyClient::new(&server.addr().to_string(), Default::default())?;
    /// use ipu_proxy_client::CapacityQuery;
    ///
    /// // A free IPU-POD16.
    /// let fit = proxy.query(&CapacityQuery::new(4)).await?;
    /// assert_eq!((fit.available, fit.num_of_partitions), (true, 4));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn query(&self, query: &CapacityQuery) -> Result<Fit, ClientError> {
        self.post("/query", query, Idempotency::Safe).await
    }

    /// Returns whether the proxy leads, or stands by for the one that does.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; the problem has the reason why it is not ready.
    pub async fn ready(&self) -> Result<Readiness, ClientError> {
        let ready: ReadyDocument = self.get("/readyz").await?;
        Ok(ready.status)
    }

    /// Returns all partitions and queued requests, ordered by id.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn partitions(&self) -> Result<Vec<PartitionDocument>, ClientError> {
        let list: PartitionList = self.get("/v1/partitions").await?;
        Ok(list.partitions)
    }

    /// Returns one partition.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; a problem with the code `NotFound` if the ledger has no such partition.
    pub async fn partition(&self, id: &PartitionId) -> Result<PartitionDocument, ClientError> {
        self.get(&format!("/v1/partitions/{id}")).await
    }

    /// Returns the IPUoF configuration of an active partition: of one GCD, or of all.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let settings = vipu_proxy::Settings::simulated("pod16");
    /// # let server = vipu_proxy::Proxy::start(settings.check()?).await?;
    /// # let proxy = ipu_proxy_client::ProxyClient::new(&server.addr().to_string(), Default::default())?;
    /// use std::time::Duration;
    ///
    /// use ipu_core::PartitionId;
    /// use ipu_proxy_client::{OwnerDocument, PutPartition};
    ///
    /// let id = PartitionId::new("training")?;
    /// let request = PutPartition::new(OwnerDocument::new("IPUJob", "default", "mnist", "1"), 4);
    /// proxy.ensure_active(&id, &request, Duration::from_secs(60), &mut |_| ()).await?;
    ///
    /// let [file] = proxy.ipuof_config(&id, None).await?.files.try_into().expect("one GCD");
    /// assert_eq!(file.name, "training_ipuof.conf");
    /// let content = serde_json::to_value(&file.config)?;
    /// assert_eq!(content["devices"][0]["ip"], "10.0.0.1");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ClientError`]; a problem with the code `NotActive` if the partition is not active.
    pub async fn ipuof_config(
        &self,
        id: &PartitionId,
        gcd: Option<u32>,
    ) -> Result<IpuofConfigDocument, ClientError> {
        let path = format!("/v1/partitions/{id}/ipuof-config");
        let get = ApiRequest::new(Method::GET, path, Idempotency::Safe);
        self.0
            .call(match gcd {
                Some(gcd) => get.query("gcd", &gcd.to_string()),
                None => get,
            })
            .await
    }

    /// Creates a partition, resets it for a newer attempt, or returns its state. Idempotent;
    /// [`ensure_active`](Self::ensure_active) repeats it until the partition is active.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn put(
        &self,
        id: &PartitionId,
        request: &PutPartition,
        on_no_capacity: OnNoCapacity,
    ) -> Result<PartitionDocument, ClientError> {
        let path = format!("/v1/partitions/{id}");
        let put = ApiRequest::new(Method::PUT, path, Idempotency::Safe)
            .expiring()
            .body(request)?;
        let partition: PartitionDocument = self
            .0
            .call(match on_no_capacity {
                OnNoCapacity::Queue(wait) => put.waiting(wait),
                OnNoCapacity::Reject => put.query("nowait", "true"),
            })
            .await?;
        match mismatch(id, request, &partition) {
            None => Ok(partition),
            Some(detail) => Err(ClientError::InvalidResponse {
                url: self.url().to_owned(),
                status: 200,
                detail,
            }),
        }
    }

    /// Releases a partition, or withdraws a queued request. Idempotent, and recorded even while the
    /// controller is unavailable; [`wait_released`](Self::wait_released) repeats it until the partition is
    /// removed.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn delete(
        &self,
        id: &PartitionId,
        options: &DeletePartition,
    ) -> Result<DeletedDocument, ClientError> {
        let path = format!("/v1/partitions/{id}");
        let mut delete = ApiRequest::new(Method::DELETE, path, Idempotency::Safe)
            .expiring()
            .waiting(options.wait);
        if let Some(uid) = &options.uid {
            delete = delete.query("uid", uid);
        }
        if let Some(attempt) = options.attempt {
            delete = delete.query("attempt", &attempt.to_string());
        }
        if options.quarantined {
            delete = delete.query("quarantined", "true");
        }
        if options.without_force {
            delete = delete.query("force", "false");
        }
        self.0.call(delete).await
    }

    /// Resets a partition. Retried only if the proxy certainly did not execute it: a second reset would
    /// disrupt the processes that were started after the first.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn reset(
        &self,
        id: &PartitionId,
        request: &ResetPartition,
    ) -> Result<PartitionDocument, ClientError> {
        let path = format!("/v1/partitions/{id}/reset");
        let reset = ApiRequest::new(Method::POST, path, Idempotency::Unsafe).expiring();
        self.0.call(reset.body(request)?).await
    }

    /// Renews the lease of the owner of a partition. Call it at least three times within the duration of the
    /// lease.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let settings = vipu_proxy::Settings::simulated("pod16");
    /// # let server = vipu_proxy::Proxy::start(settings.check()?).await?;
    /// # let proxy = ipu_proxy_client::ProxyClient::new(&server.addr().to_string(), Default::default())?;
    /// use std::time::Duration;
    ///
    /// use ipu_core::PartitionId;
    /// use ipu_proxy_client::{Heartbeat, OnNoCapacity, OwnerDocument, PutPartition};
    ///
    /// let id = PartitionId::new("training")?;
    /// let mut request = PutPartition::new(OwnerDocument::new("IPUJob", "default", "mnist", "1"), 4);
    /// let on_no_capacity = OnNoCapacity::Queue(Duration::ZERO);
    /// proxy.put(&id, &request, on_no_capacity).await?;
    /// let error = proxy.heartbeat(&id, &Heartbeat::new(300)).await.unwrap_err();
    /// assert_eq!(error.code(), Some("NoLease"));
    ///
    /// request.lease_seconds = Some(60);
    /// let before = proxy.put(&id, &request, on_no_capacity).await?.lease_until.expect("a lease");
    /// let renewed = proxy.heartbeat(&id, &Heartbeat::new(300)).await?;
    /// assert!(renewed.lease_until > before);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn heartbeat(
        &self,
        id: &PartitionId,
        heartbeat: &Heartbeat,
    ) -> Result<LeaseDocument, ClientError> {
        self.post(
            &format!("/v1/partitions/{id}/heartbeat"),
            heartbeat,
            Idempotency::Safe,
        )
        .await
    }

    /// Returns the queued requests in queue order.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn waiting(&self) -> Result<Vec<PartitionDocument>, ClientError> {
        let list: WaitingList = self.get("/v1/waiting").await?;
        Ok(list.waiting)
    }

    /// Returns the controllers with their states.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn controllers(&self) -> Result<ControllerList, ClientError> {
        self.get("/v1/controllers").await
    }

    /// Returns every IPU with its holder and cordons, and the quotas.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn map(&self) -> Result<MapDocument, ClientError> {
        self.get("/v1/map").await
    }

    /// Evaluates which partitions would fit side by side. Records nothing.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn plan(&self, request: &DryRunRequest) -> Result<DryRunResponse, ClientError> {
        self.post("/v1/plan", request, Idempotency::Safe).await
    }

    /// Returns the partitions in an allocation that the ledger does not record.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; a problem with the code `ControllerRefused` if the controller has no such allocation.
    pub async fn unrecorded_partitions(
        &self,
        controller: &ControllerName,
        allocation: &AllocationId,
    ) -> Result<AllocationPartitions, ClientError> {
        self.0.call(unrecorded(Method::GET, controller, allocation)).await
    }

    /// Removes the partitions in an allocation that the ledger does not record, with force. Idempotent; the
    /// response has those whose removal has begun.
    ///
    /// # Errors
    ///
    /// [`ClientError`], as of [`unrecorded_partitions`](Self::unrecorded_partitions).
    pub async fn remove_unrecorded_partitions(
        &self,
        controller: &ControllerName,
        allocation: &AllocationId,
    ) -> Result<AllocationPartitions, ClientError> {
        self.0
            .call(unrecorded(Method::DELETE, controller, allocation))
            .await
    }

    /// Returns all cordons.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn cordons(&self) -> Result<CordonList, ClientError> {
        self.get("/v1/cordons").await
    }

    /// Cordons hardware. Idempotent; the response has the partitions that use the hardware.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn cordon(&self, request: &CordonRequest) -> Result<CordonedDocument, ClientError> {
        self.post("/v1/cordons", request, Idempotency::Safe).await
    }

    /// Lifts a cordon. Idempotent.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn uncordon(&self, id: &CordonId) -> Result<UncordonedDocument, ClientError> {
        let path = format!("/v1/cordons/{}", request::encoded(id.as_str()));
        self.0
            .call(ApiRequest::new(Method::DELETE, path, Idempotency::Safe))
            .await
    }

    /// Returns the holds that ended at `since` or later, of all pages.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn usage(&self, since: Timestamp) -> Result<RecordList, ClientError> {
        let mut all = self.usage_page(since, None).await?;
        while let Some(token) = all.continue_token.take() {
            let page = self.usage_page(since, Some(&token)).await?;
            // An empty page with a token would repeat forever.
            all.continue_token = page.continue_token.filter(|_| !page.records.is_empty());
            all.records.extend(page.records);
        }
        Ok(all)
    }

    /// Returns the first page, or that of the `continue_token` of the previous page.
    async fn usage_page(
        &self,
        since: Timestamp,
        continue_token: Option<&str>,
    ) -> Result<RecordList, ClientError> {
        let get = ApiRequest::new(Method::GET, "/v1/usage".to_owned(), Idempotency::Safe);
        let get = get.query("since", &since.as_millis().to_string());
        self.0
            .call(match continue_token {
                Some(token) => get.query("continue", token),
                None => get,
            })
            .await
    }

    /// Compares ledger, controllers and owners now, and returns the repairs. Idempotent.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn repair(&self) -> Result<RepairDocument, ClientError> {
        let post = ApiRequest::new(Method::POST, "/v1/repair".to_owned(), Idempotency::Safe);
        // Hanging controllers time out one after the other.
        self.0.call(post.taking(MAX_WAIT)).await
    }

    /// Returns the stream of changes, which starts with a snapshot of all partitions. With `after`, it starts
    /// after that event, if the proxy still has the changes.
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
        idempotency: Idempotency,
    ) -> Result<T, ClientError> {
        let post = ApiRequest::new(Method::POST, path.to_owned(), idempotency);
        self.0.call(post.body(body)?).await
    }
}

/// Returns the field in which `partition` differs from the request. The environment of another owner's
/// partition would let a program use its IPUs.
fn mismatch(id: &PartitionId, request: &PutPartition, partition: &PartitionDocument) -> Option<String> {
    let differs = |field: &str, requested: String, received: String| {
        (requested != received).then(|| format!("{field} {received}, requested {requested}"))
    };
    let owner = |owner: Option<&OwnerDocument>| {
        owner.map_or_else(|| "none".to_owned(), |owner| format!("{owner} ({})", owner.uid))
    };
    differs("partition", id.to_string(), partition.id.to_string())
        .or_else(|| {
            differs(
                "owner",
                owner(Some(&request.owner)),
                owner(partition.owner.as_ref()),
            )
        })
        .or_else(|| {
            differs(
                "instance",
                request.instance.to_string(),
                partition.instance.to_string(),
            )
        })
        .or_else(|| differs("size", request.size.to_string(), partition.size.to_string()))
}

/// Returns the request about the partitions in an allocation that the ledger does not record.
fn unrecorded(method: Method, controller: &ControllerName, allocation: &AllocationId) -> ApiRequest {
    let allocation = request::encoded(allocation.as_str());
    let path = format!("/v1/allocations/{allocation}/partitions");
    ApiRequest::new(method, path, Idempotency::Safe).query("controller", controller.as_str())
}
