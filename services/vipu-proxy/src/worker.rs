//! What goes on without anybody asking: requests that were answered before they were done, the line, and repair.

use std::sync::Arc;
use std::time::Duration;

use ipu_core::{Entry, EntryState, Verdict};
use ipu_ledger::request_of;
use tokio::task::JoinSet;

use crate::app::App;

/// How soon something that is under way is looked at again, at first.
const FIRST: Duration = Duration::from_millis(50);
/// How soon at the latest.
const LATEST: Duration = Duration::from_secs(1);
/// How soon the ledger is looked at when nothing is known to be under way: another proxy may have left something.
const IDLE: Duration = Duration::from_secs(5);
/// How many partitions are gone on with at the same time.
const AT_A_TIME: usize = 16;

/// Goes on with what is there to be gone on with, until the proxy stops.
pub(crate) async fn go_on(app: Arc<App>) {
    let mut stopping = app.stopping.clone();
    let mut pause = FIRST;
    loop {
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
            () = app.work.notified() => pause = FIRST,
            () = tokio::time::sleep(pause) => {}
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
        moves && !app.is_driven(&entry.id)
    };
    let mut todo: Vec<Entry> = entries.iter().filter(under_way).cloned().collect();
    let mut waiting = 0;
    if entries
        .iter()
        .any(|entry| matches!(entry.state, EntryState::Waiting { .. }))
    {
        for (id, verdict) in app.ledger.line().await? {
            waiting += 1;
            let entry = entries.iter().find(|entry| entry.id == id);
            if let (Verdict::Go { .. }, Some(entry)) = (verdict, entry)
                && !app.is_driven(&id)
            {
                todo.push(entry.clone());
            }
        }
    }
    let count = todo.len() + waiting;
    let mut tasks = JoinSet::new();
    for entry in todo {
        if tasks.len() >= AT_A_TIME {
            tasks.join_next().await;
        }
        let app = Arc::clone(app);
        tasks.spawn(async move { go_on_with(&app, entry).await });
    }
    while tasks.join_next().await.is_some() {}
    Ok(count)
}

async fn go_on_with(app: &App, entry: Entry) {
    let id = entry.id.clone();
    let done = match (&entry.state, request_of(&entry)) {
        (EntryState::Releasing { .. }, Some(request)) => app
            .ledger
            .release(&id, &request.owner, Some(entry.attempt))
            .await
            .map(drop),
        (_, Some(request)) => app.ledger.ensure(request).await.map(drop),
        // What nobody owns is finished by repair.
        _ => Ok(()),
    };
    if let Err(error) = done {
        tracing::info!(%id, %error, "later");
    }
}
