//! Background workers: the queue worker continues recorded operations and queued requests, the repair worker
//! repairs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ipu_core::{Entry, EntryState, PartitionId, QueueDecision};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::app::App;

/// First interval between two scans while operations are pending.
const MIN_SCAN_INTERVAL: Duration = Duration::from_millis(50);
/// Longest interval between two scans while operations are pending.
const MAX_SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between two scans without pending operations: another proxy may have left some.
const IDLE_INTERVAL: Duration = Duration::from_secs(5);
/// Interval after a repair without a response of some controller, so that its partitions are compared soon
/// after it recovers. Repair does not call a controller every time while its circuit breaker is open.
const UNRESPONSIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Minimum interval between two scans regardless of notifications: every scan reads the whole ledger, and
/// mostly the request of the notification continues by itself.
const DEBOUNCE_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of partitions that one scan continues concurrently.
const MAX_CONCURRENT_REQUESTS: usize = 16;

/// Continues pending operations and queued requests until the proxy stops.
pub(crate) async fn run_queue(app: Arc<App>) {
    let mut stopping = app.stopping();
    let mut pause = MIN_SCAN_INTERVAL;
    // A request that a restored old ledger shows as queued may hold a partition.
    while !app.health.until_repaired(IDLE_INTERVAL).await {
        app.health.beat("queue", IDLE_INTERVAL);
        if *stopping.borrow() {
            return;
        }
    }
    loop {
        app.health.beat("queue", IDLE_INTERVAL);
        pause = match scan(&app).await {
            Ok(0) => IDLE_INTERVAL,
            Ok(_) => pause
                .min(MAX_SCAN_INTERVAL)
                .saturating_mul(2)
                .min(MAX_SCAN_INTERVAL),
            Err(error) => {
                tracing::warn!(error = error.code(), "cannot continue pending operations");
                MAX_SCAN_INTERVAL
            }
        };
        tokio::select! {
            _ = stopping.wait_for(|stop| *stop) => return,
            () = wait_for_work(&app) => pause = MIN_SCAN_INTERVAL,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Waits until the worker is notified, at least for [`DEBOUNCE_INTERVAL`].
async fn wait_for_work(app: &App) {
    tokio::time::sleep(DEBOUNCE_INTERVAL).await;
    app.work.notified().await;
}

/// Repairs now and then at every `interval`, until the proxy stops: compares ledger, controllers and owners.
pub(crate) async fn run_repair(app: Arc<App>, interval: Duration) {
    let mut stopping = app.stopping();
    loop {
        app.health.beat("repair", interval);
        crate::controllers::drain_unlisted(&app).await;
        crate::addresses::mark_aliases(&app).await;
        let repaired = match app.ledger.end_disabled_preemption().await {
            Ok(()) => app.ledger.repair(&*app.liveness).await,
            Err(error) => Err(error),
        };
        let pause = match repaired {
            Ok(report) => {
                app.health.mark_repaired();
                app.metrics.record_repair(&report);
                for (id, reason) in &report.deferred {
                    tracing::info!(%id, reason, "a later repair continues the partition");
                }
                remove_drained(&app).await;
                if report.unavailable.is_empty() {
                    interval
                } else {
                    interval.min(UNRESPONSIVE_INTERVAL)
                }
            }
            Err(error) => {
                tracing::warn!(error = %crate::problem::chain(&error), "repair failed");
                interval.min(MAX_SCAN_INTERVAL)
            }
        };
        app.work.notify_one();
        tokio::select! {
            _ = stopping.wait_for(|stop| *stop) => return,
            () = app.repair_requested.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Removes controllers from the pool that are off the list and have no partition left.
async fn remove_drained(app: &App) {
    let pool = app.ledger.pool();
    let draining = pool.draining();
    if draining.is_empty() {
        return;
    }
    let Ok(entries) = app.ledger.list().await else {
        return;
    };
    for member in draining {
        if entries
            .iter()
            .all(|entry| entry.controller.as_ref() != Some(&member.name))
        {
            tracing::info!(controller = %member.name, "removed a drained controller");
            pool.forget(&member.name);
        }
    }
}

/// Runs one scan; returns the number of partitions that are still pending.
async fn scan(app: &Arc<App>) -> Result<usize, crate::problem::Problem> {
    let entries = app.ledger.list().await?;
    let is_pending = |entry: &&Entry| {
        let has_operation = matches!(
            entry.state,
            EntryState::Intent { .. } | EntryState::Releasing { .. }
        );
        has_operation && !app.is_in_progress(&entry.id) && is_controller_available(app, entry)
    };
    let mut todo: Vec<Entry> = entries.iter().filter(is_pending).cloned().collect();
    let is_queued = |entry: &&Entry| matches!(entry.state, EntryState::Waiting { .. });
    let queued: BTreeMap<&PartitionId, &Entry> = entries
        .iter()
        .filter(is_queued)
        .map(|entry| (&entry.id, entry))
        .collect();
    if !queued.is_empty() {
        for (id, decision) in app.ledger.queue().await? {
            if let (QueueDecision::Start { .. }, Some(entry)) = (decision, queued.get(&id))
                && !app.is_in_progress(&id)
            {
                todo.push((*entry).clone());
            }
        }
    }
    let count = todo.len() + queued.len();
    let mut tasks = JoinSet::new();
    for entry in todo {
        if tasks.len() >= MAX_CONCURRENT_REQUESTS {
            tasks.join_next().await;
            // A long scan is still progress.
            app.health.beat("queue", IDLE_INTERVAL);
        }
        let app = Arc::clone(app);
        tasks.spawn(async move { resume(&app, entry).await });
    }
    while tasks.join_next().await.is_some() {
        app.health.beat("queue", IDLE_INTERVAL);
    }
    Ok(count)
}

/// Returns whether the controller of `entry` is available now, so that a hanging one does not delay the
/// others.
fn is_controller_available(app: &App, entry: &Entry) -> bool {
    let name = entry.controller.as_ref();
    let member = name.and_then(|name| app.ledger.pool().member(name));
    member.is_none_or(|member| member.health.is_available(Instant::now()))
}

async fn resume(app: &App, entry: Entry) {
    let id = entry.id.clone();
    if let Err(error) = app.ledger.resume(&entry).await {
        tracing::info!(%id, %error, "a later scan continues the partition");
    }
}
