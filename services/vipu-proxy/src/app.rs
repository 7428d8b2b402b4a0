//! State that all requests and workers share, and the ledger operations of the API.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipu_core::{
    Entry, EntryState, OnNoCapacity, Owner, PartitionId, QueueDecision, QueueStatus, Reason, Request,
    Timestamp, TransitionError,
};
use ipu_ledger::{Caller, EnsureOutcome, Expiry, Ledger, LedgerError, Liveness, Released};
use ipu_proxy_client::{
    DeletedDocument, HoldState, PartitionDocument, RepairAction, RepairDocument, UnavailableController,
    UnfinishedRepair,
};
use ipu_vipu_client::{ControllerEndpoint, VipuController, parse_controllers};
use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};
use tokio::time::Instant;

use crate::connector::Connector;
use crate::events::EventLog;
use crate::health::Health;
use crate::ipu_seconds::Consumption;
use crate::kept;
use crate::metrics::Metrics;
use crate::partition_api;
use crate::problem::{Problem, chain};
use crate::query::Params;
use crate::store::AnyStore;

/// Controller behind any transport.
pub type AnyController = Arc<dyn VipuController>;
/// Ledger that the proxy serves.
pub type ProxyLedger = Ledger<AnyController, AnyStore>;

/// Time after which a request without `wait` returns the current state. A healthy controller has responded by
/// then, and an unresponsive one does not delay the client.
const NO_WAIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval between two polls of a partition that is being released.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Maximum number of concurrent reads of the whole ledger: each holds a copy, and more of them are not
/// faster.
pub(crate) const MAX_LEDGER_READS: usize = 8;

/// State that requests and workers share.
pub(crate) struct App {
    pub(crate) ledger: ProxyLedger,
    /// Wakes the queue worker, because an operation is pending.
    pub(crate) work: Notify,
    /// Wakes the repair worker.
    pub(crate) repair_requested: Notify,
    /// Number of requests in progress by partition; the queue worker skips these partitions.
    in_progress: Mutex<BTreeMap<PartitionId, u32>>,
    pub(crate) health: Health,
    pub(crate) event_log: Arc<EventLog>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) consumption: Arc<Consumption>,
    ledger_reads: Semaphore,
    /// Lock of reads of the usage log.
    pub(crate) usage_reads: tokio::sync::Mutex<()>,
    pub(crate) connector: Connector,
    /// Liveness of owners.
    pub(crate) liveness: Arc<dyn Liveness>,
    /// Stop signal of all tasks.
    pub(crate) stop: watch::Sender<bool>,
}

/// Guard of a request in progress; dropping it wakes the queue worker.
struct ProgressGuard {
    app: Arc<App>,
    id: PartitionId,
}

impl Drop for ProgressGuard {
    fn drop(&mut self) {
        let mut in_progress = self
            .app
            .in_progress
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = in_progress.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                in_progress.remove(&self.id);
            }
        }
        drop(in_progress);
        self.app.work.notify_one();
    }
}

impl App {
    pub(crate) fn new(ledger: ProxyLedger, connector: Connector, liveness: Arc<dyn Liveness>) -> Arc<Self> {
        let event_log = EventLog::of(ledger.changes(), now().as_millis());
        let consumption = Consumption::of(ledger.changes(), ledger.now());
        Arc::new(Self {
            ledger,
            event_log,
            consumption,
            ledger_reads: Semaphore::new(MAX_LEDGER_READS),
            usage_reads: tokio::sync::Mutex::default(),
            metrics: Arc::clone(&connector.metrics),
            connector,
            liveness,
            work: Notify::new(),
            repair_requested: Notify::new(),
            in_progress: Mutex::default(),
            health: Health::default(),
            stop: watch::Sender::new(false),
        })
    }

