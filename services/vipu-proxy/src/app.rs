//! State that all requests and workers share, and the operations of the API.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use ipu_allocator::{Allocator, EnsureOutcome, ReleaseOutcome, View};
use ipu_core::allocator::{Entry, OnNoCapacity, Phase, QueueStatus, Release, Request};
use ipu_core::{ErrorChain, Owner, PartitionId, Reason, Timestamp};
use ipu_proxy_client::{
    DeletedDocument, PartitionDocument, Readiness, RepairAction, RepairDocument, Subject,
    UnavailableController, UnfinishedRepair,
};
use ipu_vipu_client::{ControllerEndpoint, parse_controllers};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::Instant;

use crate::connector::Connector;
use crate::event_log::EventLog;
use crate::ipu_seconds::Consumption;
use crate::metrics::Metrics;
use crate::partition_api;
use crate::problem::Problem;
use crate::query::Params;

/// Time after which a request without `wait` returns the current state. A healthy controller has responded by
/// then, and an unresponsive one does not delay the client.
const NO_WAIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Time after which a request that is not to be queued returns the current state.
const NO_QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of concurrent reads of all entries: each renders a copy, and more of them are not faster.
const MAX_READS: usize = 8;

/// Longest time between two comparisons, in addition to their interval: a controller that hangs delays one.
const COMPARISON_TIMEOUT: Duration = Duration::from_secs(180);

/// State that requests and workers share.
pub(crate) struct App {
    pub(crate) allocator: Allocator,
    pub(crate) event_log: Arc<EventLog>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) consumption: Arc<Consumption>,
    /// Numbers of changes of queue, cordons and controllers.
    pub(crate) subjects: watch::Sender<[u64; Subject::ALL.len()]>,
    /// Start of this process by both clocks.
    started: (Instant, Timestamp),
    reads: Semaphore,
    /// Lock of reads of the usage log.
    pub(crate) usage_reads: tokio::sync::Mutex<()>,
    pub(crate) connector: Connector,
    compare_interval: Duration,
    /// Stop signal of all tasks.
    pub(crate) stop: watch::Sender<bool>,
}

impl App {
    pub(crate) fn new(allocator: Allocator, connector: Connector, compare_interval: Duration) -> Arc<Self> {
        let event_log = EventLog::of(allocator.changes(), ipu_proxy_client::now().as_millis());
        let consumption = Consumption::of(allocator.changes(), allocator.now());
        Arc::new(Self {
            allocator,
            event_log,
            consumption,
            subjects: watch::Sender::default(),
            started: (Instant::now(), ipu_proxy_client::now()),
            reads: Semaphore::new(MAX_READS),
            usage_reads: tokio::sync::Mutex::default(),
            metrics: Arc::clone(&connector.metrics),
            connector,
            compare_interval,
            stop: watch::Sender::new(false),
        })
    }

    /// Returns the time of a moment, always the same for the same moment; the start of this process for none.
    pub(crate) fn time_of(&self, moment: Option<Instant>) -> Timestamp {
        let (started, at) = self.started;
        moment.map_or(at, |moment| at.plus(moment.saturating_duration_since(started)))
    }

    /// Returns a receiver that changes when the proxy stops.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Replaces the list of controllers by the one in `text`, and drains removed controllers.
    ///
    /// Their addresses are compared first, so that a second name of a listed controller gets no partition.
    pub(crate) async fn replace_controllers(&self, text: &str) -> Result<(), String> {
        let endpoints = parse_controllers(text).map_err(|error| ErrorChain(&error).to_string())?;
        let connect = |endpoint: &ControllerEndpoint| self.connector.connect(endpoint);
        let pool = self.allocator.pool();
        let aliases = crate::addresses::compare(pool, &endpoints).await;
        let replaced = pool.replace(&endpoints, connect);
        crate::addresses::mark(pool, aliases);
        // The partitions of a new controller may be missing from the record.
        self.allocator.compare_soon();
        replaced.map_err(|error| ErrorChain(&error).to_string())
    }

    /// Ensures the partition of `request`, and returns its state after at most `wait`.
    pub(crate) async fn ensure(
        &self,
        request: Request,
        wait: Duration,
    ) -> Result<PartitionDocument, Problem> {
        let shortest = match request.on_no_capacity {
            OnNoCapacity::Reject => NO_QUEUE_TIMEOUT,
            // A request whose controller works on it is answered at once.
            OnNoCapacity::Queue | OnNoCapacity::QueueUnlessImpossible => Duration::ZERO,
        };
        let until = Instant::now() + wait.max(shortest);
        let id = request.id.clone();
        match self.allocator.ensure(request, until).await? {
            EnsureOutcome::Rejected(status) => Err(Problem::does_not_fit(&status)),
            EnsureOutcome::Entry(entry) => match &entry.phase {
                Phase::Failed { errors } => {
                    let detail = format!("partition {id} is in error: {}", errors.join("; "));
                    Err(Problem::failed(detail, errors.clone()))
                }
                Phase::Queued => {
                    let view = self.allocator.view().await?;
                    // It may have started meanwhile.
                    let entry = view.get(&id).cloned().unwrap_or(entry);
                    Ok(self.entry_document(&entry, view.queue().get(&id)))
                }
                _ => Ok(self.entry_document(&entry, None)),
            },
        }
    }

    /// Returns the document of `entry`, with its queue status if the caller has it.
    pub(crate) fn entry_document(&self, entry: &Entry, status: Option<&QueueStatus>) -> PartitionDocument {
        partition_api::document(entry, status, &self.allocator)
    }

