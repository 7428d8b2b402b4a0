//! Repair: a three-way diff of ledger, controllers and owners, and the resulting actions.
//!
//! Listing and ledger cannot be read at one instant. The controllers are therefore listed first and the
//! ledger is read afterwards. An action that depends on the listing alone is verified by a status query, and
//! every change checks that the entry has not changed. The next repair fixes remaining differences.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use ipu_core::{
    Action, Change, ControllerName, ControllersSnapshot, Entry, EntryState, LedgerState, Owners, PartitionId,
    ServiceState,
};
use ipu_vipu_client::{VipuController, VipuError};
use tokio::time::Instant;

use crate::driver::Driver;
use crate::driver::create::{CreateOutcome, IntentOrigin};
use crate::error::LedgerError;
use crate::listings::unavailable;
use crate::liveness::Liveness;
use crate::outcome::{EnsureOutcome, Pending, Released, RepairReport};
use crate::store::LedgerStore;

/// Maximum number of partitions under repair at the same time.
const MAX_CONCURRENT_CALLS: usize = 32;

pub(crate) async fn repair<C: VipuController + ?Sized + 'static, S: LedgerStore>(
    driver: &Arc<Driver<C, S>>,
    alive: &dyn Liveness,
) -> Result<RepairReport, LedgerError> {
    let options = &driver.options;
    let mut snapshot = driver.listings.snapshot_now(options).await;
    let entries: BTreeMap<PartitionId, Entry> = driver
        .commit
        .read(|state| {
            let entries = state.entries();
            entries.map(|entry| (entry.id.clone(), entry.clone())).collect()
        })
        .await?;
    // After the ledger read, which loads the entries of other processes.
    driver.record_aliases(&mut snapshot).await;
    let snapshot = Arc::new(snapshot);
    let owners = Arc::new(owners(entries.values(), alive).await);
    let actions = driver
        .commit
        .read(|state| state.diff(&snapshot, &owners, options.orphan_grace, options.now()))
        .await?;
    let mut report = RepairReport::default();
    for view in &snapshot.controllers {
        if let Err(reason) = &view.listing {
            report
                .unavailable
                .push((view.name.clone(), reason.message.clone()));
        }
    }
    // Concurrent actions share their writes, and one that waits for its controller does not delay the
    // others.
    let (snapshot, entries) = (&snapshot, &entries);
    let mut applied = stream::iter(actions)
        .map(|action| async {
            let _lock = driver.inflight.lock(action.id()).await;
            if !verify(driver, snapshot, &action).await {
                return None;
            }
            let expected = entries.get(action.id()).cloned();
            let later = apply_action(driver, snapshot, &owners, &action, expected).await;
            tracing::info!(id = %action.id(), action = action.label(), ?later, "repaired");
            Some((action, later))
        })
        .buffered(MAX_CONCURRENT_CALLS);
    while let Some(done) = applied.next().await {
        let Some((action, later)) = done else { continue };
        match later {
            Ok(None) => {}
            Ok(Some(reason)) => report.deferred.push((action.id().clone(), reason)),
            Err(error @ LedgerError::Store(_)) => return Err(error),
            Err(error) => report.deferred.push((action.id().clone(), error.to_string())),
        }
        report.actions.push(action);
    }
    drop(applied);
    let (quarantined, conflicts) = driver
        .commit
        .read(|state| {
            let quarantined = |entry: &&Entry| matches!(entry.state, EntryState::Quarantined);
            let quarantined = state.entries().filter(quarantined).count();
            (quarantined, state.placement_conflicts(snapshot))
        })
        .await?;
    for conflict in &conflicts {
        tracing::error!(
            id = %conflict.id, controller = %conflict.controller,
            "the controller does not list this partition, and its IPUs are in another one"
        );
    }
    report.conflicts = conflicts;
    report.quarantined = u32::try_from(quarantined).unwrap_or(u32::MAX);
    Ok(report)
}

async fn owners<'a>(entries: impl Iterator<Item = &'a Entry> + Send, alive: &dyn Liveness) -> Owners {
    let mut owners = Owners::default();
    for entry in entries.filter(|entry| entry.owner.is_some()) {
        owners
            .liveness
            .insert(entry.id.clone(), alive.liveness_of(entry).await);
    }
    let claims = alive.claims().await.into_iter();
    owners.claims = claims
        .map(|claim| (claim.request.id.clone(), claim))
        .collect::<BTreeMap<_, _>>();
    owners
}

/// Verifies by a status query an action that depends on the listing alone.
async fn verify<C: VipuController + ?Sized + 'static, S: LedgerStore>(
    driver: &Driver<C, S>,
    snapshot: &ControllersSnapshot,
    action: &Action,
) -> bool {
    if !action.must_be_verified() {
        return true;
    }
    let Some(name) = controller_name(driver, snapshot, action).await else {
        return false;
    };
    let Some(controller) = driver.listings.pool().get(&name) else {
        return false;
    };
    let call = controller.partition_status(action.id());
    let status = driver
        .listings
        .call(&name, driver.options.call_deadline, call)
        .await;
    match action {
        Action::Adopt { .. } | Action::Quarantine { .. } => status.is_ok(),
        _ => matches!(status, Err(VipuError::NotFound { .. })),
    }
}