    /// Returns a receiver that changes when the proxy stops.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Replaces the list of controllers by the one in `text`, and drains removed controllers.
    ///
    /// It compares their addresses first, so that a second name of a listed controller gets no partition.
    pub(crate) async fn replace_controllers(&self, text: &str) -> Result<(), String> {
        let endpoints = parse_controllers(text).map_err(|error| chain(&error))?;
        let connect = |endpoint: &ControllerEndpoint| self.connector.connect(endpoint);
        let pool = self.ledger.pool();
        let aliases = crate::addresses::compare(pool, &endpoints).await;
        let replaced = pool.replace(&endpoints, connect);
        crate::addresses::mark(pool, aliases);
        // The partitions of a new controller may be missing from the ledger.
        self.repair_requested.notify_one();
        replaced.map_err(|error| chain(&error))
    }

    fn start_progress(self: &Arc<Self>, id: &PartitionId) -> ProgressGuard {
        let mut in_progress = self.in_progress.lock().unwrap_or_else(PoisonError::into_inner);
        *in_progress.entry(id.clone()).or_default() += 1;
        ProgressGuard {
            app: Arc::clone(self),
            id: id.clone(),
        }
    }

    /// Returns whether a request for `id` is in progress.
    pub(crate) fn is_in_progress(&self, id: &PartitionId) -> bool {
        let in_progress = self.in_progress.lock().unwrap_or_else(PoisonError::into_inner);
        in_progress.contains_key(id)
    }

    /// Ensures the partition of `request`, and returns its state after at most `wait`. The queue worker
    /// continues a request that is not complete by then.
    pub(crate) async fn ensure(
        self: &Arc<Self>,
        mut request: Request,
        wait: Duration,
    ) -> Result<PartitionDocument, Problem> {
        let (app, id) = (Arc::clone(self), request.id.clone());
        let (on_no_capacity, original) = (request.on_no_capacity, request.clone());
        // A request for the partition of another owner fails here, without waiting for the lock of the
        // partition.
        let is_of_another = |entry: &Arc<Entry>| entry.owner.as_ref() != Some(&original.owner);
        if self.ledger.cached(&id).as_ref().is_some_and(is_of_another) {
            self.has_recorded(&original).await?;
        }
        let (_guard, mut caller) = Caller::new();
        // A separate task, because a client that disconnects must not interrupt the operation.
        let mut work = kept::spawn(async move {
            let _guard = app.start_progress(&request.id);
            let until = Instant::now() + wait;
            // The first step has no timeout: it records the request even if a controller is unresponsive.
            let expiry = expiry(request.not_after, &caller);
            let first = app.ledger.ensure_until(request.clone(), &expiry).await?;
            if wait.is_zero() || matches!(first, EnsureOutcome::Active(_) | EnsureOutcome::Refused(_)) {
                return Ok(Some(first));
            }
            let mut ignore = |_: &QueueStatus| {};
            // A heartbeat during the wait is newer.
            request.holder.clear();
            let active = app.ledger.wait_active_after(request, first, &mut ignore);
            tokio::select! {
                grant = active => grant.map(|grant| Some(EnsureOutcome::Active(grant))),
                () = tokio::time::sleep_until(until) => Ok(None),
                // The queue worker continues a recorded request.
                () = caller.disconnected() => Ok(None),
            }
        });
        let timeout = if on_no_capacity == OnNoCapacity::Reject {
            wait.max(NO_WAIT_TIMEOUT * 5)
        } else {
            wait.max(NO_WAIT_TIMEOUT)
        };
        let outcome = match tokio::time::timeout(timeout, &mut work).await {
            Ok(outcome) => outcome,
            // The request is recorded, and its controller is slow.
            Err(_) if self.has_recorded(&original).await? => Ok(Ok(None)),
            Err(_) => work.await,
        };
        match outcome.map_err(|_| broken())?? {
            Some(EnsureOutcome::Refused(waiting)) => Err(Problem::does_not_fit(waiting)),
            Some(EnsureOutcome::Waiting(waiting)) => self.own_document(&original, Some(waiting)).await,
            Some(EnsureOutcome::Pending(ipu_ledger::Pending::Failed { errors })) => {
                Err(LedgerError::PartitionFailed { id, errors }.into())
            }
            // This process has recorded the partition as active, so that it can use its copy of the ledger.
            Some(EnsureOutcome::Active(_)) => match self.ledger.cached(&id) {
                Some(entry) if entry.owner.as_ref() == Some(&original.owner) => {
                    Ok(partition_api::document(&entry, None, &self.ledger))
                }
                _ => self.own_document(&original, None).await,
            },
            _ => self.own_document(&original, None).await,
        }
    }

