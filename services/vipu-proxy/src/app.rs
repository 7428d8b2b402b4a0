//! What all requests and the worker share, and what they ask of the ledger.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipu_core::{
    Entry, EntryState, OnNoCapacity, Owner, PartitionId, QueueDecision, QueueStatus, Request, Timestamp,
    TransitionError,
};
use ipu_ledger::{Caller, EnsureOutcome, Expiry, Ledger, LedgerError, Liveness, Released};
use ipu_proxy_client::{
    DeletedDocument, HoldState, PartitionDocument, RepairAction, RepairDocument, RepairLater,
    SilentController,
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

/// A controller behind any transport.
pub type AnyController = Arc<dyn VipuController>;
/// The ledger that the proxy serves.
pub type ProxyLedger = Ledger<AnyController, AnyStore>;

/// How long a request that does not want to wait is worked on before it is answered with how far it is: a controller that
/// is well has answered by then, and nobody who waits for a silent one is kept.
const SHORT_WAIT: Duration = Duration::from_secs(2);

/// The pause between two looks at a partition that is being given back.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Most reads of the whole ledger at a time: each holds a copy of it, and more of them at a time are not faster.
pub(crate) const LEDGER_READS: usize = 8;

/// What is shared.
pub(crate) struct App {
    pub(crate) ledger: ProxyLedger,
    /// Something is there to be gone on with.
    pub(crate) work: Notify,
    /// Ledger and controllers are to be compared soon.
    pub(crate) repair_requested: Notify,
    /// Partitions that a request is being worked on for, so that the worker need not.
    driven: Mutex<BTreeMap<PartitionId, u32>>,
    pub(crate) health: Health,
    pub(crate) feed: Arc<EventLog>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) consumption: Arc<Consumption>,
    ledger_reads: Semaphore,
    /// Held while the log of usage is read.
    pub(crate) usage_reads: tokio::sync::Mutex<()>,
    pub(crate) connector: Connector,
    /// Judges owners.
    pub(crate) alive: Arc<dyn Liveness>,
    /// Tells everything to stop.
    pub(crate) stop: watch::Sender<bool>,
}

/// A request that is being worked on; afterwards the worker may go on.
struct DriveGuard {
    app: Arc<App>,
    id: PartitionId,
}

impl Drop for DriveGuard {
    fn drop(&mut self) {
        let mut driven = self.app.driven.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = driven.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                driven.remove(&self.id);
            }
        }
        drop(driven);
        self.app.work.notify_one();
    }
}

impl App {
    pub(crate) fn new(ledger: ProxyLedger, connector: Connector, alive: Arc<dyn Liveness>) -> Arc<Self> {
        let feed = EventLog::of(ledger.changes(), now().as_millis());
        let consumption = Consumption::of(ledger.changes(), ledger.now());
        Arc::new(Self {
            ledger,
            feed,
            consumption,
            ledger_reads: Semaphore::new(LEDGER_READS),
            usage_reads: tokio::sync::Mutex::default(),
            metrics: Arc::clone(&connector.metrics),
            connector,
            alive,
            work: Notify::new(),
            repair_requested: Notify::new(),
            driven: Mutex::default(),
            health: Health::default(),
            stop: watch::Sender::new(false),
        })
    }

    /// Changes when the proxy is told to stop.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Makes this text the list of controllers; those that are taken off it are drained.
    /// Their addresses are compared first: a second name of a known controller takes no partition.
    pub(crate) async fn replace_controllers(&self, text: &str) -> Result<(), String> {
        let endpoints = parse_controllers(text).map_err(|error| chain(&error))?;
        let connect = |endpoint: &ControllerEndpoint| self.connector.connect(endpoint);
        let pool = self.ledger.pool();
        let same = crate::addresses::compare(pool, &endpoints).await;
        let replaced = pool.replace(&endpoints, connect);
        crate::addresses::mark(pool, same);
        // What a new one has may be known to the ledger or not.
        self.repair_requested.notify_one();
        replaced.map_err(|error| chain(&error))
    }

