//! What goes on without anybody asking: requests that were answered before they were done, the line, and repair.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ipu_core::{Entry, EntryState, PartitionId, QueueDecision};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::app::App;

/// How soon something that is under way is looked at again, at first.
const FIRST: Duration = Duration::from_millis(50);
/// How soon at the latest.
const LATEST: Duration = Duration::from_secs(1);
/// How soon the ledger is looked at when nothing is known to be under way: another proxy may have left something.
const IDLE: Duration = Duration::from_secs(5);
/// How soon it is compared again after a repair that could not ask a controller: what that one has is seen soon after it is
/// back. One that is known to be silent is not asked each time.
const SILENT: Duration = Duration::from_secs(5);
/// The least pause between two looks, however often it is told that there is something to be gone on with: each costs a
/// look at all of the ledger, and mostly whoever is told of asks on and sees to it himself.
const GAP: Duration = Duration::from_millis(20);
/// How many partitions are gone on with at the same time.
const MAX_CONCURRENT_REQUESTS: usize = 16;

/// Goes on with what is there to be gone on with, until the proxy stops.
pub(crate) async fn run_queue(app: Arc<App>) {
    let mut stopping = app.stopping();
    let mut pause = FIRST;
    // What an old copy of the ledger calls waiting may be in use.
    while !app.health.until_repaired(IDLE).await {
        app.health.beat("line", IDLE);
        if *stopping.borrow() {
            return;
        }
    }
    loop {
        app.health.beat("line", IDLE);
        pause = match step(&app).await {
            Ok(0) => IDLE,
            Ok(_) => pause.min(LATEST).saturating_mul(2).min(LATEST),
            Err(error) => {
                tracing::warn!(error = error.code(), "cannot go on with what is under way");
                LATEST
            }
        };
        tokio::select! {
            _ = stopping.wait_for(|stop| *stop) => return,
            () = run_on_changes(&app) => pause = FIRST,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Waits until there is something to be gone on with, and a little longer.
async fn run_on_changes(app: &App) {
    tokio::time::sleep(GAP).await;
    app.work.notified().await;
}

/// Compares ledger, controllers and owners now, and then every `interval`, until the proxy stops.
pub(crate) async fn run_repair(app: Arc<App>, interval: Duration) {
    let mut stopping = app.stopping();
    loop {
        app.health.beat("repair", interval);
        crate::controllers::remember(&app).await;
        crate::addresses::mark_same(&app).await;
        let pause = match app.ledger.repair(&*app.alive).await {
            Ok(report) => {
                app.health.repaired();
                app.metrics.repaired(&report);
                for (id, why) in &report.later {
                    tracing::info!(%id, why, "repair goes on with it later");
                }
                forget_drained(&app).await;
                if report.silent.is_empty() {
                    interval
                } else {
                    interval.min(SILENT)
                }
            }
            Err(error) => {
                tracing::warn!(error = %crate::problem::chain(&error), "repair");
                interval.min(LATEST)
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

/// Controllers that were taken off the list and hold nothing any more are let go of.
async fn forget_drained(app: &App) {
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
            tracing::info!(controller = %member.name, "drained");
            pool.forget(&member.name);
        }
    }
}

/// One round. Answers how many partitions are still under way.
async fn step(app: &Arc<App>) -> Result<usize, crate::problem::Problem> {
    let entries = app.ledger.list().await?;
    let under_way = |entry: &&Entry| {
        let moves = matches!(
            entry.state,
            EntryState::Intent { .. } | EntryState::Releasing { .. }
        );
        moves && !app.is_driven(&entry.id) && is_asked(app, entry)
    };
    let mut todo: Vec<Entry> = entries.iter().filter(under_way).cloned().collect();
    let queued = |entry: &&Entry| matches!(entry.state, EntryState::Waiting { .. });
    let queued: BTreeMap<&PartitionId, &Entry> = entries
        .iter()
        .filter(queued)
        .map(|entry| (&entry.id, entry))
        .collect();
    if !queued.is_empty() {
        for (id, verdict) in app.ledger.queue().await? {
            if let (QueueDecision::Start { .. }, Some(entry)) = (verdict, queued.get(&id))
                && !app.is_driven(&id)
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
            // However many there are, it goes on.
            app.health.beat("line", IDLE);
        }
        let app = Arc::clone(app);
        tasks.spawn(async move { go_on_with(&app, entry).await });
    }
    while tasks.join_next().await.is_some() {
        app.health.beat("line", IDLE);
    }
    Ok(count)
}

/// Whether the controller of `entry` may be asked now: what one that hangs has does not keep that of the others.
fn is_asked(app: &App, entry: &Entry) -> bool {
    let name = entry.controller.as_ref();
    let member = name.and_then(|name| app.ledger.pool().member(name));
    member.is_none_or(|member| member.health.is_available(Instant::now()))
}

async fn go_on_with(app: &App, entry: Entry) {
    let id = entry.id.clone();
    if let Err(error) = app.ledger.resume(&entry).await {
        tracing::info!(%id, %error, "later");
    }
}