    /// Returns the document of the partition of `request`, or a conflict if another owner has taken its id.
    async fn own_document(
        &self,
        request: &Request,
        waiting: Option<QueueStatus>,
    ) -> Result<PartitionDocument, Problem> {
        let document = self.document(&request.id, waiting).await?;
        let owner = document.owner.clone().map(partition_api::owner_of).transpose()?;
        if owner.as_ref() != Some(&request.owner) || document.instance != request.instance {
            return Err(LedgerError::Illegal(TransitionError::NotTheOwner {
                id: request.id.clone(),
                owner: owner.map(Box::new),
                instance: document.instance,
            })
            .into());
        }
        Ok(document)
    }

    /// Returns the document of `id`. Without `waiting` it computes the queue status of a queued request.
    pub(crate) async fn document(
        &self,
        id: &PartitionId,
        waiting: Option<QueueStatus>,
    ) -> Result<PartitionDocument, Problem> {
        let entry = self.entry(id).await?;
        let waiting = match (&entry.state, waiting) {
            (EntryState::Waiting { .. }, None) => match self.ledger.queue_decision(id).await? {
                Some(QueueDecision::Wait(waiting)) => Some(waiting),
                // Its position is the number of requests ahead of it.
                Some(_) => self.queue_statuses().await?.remove(id),
                None => None,
            },
            (EntryState::Waiting { .. }, status) => status,
            _ => None,
        };
        Ok(partition_api::document(&entry, waiting, &self.ledger))
    }

    /// Returns the document of `id` with its IPUs, which it queries from the controller if they are not
    /// recorded yet.
    pub(crate) async fn document_with_ipus(&self, id: &PartitionId) -> Result<PartitionDocument, Problem> {
        let mut document = self.document(id, None).await?;
        if document.state == HoldState::Active && document.ipus.is_empty() {
            let entry = self.entry(id).await?;
            let query = tokio::time::timeout(NO_WAIT_TIMEOUT, self.ledger.places(&entry));
            document.ipus = query.await.unwrap_or_default();
        }
        Ok(document)
    }

    /// Runs a repair now, which compares ledger, controllers and owners.
    pub(crate) async fn repair(self: &Arc<Self>) -> Result<RepairDocument, Problem> {
        let app = Arc::clone(self);
        let work = kept::spawn(async move { app.ledger.repair(&*app.liveness).await });
        let report = work.await.map_err(|_| broken())??;
        self.metrics.record_repair(&report);
        self.work.notify_one();
        let mut document = RepairDocument::default();
        document.done = report.actions.iter().map(RepairAction::from).collect();
        let later = report.deferred.into_iter();
        document.unfinished = later
            .map(|(id, reason)| UnfinishedRepair::new(id, reason))
            .collect();
        let silent = report.unavailable.into_iter();
        document.unavailable = silent
            .map(|(name, reason)| UnavailableController::new(name, reason))
            .collect();
        document.quarantined = report.quarantined;
        Ok(document)
    }

    /// Returns the status of every queued request.
    pub(crate) async fn queue_statuses(&self) -> Result<BTreeMap<PartitionId, QueueStatus>, Problem> {
        let queue = self.ledger.queue().await?;
        let status = (1..).zip(queue).map(|(position, (id, decision))| match decision {
            QueueDecision::Wait(waiting) => (id, waiting),
            _ => (id, QueueStatus::next_in_queue(position)),
        });
        Ok(status.collect())
    }