    fn drive(self: &Arc<Self>, id: &PartitionId) -> DriveGuard {
        let mut driven = self.driven.lock().unwrap_or_else(PoisonError::into_inner);
        *driven.entry(id.clone()).or_default() += 1;
        DriveGuard {
            app: Arc::clone(self),
            id: id.clone(),
        }
    }

    /// Whether a request is being worked on for `id` just now.
    pub(crate) fn is_driven(&self, id: &PartitionId) -> bool {
        let driven = self.driven.lock().unwrap_or_else(PoisonError::into_inner);
        driven.contains_key(id)
    }

    /// Sees to the partition of `request`, and answers how far it is after at most `wait`. What goes on then is up to the
    /// worker.
    pub(crate) async fn ensure(
        self: &Arc<Self>,
        mut request: Request,
        wait: Duration,
    ) -> Result<PartitionDocument, Problem> {
        let (app, id) = (Arc::clone(self), request.id.clone());
        let (line, asked) = (request.line, request.clone());
        // Another owner's request does not wait for its turn at the partition.
        let other = |entry: &Arc<Entry>| entry.owner.as_ref() != Some(&asked.owner);
        if self.ledger.known(&id).as_ref().is_some_and(other) {
            self.has(&asked).await?;
        }
        let (_guard, mut caller) = Caller::new();
        // A task of its own: a client that goes away must not leave the work half done.
        let mut work = kept::spawn(async move {
            let _driven = app.drive(&request.id);
            let until = Instant::now() + wait;
            // The first step is never given up: it records the request, however long a controller is silent.
            let expiry = expiry(request.not_after, &caller);
            let first = app.ledger.ensure_until(request.clone(), &expiry).await?;
            if wait.is_zero() || matches!(first, EnsureOutcome::Active(_) | EnsureOutcome::Refused(_)) {
                return Ok(Some(first));
            }
            let mut silent = |_: &QueueStatus| {};
            // A heartbeat that comes while this waits is newer.
            request.holder.clear();
            let active = app.ledger.active_after(request, first, &mut silent);
            tokio::select! {
                grant = active => grant.map(|grant| Some(EnsureOutcome::Active(grant))),
                () = tokio::time::sleep_until(until) => Ok(None),
                // The worker goes on with a request that is recorded.
                () = caller.disconnected() => Ok(None),
            }
        });
        let patience = if line == OnNoCapacity::Reject {
            wait.max(SHORT_WAIT * 5)
        } else {
            wait.max(SHORT_WAIT)
        };
        let answer = match tokio::time::timeout(patience, &mut work).await {
            Ok(answer) => answer,
            // Recorded, and its controller takes its time.
            Err(_) if self.has(&asked).await? => Ok(Ok(None)),
            Err(_) => work.await,
        };
        match answer.map_err(|_| broken())?? {
            Some(EnsureOutcome::Refused(waiting)) => Err(Problem::does_not_fit(waiting)),
            Some(EnsureOutcome::Waiting(waiting)) => self.own_document(&asked, Some(waiting)).await,
            Some(EnsureOutcome::Pending(ipu_ledger::Pending::Failed { errors })) => {
                Err(LedgerError::PartitionFailed { id, errors }.into())
            }
            // This process recorded that it is ready, so it need not ask the store.
            Some(EnsureOutcome::Active(_)) => match self.ledger.known(&id) {
                Some(entry) if entry.owner.as_ref() == Some(&asked.owner) => {
                    Ok(partition_api::document(&entry, None, &self.ledger))
                }
                _ => self.own_document(&asked, None).await,
            },
            _ => self.own_document(&asked, None).await,
        }
    }

    /// The document of the partition that `request` asked for. Another owner may have its id by now.
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