    /// Returns the document of `id`.
    pub(crate) async fn document(&self, id: &PartitionId) -> Result<PartitionDocument, Problem> {
        let entry = self.entry(id).await?;
        if !matches!(entry.phase, Phase::Queued) {
            return Ok(self.entry_document(&entry, None));
        }
        let view = self.allocator.view().await?;
        let entry = view.get(id).ok_or_else(|| not_found(id))?;
        Ok(self.entry_document(entry, view.queue().get(id)))
    }

    /// Compares record, controllers and owners now.
    pub(crate) async fn repair(&self) -> Result<RepairDocument, Problem> {
        let comparison = self.allocator.compare().await?;
        let mut document = RepairDocument::default();
        let actions = comparison.actions.into_iter();
        document.done = actions
            .map(|(action, id)| RepairAction::new(action.as_str(), id))
            .collect();
        let unfinished = comparison.unfinished.into_iter();
        document.unfinished = unfinished
            .map(|(id, reason)| UnfinishedRepair::new(id, reason.message))
            .collect();
        let unavailable = comparison.unavailable.into_iter();
        document.unavailable = unavailable
            .map(|(name, reason)| UnavailableController::new(name, reason.message))
            .collect();
        document.quarantined = comparison.quarantined;
        Ok(document)
    }

    /// Waits for one of the [`MAX_READS`] permits.
    pub(crate) async fn acquire_read(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.reads.acquire().await.ok()
    }

    /// Returns the documents of all partitions, by id.
    pub(crate) async fn partition_documents(&self) -> Result<Vec<PartitionDocument>, Problem> {
        let _permit = self.acquire_read().await;
        let view = self.allocator.view().await?;
        let document = |entry: &Arc<Entry>| self.entry_document(entry, queue_status(&view, entry));
        Ok(view.state().entries().map(document).collect())
    }

    /// Returns the documents of the queue, by position.
    pub(crate) async fn queued_documents(&self) -> Result<Vec<PartitionDocument>, Problem> {
        let _permit = self.acquire_read().await;
        let view = self.allocator.view().await?;
        let document = |entry: &Arc<Entry>| self.entry_document(entry, queue_status(&view, entry));
        Ok(view.state().queue().map(document).collect())
    }

    /// Returns the entry of `id`, or a problem with status 404.
    pub(crate) async fn entry(&self, id: &PartitionId) -> Result<Arc<Entry>, Problem> {
        self.allocator.get(id).await?.ok_or_else(|| not_found(id))
    }

    /// Resets the partition `id` of `owner` for `attempt`.
    pub(crate) async fn reset(
        &self,
        id: &PartitionId,
        owner: &Owner,
        attempt: u32,
        not_after: Option<Timestamp>,
    ) -> Result<PartitionDocument, Problem> {
        let entry = self.allocator.reset(id, owner, attempt, not_after).await?;
        Ok(self.entry_document(&entry, None))
    }

    /// Releases a partition, of `owner` or quarantined, and returns its state as soon as it is deleted, at
    /// the latest after the wait of `params`.
    pub(crate) async fn delete(
        &self,
        id: PartitionId,
        owner: Option<Owner>,
        params: &Params,
    ) -> Result<DeletedDocument, Problem> {
        let release = Release {
            id: id.clone(),
            owner,
            attempt: params.attempt,
            force: params.force.unwrap_or(true),
            not_after: params.not_after,
        };
        let until = Instant::now() + params.wait.max(NO_WAIT_TIMEOUT);
        match self.allocator.release(release, until).await? {
            ReleaseOutcome::Gone => Ok(DeletedDocument::deleted(id)),
            ReleaseOutcome::InProgress(entry) => {
                let reason = self.allocator.reason(&entry);
                let detail = reason.map_or_else(String::new, |reason: Reason| reason.message);
                let mut document = DeletedDocument::releasing(id, detail);
                document.refusal = entry.removal_reason();
                Ok(document)
            }
        }
    }

    /// Returns an error unless the proxy makes progress.
    pub(crate) fn check_alive(&self) -> Result<(), Problem> {
        if self.allocator.check_leading().is_err() {
            return Ok(());
        }
        let late = self.compare_interval + COMPARISON_TIMEOUT;
        let Some(since) = self.allocator.last_comparison().filter(|since| *since >= late) else {
            return Ok(());
        };
        let detail = format!("the last comparison was {} s ago", since.as_secs());
        Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Stuck", detail))
    }

    /// Returns whether the proxy can serve requests now, or stands by for the one that does.
    pub(crate) async fn check_ready(&self) -> Result<Readiness, Problem> {
        if *self.stop.borrow() {
            let detail = "the proxy is stopping";
            return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Stopping", detail));
        }
        match self.allocator.check_ready().await {
            Ok(()) => Ok(Readiness::Leads),
            Err(ipu_allocator::AllocatorError::Standby) => Ok(Readiness::StandsBy),
            Err(error) => Err(error.into()),
        }
    }
}

fn queue_status<'v>(view: &'v View, entry: &Entry) -> Option<&'v QueueStatus> {
    match entry.phase {
        Phase::Queued => view.queue().get(&entry.id),
        _ => None,
    }
}

fn not_found(id: &PartitionId) -> Problem {
    let detail = format!("the ledger has no partition {id}");
    Problem::new(StatusCode::NOT_FOUND, "NotFound", detail)
}
