//! Repair: the three-way diff, taken at a moment that is as true as it gets, and what follows from it.
//!
//! The listing may be older than the ledger and the ledger older than the listing. So the controllers are asked first and
//! the ledger is read after; whatever rests on the listing alone is asked again by its status; and every change checks
//! that the entry has not moved on. What is still wrong then is put right by the next repair.

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

/// How many partitions are put right at the same time.
const MAX_CONCURRENT_CALLS: usize = 32;

pub(crate) async fn repair<C: VipuController + ?Sized + 'static, S: LedgerStore>(
    driver: &Arc<Driver<C, S>>,
    alive: &dyn Liveness,
) -> Result<RepairReport, LedgerError> {
    let options = &driver.options;
    let mut world = driver.views.world_now(options).await;
    let entries: BTreeMap<PartitionId, Entry> = driver
        .commit
        .read(|state| {
            let entries = state.entries();
            entries.map(|entry| (entry.id.clone(), entry.clone())).collect()
        })
        .await?;
    // After the read of the ledger, which tells this process of partitions that others hold.
    driver.record_aliases(&mut world).await;
    let world = Arc::new(world);
    let owners = Arc::new(owners(entries.values(), alive).await);
    let actions = driver
        .commit
        .read(|state| state.diff(&world, &owners, options.orphan_grace, options.now()))
        .await?;
    let mut report = RepairReport::default();
    for view in &world.controllers {
        if let Err(reason) = &view.listing {
            report.silent.push((view.name.clone(), reason.message.clone()));
        }
    }
    // Those that come together share their writes, and one that waits for its controller does not keep the others.
    let (world, entries) = (&world, &entries);
    let mut taken = stream::iter(actions)
        .map(|action| async {
            let _alone = driver.book.lock(action.id()).await;
            if !still_holds(driver, world, &action).await {
                return None;
            }
            let judged = entries.get(action.id()).cloned();
            let later = take(driver, world, &owners, &action, judged).await;
            tracing::info!(id = %action.id(), action = action.label(), ?later, "repaired");
            Some((action, later))
        })
        .buffered(MAX_CONCURRENT_CALLS);
    while let Some(done) = taken.next().await {
        let Some((action, later)) = done else { continue };
        match later {
            Ok(None) => {}
            Ok(Some(why)) => report.later.push((action.id().clone(), why)),
            Err(error @ LedgerError::Store(_)) => return Err(error),
            Err(error) => report.later.push((action.id().clone(), error.to_string())),
        }
        report.done.push(action);
    }
    drop(taken);
    let (quarantined, conflicts) = driver
        .commit
        .read(|state| {
            let quarantined = |entry: &&Entry| matches!(entry.state, EntryState::Quarantined);
            let quarantined = state.entries().filter(quarantined).count();
            (quarantined, state.placement_conflicts(world))
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
            .insert(entry.id.clone(), alive.life_of(entry).await);
    }
    let claims = alive.claims().await.into_iter();
    owners.claims = claims
        .map(|claim| (claim.request.id.clone(), claim))
        .collect::<BTreeMap<_, _>>();
    owners
}

/// Asks for the status where the action rests on the listing alone.
async fn still_holds<C: VipuController + ?Sized + 'static, S: LedgerStore>(
    driver: &Driver<C, S>,
    world: &ControllersSnapshot,
    action: &Action,
) -> bool {
    if !action.must_be_verified() {
        return true;
    }
    let Some(name) = place_of(driver, world, action).await else {
        return false;
    };
    let Some(controller) = driver.views.pool().get(&name) else {
        return false;
    };
    let call = controller.partition_status(action.id());
    let status = driver.views.call(&name, driver.options.call_deadline, call).await;
    match action {
        Action::Adopt { .. } | Action::Quarantine { .. } => status.is_ok(),
        _ => matches!(status, Err(VipuError::NotFound { .. })),
    }
}

async fn place_of<C: VipuController + ?Sized + 'static, S: LedgerStore>(
    driver: &Driver<C, S>,
    world: &ControllersSnapshot,
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
                world
                    .controllers
                    .iter()
                    .any(|view| view.name == *name && view.service != ServiceState::Draining)
                    || driver.views.pool().get(name).is_some()
            })
        }
    }
}

/// Whether `entry` is still whose life was judged: another process may have asked for it anew since. How far it is does not
/// matter: the last write of a dying process may have come in between.
fn is_as_judged(action: &Action, entry: Option<&Entry>, judged: Option<&Entry>) -> bool {
    if matches!(action, Action::Finish { .. }) {
        return true;
    }
    let facts = |entry: &Entry| (entry.holder.clone(), entry.attempt, entry.ticket);
    entry.map(facts) == judged.map(facts)
}

/// Takes an action. Answers why it has to be gone on with later, if so.
async fn take<C: VipuController + ?Sized + 'static, S: LedgerStore>(
    driver: &Arc<Driver<C, S>>,
    seen: &Arc<ControllersSnapshot>,
    owners: &Arc<Owners>,
    action: &Action,
    judged: Option<Entry>,
) -> Result<Option<String>, LedgerError> {
    let id = action.id().clone();
    let (decided, world, owners, window) = (
        action.clone(),
        Arc::clone(seen),
        Arc::clone(owners),
        driver.window(),
    );
    let driving = matches!(action, Action::Finish { .. } | Action::Release { .. });
    let decide = move |state: &LedgerState| {
        let before = state.get(&id).map(|entry| entry.state.clone());
        if !is_as_judged(&decided, state.get(&id), judged.as_ref()) {
            return ((None, false), Vec::new());
        }
        let changes = state.act(&decided, &world, &owners, window);
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
    if let Some(why) = silent(driver, seen, &entry) {
        return Ok(Some(why));
    }
    let intent = if fresh {
        IntentOrigin::Fresh
    } else {
        IntentOrigin::Found
    };
    let patience = driver.options.longest_poll;
    match entry.state {
        EntryState::Intent { .. } => Ok(unfinished(driver.make(entry, intent, 0, patience).await?)),
        EntryState::Releasing { .. } => {
            match driver.remove(entry, intent, patience.max(Duration::ZERO)).await? {
                Released::InProgress { detail } => Ok(Some(detail)),
                _ => Ok(None),
            }
        }
        _ => Ok(None),
    }
}

/// Why the controller of `entry` is not asked for it now. One that hangs would keep the repair for the deadline of a call with
/// each of its entries, and all others with it.
fn silent<C: VipuController + ?Sized + 'static, S: LedgerStore>(
    driver: &Driver<C, S>,
    world: &ControllersSnapshot,
    entry: &Entry,
) -> Option<String> {
    let name = entry.controller.as_ref()?;
    let view = world.controllers.iter().find(|view| view.name == *name);
    if let Some(Err(reason)) = view.map(|view| &view.listing) {
        return Some(reason.message.clone());
    }
    let health = driver.views.pool().member(name)?.health;
    (!health.is_available(Instant::now())).then(|| unavailable(name, health.last_error.as_ref()).message)
}

fn unfinished(made: CreateOutcome) -> Option<String> {
    match made {
        CreateOutcome::Answer(EnsureOutcome::Pending(Pending::Unanswered { controller, detail })) => {
            Some(format!("controller {controller}: {detail}"))
        }
        CreateOutcome::Answer(EnsureOutcome::Pending(
            Pending::Creating | Pending::Resetting | Pending::Releasing,
        )) => Some("the controller is still at it".into()),
        _ => None,
    }
}