    /// Waits for one of the [`MAX_LEDGER_READS`] permits.
    pub(crate) async fn acquire_ledger_read(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.ledger_reads.acquire().await.ok()
    }

    /// Returns the documents of all partitions, by id.
    pub(crate) async fn documents(&self) -> Result<Vec<PartitionDocument>, Problem> {
        let _permit = self.acquire_ledger_read().await;
        let entries = self.ledger.list().await?;
        let is_waiting = |entry: &Entry| matches!(entry.state, EntryState::Waiting { .. });
        let mut statuses = if entries.iter().any(is_waiting) {
            self.queue_statuses().await?
        } else {
            BTreeMap::new()
        };
        let document =
            |entry: &Entry| partition_api::document(entry, statuses.remove(&entry.id), &self.ledger);
        Ok(entries.iter().map(document).collect())
    }

    /// Returns the documents of the queue, by position.
    pub(crate) async fn queued_documents(&self) -> Result<Vec<PartitionDocument>, Problem> {
        let mut queued: Vec<_> = self
            .documents()
            .await?
            .into_iter()
            .filter(|document| document.state == HoldState::Waiting)
            .collect();
        queued.sort_by_key(|document| document.waiting.as_ref().map_or(0, |waiting| waiting.position));
        Ok(queued)
    }

    /// Returns the ledger entry of `id`, or a problem with status 404.
    pub(crate) async fn entry(&self, id: &PartitionId) -> Result<Entry, Problem> {
        self.ledger.get(id).await?.ok_or_else(|| {
            Problem::new(
                http::StatusCode::NOT_FOUND,
                "NotFound",
                format!("the ledger has no partition {id}"),
            )
        })
    }

    /// Resets the partition `id` of `owner` for `attempt`.
    pub(crate) async fn reset(
        self: &Arc<Self>,
        id: PartitionId,
        owner: Owner,
        attempt: u32,
        not_after: Option<Timestamp>,
    ) -> Result<PartitionDocument, Problem> {
        let (app, reset_id) = (Arc::clone(self), id.clone());
        let (_guard, caller) = Caller::new();
        let work = kept::spawn(async move {
            let _guard = app.start_progress(&reset_id);
            let expiry = expiry(not_after, &caller);
            app.ledger.reset_until(&reset_id, &owner, attempt, &expiry).await
        });
        work.await.map_err(|_| broken())??;
        self.document(&id, None).await
    }

    /// Releases the partition `id`, and returns its state as soon as it is deleted, at the latest after the
    /// wait of `params`.
    pub(crate) async fn delete(
        self: &Arc<Self>,
        id: PartitionId,
        owner: Owner,
        params: &Params,
    ) -> Result<DeletedDocument, Problem> {
        let (attempt, not_after, wait) = (params.attempt, params.not_after, params.wait);
        let may_force = params.force.unwrap_or(true);
        let (app, released_id) = (Arc::clone(self), id.clone());
        let (_guard, caller) = Caller::new();
        let mut work = kept::spawn(async move {
            let _guard = app.start_progress(&released_id);
            let expiry = expiry(not_after, &caller);
            let until = Instant::now() + wait;
            let ledger = &app.ledger;
            let mut outcome = if may_force {
                ledger
                    .release_until(&released_id, &owner, attempt, &expiry)
                    .await?
            } else {
                ledger
                    .release_without_force_until(&released_id, &owner, attempt, &expiry)
                    .await?
            };
            while matches!(outcome, Released::InProgress { .. })
                && app.removal_refusal(&released_id).is_none()
                && Instant::now() < until
                && !caller.is_disconnected()
            {
                tokio::time::sleep(POLL_INTERVAL).await;
                // A new request for the id in the meantime ends the release.
                match app.ledger.get(&released_id).await? {
                    Some(entry) if matches!(entry.state, EntryState::Releasing { .. }) => {
                        app.ledger.resume(&entry).await?;
                    }
                    _ => outcome = Released::Removed,
                }
            }
            Ok::<_, LedgerError>(outcome)
        });
        let outcome = match tokio::time::timeout(wait.max(NO_WAIT_TIMEOUT), &mut work).await {
            Ok(outcome) => outcome.map_err(|_| broken())??,
            // The release is recorded, and its controller is slow.
            Err(_) if self.is_releasing(&id).await? => Released::InProgress {
                detail: "the controller has not responded yet".to_owned(),
            },
            Err(_) => work.await.map_err(|_| broken())??,
        };
        Ok(self.deleted(id, outcome))
    }