async fn controller_name<C: VipuController + ?Sized + 'static, S: LedgerStore>(
    driver: &Driver<C, S>,
    snapshot: &ControllersSnapshot,
    action: &Action,
) -> Option<ControllerName> {
    match action {
        Action::Adopt { controller, .. }
        | Action::Quarantine { controller, .. }
        | Action::Lost { controller, .. } => Some(controller.clone()),
        other => {
            let id: &PartitionId = other.id();
            let recorded = driver
                .commit
                .read(|state| state.get(id).and_then(|entry| entry.controller.clone()));
            recorded.await.ok().flatten().filter(|name| {
                snapshot
                    .controllers
                    .iter()
                    .any(|view| view.name == *name && view.service != ServiceState::Draining)
                    || driver.listings.pool().get(name).is_some()
            })
        }
    }
}

/// Returns whether `entry` still has the holder whose liveness was judged: another process may have requested
/// it again since. Progress of the entry does not matter, because the last write of a dying process may have
/// come in between.
fn is_unchanged(action: &Action, entry: Option<&Entry>, expected: Option<&Entry>) -> bool {
    if matches!(action, Action::Finish { .. }) {
        return true;
    }
    let facts = |entry: &Entry| (entry.holder.clone(), entry.attempt, entry.ticket);
    entry.map(facts) == expected.map(facts)
}

/// Applies an action. Returns the reason if it must be resumed later.
async fn apply_action<C: VipuController + ?Sized + 'static, S: LedgerStore>(
    driver: &Arc<Driver<C, S>>,
    latest: &Arc<ControllersSnapshot>,
    owners: &Arc<Owners>,
    action: &Action,
    expected: Option<Entry>,
) -> Result<Option<String>, LedgerError> {
    let id = action.id().clone();
    let (decided, snapshot, owners, window) = (
        action.clone(),
        Arc::clone(latest),
        Arc::clone(owners),
        driver.window(),
    );
    let driving = matches!(action, Action::Finish { .. } | Action::Release { .. });
    let decide = move |state: &LedgerState| {
        let before = state.get(&id).map(|entry| entry.state.clone());
        if !is_unchanged(&decided, state.get(&id), expected.as_ref()) {
            return ((None, false), Vec::new());
        }
        let changes = state.changes_for(&decided, &snapshot, &owners, window);
        let changed = changes.iter().rev().find_map(|change| match change {
            Change::Put(entry) if entry.id == id => Some(Some(Entry::clone(entry))),
            Change::Remove(removed) if *removed == id => Some(None),
            _ => None,
        });
        let entry = changed.unwrap_or_else(|| state.get(&id).cloned());
        let fresh = before != entry.as_ref().map(|entry| entry.state.clone());
        ((entry, fresh), changes)
    };
    let (entry, fresh) = driver.commit.transact(decide).await?;
    let Some(entry) = entry.filter(|_| driving) else {
        return Ok(None);
    };
    if let Some(reason) = unresponsive(driver, latest, &entry) {
        return Ok(Some(reason));
    }
    let intent = if fresh {
        IntentOrigin::Fresh
    } else {
        IntentOrigin::Found
    };
    let timeout = driver.options.max_poll_interval;
    match entry.state {
        EntryState::Intent { .. } => Ok(unfinished(driver.drive_intent(entry, intent, 0, timeout).await?)),
        EntryState::Releasing { .. } => {
            match driver.remove(entry, intent, timeout.max(Duration::ZERO)).await? {
                Released::InProgress { detail } => Ok(Some(detail)),
                _ => Ok(None),
            }
        }
        _ => Ok(None),
    }
}

/// Returns the reason why the controller of `entry` is not called now. A controller that hangs would delay
/// the repair by the deadline of a call for each of its entries, and delay all other controllers too.
fn unresponsive<C: VipuController + ?Sized + 'static, S: LedgerStore>(
    driver: &Driver<C, S>,
    snapshot: &ControllersSnapshot,
    entry: &Entry,
) -> Option<String> {
    let name = entry.controller.as_ref()?;
    let view = snapshot.controllers.iter().find(|view| view.name == *name);
    if let Some(Err(reason)) = view.map(|view| &view.listing) {
        return Some(reason.message.clone());
    }
    let health = driver.listings.pool().member(name)?.health;
    (!health.is_available(Instant::now())).then(|| unavailable(name, health.last_error.as_ref()).message)
}

fn unfinished(outcome: CreateOutcome) -> Option<String> {
    match outcome {
        CreateOutcome::Done(EnsureOutcome::Pending(Pending::Unanswered { controller, detail })) => {
            Some(format!("controller {controller}: {detail}"))
        }
        CreateOutcome::Done(EnsureOutcome::Pending(
            Pending::Creating | Pending::Resetting | Pending::Releasing,
        )) => Some("the controller has not finished".into()),
        _ => None,
    }
}