    /// The document of `id`, with what the line says if it is not known.
    pub(crate) async fn document(
        &self,
        id: &PartitionId,
        waiting: Option<QueueStatus>,
    ) -> Result<PartitionDocument, Problem> {
        let entry = self.entry(id).await?;
        let waiting = match (&entry.state, waiting) {
            (EntryState::Waiting { .. }, None) => match self.ledger.judge(id).await? {
                Some(QueueDecision::Wait(waiting)) => Some(waiting),
                // Its position is the number of those that stay ahead of it.
                Some(_) => self.line().await?.remove(id),
                None => None,
            },
            (EntryState::Waiting { .. }, known) => known,
            _ => None,
        };
        Ok(partition_api::document(&entry, waiting, &self.ledger))
    }

    /// The document of `id`, whose controller is asked where it is if nobody knows that yet.
    pub(crate) async fn document_with_places(&self, id: &PartitionId) -> Result<PartitionDocument, Problem> {
        let mut document = self.document(id, None).await?;
        if document.state == HoldState::Active && document.ipus.is_empty() {
            let entry = self.entry(id).await?;
            let asked = tokio::time::timeout(SHORT_WAIT, self.ledger.places(&entry));
            document.ipus = asked.await.unwrap_or_default();
        }
        Ok(document)
    }

    /// Compares ledger, controllers and owners now.
    pub(crate) async fn repair(self: &Arc<Self>) -> Result<RepairDocument, Problem> {
        let app = Arc::clone(self);
        let work = kept::spawn(async move { app.ledger.repair(&*app.alive).await });
        let report = work.await.map_err(|_| broken())??;
        self.metrics.repaired(&report);
        self.work.notify_one();
        let mut document = RepairDocument::default();
        document.done = report.done.iter().map(RepairAction::from).collect();
        let later = report.later.into_iter();
        document.later = later.map(|(id, why)| RepairLater::new(id, why)).collect();
        let silent = report.silent.into_iter();
        document.silent = silent
            .map(|(name, why)| SilentController::new(name, why))
            .collect();
        document.quarantined = report.quarantined;
        Ok(document)
    }

    /// What everybody in the line is told.
    pub(crate) async fn line(&self) -> Result<BTreeMap<PartitionId, QueueStatus>, Problem> {
        let line = self.ledger.queue().await?;
        let status = (1..).zip(line).map(|(position, (id, verdict))| match verdict {
            QueueDecision::Wait(waiting) => (id, waiting),
            _ => (id, QueueStatus::next_in_queue(position)),
        });
        Ok(status.collect())
    }

    /// Waits for one of the [`LEDGER_READS`], which lasts as long as the permit.
    pub(crate) async fn turn_to_read(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.ledger_reads.acquire().await.ok()
    }

    /// All partitions, by id.
    pub(crate) async fn documents(&self) -> Result<Vec<PartitionDocument>, Problem> {
        let _turn = self.turn_to_read().await;
        let entries = self.ledger.list().await?;
        let is_waiting = |entry: &Entry| matches!(entry.state, EntryState::Waiting { .. });
        let mut line = if entries.iter().any(is_waiting) {
            self.line().await?
        } else {
            BTreeMap::new()
        };
        let document = |entry: &Entry| partition_api::document(entry, line.remove(&entry.id), &self.ledger);
        Ok(entries.iter().map(document).collect())
    }

    /// The line, first come first.
    pub(crate) async fn waiting(&self) -> Result<Vec<PartitionDocument>, Problem> {
        let mut waiting: Vec<_> = self
            .documents()
            .await?
            .into_iter()
            .filter(|document| document.state == HoldState::Waiting)
            .collect();
        waiting.sort_by_key(|document| document.waiting.as_ref().map_or(0, |waiting| waiting.position));
        Ok(waiting)
    }

    pub(crate) async fn entry(&self, id: &PartitionId) -> Result<Entry, Problem> {
        self.ledger.get(id).await?.ok_or_else(|| {
            Problem::new(
                http::StatusCode::NOT_FOUND,
                "NotFound",
                format!("the ledger knows no partition {id}"),
            )
        })
    }