    /// Returns the refusal of the controller to remove the partition without force, as this process last
    /// observed it.
    fn removal_refusal(&self, id: &PartitionId) -> Option<Reason> {
        self.ledger.cached(id)?.removal_reason()
    }

    fn deleted(&self, id: PartitionId, released: Released) -> DeletedDocument {
        match released {
            Released::InProgress { detail } => {
                let refusal = self.removal_refusal(&id);
                let mut document = DeletedDocument::releasing(id, detail);
                document.refusal = refusal;
                document
            }
            _ => DeletedDocument::deleted(id),
        }
    }

    /// Releases a quarantined partition, which has no owner, on the order of an administrator.
    pub(crate) async fn delete_quarantined(
        self: &Arc<Self>,
        id: PartitionId,
        params: &Params,
    ) -> Result<DeletedDocument, Problem> {
        let (app, released_id) = (Arc::clone(self), id.clone());
        let may_force = params.force.unwrap_or(true);
        let work = kept::spawn(async move {
            let _guard = app.start_progress(&released_id);
            if may_force {
                app.ledger.release_quarantined(&released_id).await
            } else {
                app.ledger.release_quarantined_without_force(&released_id).await
            }
        });
        let released = work.await.map_err(|_| broken())??;
        Ok(self.deleted(id, released))
    }

    /// Returns an error unless the proxy can serve requests now.
    pub(crate) async fn check_ready(&self) -> Result<(), Problem> {
        if *self.stop.borrow() {
            let detail = "the proxy is stopping";
            return Err(Problem::new(
                http::StatusCode::SERVICE_UNAVAILABLE,
                "Stopping",
                detail,
            ));
        }
        self.health.check_ready()?;
        Ok(self.ledger.refresh().await?)
    }

    /// Returns whether the ledger has an entry of this owner with the properties and the attempt of
    /// `request`.
    ///
    /// # Errors
    ///
    /// A conflict if the id belongs to another owner, so that no response shows the partition of another
    /// owner.
    async fn has_recorded(&self, request: &Request) -> Result<bool, Problem> {
        let Some(entry) = self.ledger.get(&request.id).await? else {
            return Ok(false);
        };
        if let Some(owner) = &entry.owner
            && (*owner != request.owner || entry.instance != request.instance)
        {
            return Err(LedgerError::Illegal(TransitionError::NotTheOwner {
                id: entry.id.clone(),
                owner: Some(Box::new(owner.clone())),
                instance: entry.instance,
            })
            .into());
        }
        Ok(entry.owner.is_some() && entry.attempt == request.attempt && entry.matches(&request.spec))
    }

    async fn is_releasing(&self, id: &PartitionId) -> Result<bool, Problem> {
        let entry = self.ledger.get(id).await?;
        Ok(entry.is_none_or(|entry| matches!(entry.state, EntryState::Releasing { .. })))
    }
}

fn expiry(not_after: Option<Timestamp>, caller: &Caller) -> Expiry {
    Expiry {
        not_after,
        caller: Some(caller.clone()),
    }
}

/// Returns the current time.
pub(crate) fn now() -> Timestamp {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(0).plus(elapsed)
}

/// Problem of a task that panicked or was cancelled at shutdown.
fn broken() -> Problem {
    Problem::new(
        http::StatusCode::INTERNAL_SERVER_ERROR,
        "Broken",
        "the request was interrupted; send it again",
    )
}