    /// Resets the partition `id` for `attempt`, of the owner that the ledger knows.
    pub(crate) async fn reset(
        self: &Arc<Self>,
        id: PartitionId,
        owner: Owner,
        attempt: u32,
        not_after: Option<Timestamp>,
    ) -> Result<PartitionDocument, Problem> {
        let (app, reset) = (Arc::clone(self), id.clone());
        let (_guard, caller) = Caller::new();
        let work = kept::spawn(async move {
            let _driven = app.drive(&reset);
            let expiry = expiry(not_after, &caller);
            app.ledger.reset_until(&reset, &owner, attempt, &expiry).await
        });
        work.await.map_err(|_| broken())??;
        self.document(&id, None).await
    }

    /// Releases the partition `id`, and returns its state when it is gone, at the latest after the wait of `params`.
    pub(crate) async fn delete(
        self: &Arc<Self>,
        id: PartitionId,
        owner: Owner,
        params: &Params,
    ) -> Result<DeletedDocument, Problem> {
        let (attempt, not_after, wait) = (params.attempt, params.not_after, params.wait);
        let (app, released) = (Arc::clone(self), id.clone());
        let (_guard, caller) = Caller::new();
        let mut work = kept::spawn(async move {
            let _driven = app.drive(&released);
            let expiry = expiry(not_after, &caller);
            let until = Instant::now() + wait;
            let mut done = app
                .ledger
                .release_until(&released, &owner, attempt, &expiry)
                .await?;
            while matches!(done, Released::InProgress { .. }) && Instant::now() < until && !caller.is_gone() {
                tokio::time::sleep(POLL_INTERVAL).await;
                // Whoever asks for it again meanwhile does not want that to be given back.
                match app.ledger.get(&released).await? {
                    Some(entry) if matches!(entry.state, EntryState::Releasing { .. }) => {
                        app.ledger.resume(&entry).await?;
                    }
                    _ => done = Released::Gone,
                }
            }
            Ok::<_, LedgerError>(done)
        });
        let answer = match tokio::time::timeout(wait.max(SHORT_WAIT), &mut work).await {
            Ok(answer) => answer.map_err(|_| broken())??,
            // That it is given back is recorded; its controller takes its time.
            Err(_) if self.is_releasing(&id).await? => Released::InProgress {
                detail: "the controller has not answered yet".to_owned(),
            },
            Err(_) => work.await.map_err(|_| broken())??,
        };
        Ok(deleted(id, answer))
    }

    /// Gives back what was found and nobody owns, on somebody's order.
    pub(crate) async fn delete_quarantined(
        self: &Arc<Self>,
        id: PartitionId,
    ) -> Result<DeletedDocument, Problem> {
        let (app, released) = (Arc::clone(self), id.clone());
        let work = kept::spawn(async move {
            let _driven = app.drive(&released);
            app.ledger.release_quarantined(&released).await
        });
        Ok(deleted(id, work.await.map_err(|_| broken())??))
    }

    /// Whether requests can be served now.
    pub(crate) async fn check_ready(&self) -> Result<(), Problem> {
        if *self.stop.borrow() {
            let detail = "the proxy is being stopped";
            return Err(Problem::new(
                http::StatusCode::SERVICE_UNAVAILABLE,
                "Stopping",
                detail,
            ));
        }
        self.health.check_ready()?;
        Ok(self.ledger.refresh().await?)
    }

    /// Whether the ledger has recorded this request: an entry of its owner with its properties, for its attempt.
    ///
    /// # Errors
    ///
    /// A conflict if the id is another owner's, so that no answer shows the partition of another owner.
    async fn has(&self, request: &Request) -> Result<bool, Problem> {
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

fn deleted(id: PartitionId, released: Released) -> DeletedDocument {
    match released {
        Released::InProgress { detail } => DeletedDocument::releasing(id, detail),
        _ => DeletedDocument::gone(id),
    }
}

/// The time of day.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(0).plus(since)
}

/// A task that panicked or was stopped with the process.
fn broken() -> Problem {
    Problem::new(
        http::StatusCode::INTERNAL_SERVER_ERROR,
        "Broken",
        "the request was not worked on to its end; ask again",
    )
}
