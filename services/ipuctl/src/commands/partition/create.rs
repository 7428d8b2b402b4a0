//! Requests a partition and waits until it is active. Withdraws a request that must not wait, can never fit
//! or is interrupted.

use std::time::Duration;

use ipu_core::{
    Entry, EntryState, JobKey, OnNoCapacity, Operation, Owner, PartitionId, PartitionSpec, QueueDecision,
    QueueStatus, Request, TransitionError,
};
use ipu_ledger::LedgerError;
use ipu_proxy_client::WaitingDocument;

use super::{MANUAL_OWNER, find_row, no_such, release};
use crate::cli::Format;
use crate::commands::gc;
use crate::connection::{Connection, does_not_fit, ledger_failure, other_properties};
use crate::display;
use crate::exit_code::{Code, Failure};
use crate::manifest::user;
use crate::output::Output;
use crate::process::Holder;
use crate::run::{Signals, never_fits};
use crate::table::render;

/// Properties of the requested partition.
pub(super) struct Requested {
    pub(super) spec: PartitionSpec,
    pub(super) priority: i32,
    pub(super) preemptible: bool,
    pub(super) on_no_capacity: OnNoCapacity,
}

/// Creates a partition of this user.
pub(super) async fn create(
    connection: &Connection,
    id: PartitionId,
    requested: Requested,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    connection.require_answer().await?;
    gc::sweep(connection).await?.report(output);
    let key = JobKey::new(user(), id.as_str(), "by-hand")
        .map_err(|error| Failure::because(Code::Usage, "partition id", error))?;
    let mut request = Request::with_id(
        id,
        Owner {
            kind: MANUAL_OWNER.to_owned(),
            job: key,
        },
        requested.spec,
    );
    request.holder = own_holder()?;
    request.priority = requested.priority;
    request.preemptible = requested.preemptible;
    request.on_no_capacity = requested.on_no_capacity;
    if requested.on_no_capacity == OnNoCapacity::Reject {
        reject_if_queued(connection, &request).await?;
    }
    activate(connection, request, format, output).await
}

/// Rejects a request that its owner has queued already, without withdrawing the queued one.
async fn reject_if_queued(connection: &Connection, request: &Request) -> Result<(), Failure> {
    let entry = connection.ledger.get(&request.id).await.map_err(ledger_failure)?;
    let is_queued = |entry: &Entry| {
        entry.owner.as_ref() == Some(&request.owner) && matches!(entry.state, EntryState::Waiting { .. })
    };
    if !entry.as_ref().is_some_and(is_queued) {
        return Ok(());
    }
    let decision = connection.ledger.queue_decision(&request.id).await;
    match decision.map_err(ledger_failure)? {
        Some(QueueDecision::Wait(status)) => Err(does_not_fit(&request.id, &status.reason)),
        _ => Ok(()),
    }
}

/// Requests a partition, waits until it is active, and shows its place in the queue. A request that can never
/// fit, or that must not queue, is withdrawn as soon as it is queued.
pub(super) async fn activate(
    connection: &Connection,
    request: Request,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let (id, owner, spec) = (request.id.clone(), request.owner.clone(), request.spec.clone());
    let attempt = request.attempt;
    let must_not_queue = request.on_no_capacity == OnNoCapacity::Reject;
    let (reject, mut rejected) = tokio::sync::watch::channel(None);
    let mut on_wait = |waiting: &QueueStatus| {
        // A request that fits is queued again if the controller rejects it.
        if must_not_queue || never_fits(&waiting.reason) {
            reject.send_replace(Some(waiting.reason.clone()));
        } else {
            output.status(Some(&display::wait_status(&WaitingDocument::from(waiting), &[])));
        }
    };
    let operation = if attempt == 0 { "Creating" } else { "Resetting" };
    output.transient(&format!("{operation} partition {id}…"));
    let granted = tokio::select! {
        granted = connection.ledger.ensure_active(request, &mut on_wait) => {
            granted.map_err(|error| request_failure(error, &spec))
        }
        Ok(reason) = rejected.wait_for(Option::is_some) => {
            let failure = reason.as_ref().map(|reason| does_not_fit(&id, reason));
            drop(reason);
            connection.ledger.release(&id, &owner, Some(attempt)).await.map_err(ledger_failure)?;
            failure.map_or_else(|| Err(no_such(&id)), Err)
        }
    };
    output.status(None);
    let grant = granted?;
    let row = find_row(connection, &id).await?;
    output.say(&format!(
        "partition {id} is active: {} of {}",
        display::places(&row.ipus),
        grant.controller
    ));
    if !format.is_text() {
        output.result(&render(format, &row, String::new)?);
    }
    Ok(Code::Done)
}

/// Timeout of the withdrawal of an interrupted request. The release is recorded within milliseconds; its
/// removal by a slow controller takes seconds.
const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(10);

/// Withdraws the interrupted request of this process, until [`WITHDRAW_TIMEOUT`] or another signal. The next
/// sweep completes an unfinished withdrawal.
pub(super) async fn withdraw(
    connection: &Connection,
    id: &PartitionId,
    signals: &mut Signals,
    output: &Output,
) {
    let work = async {
        let holder = own_holder()?;
        let entry = connection.ledger.get(id).await.map_err(ledger_failure)?;
        match entry.filter(|entry| is_unfinished_request(entry, &holder)) {
            Some(entry) => release(connection, &entry, false, output).await,
            None => Ok(()),
        }
    };
    let failure = tokio::select! {
        result = work => result.err().map(|failure| failure.chain()),
        () = signals.next() => Some("interrupted again".to_owned()),
        () = tokio::time::sleep(WITHDRAW_TIMEOUT) => Some("the controller does not answer".to_owned()),
    };
    output.status(None);
    if let Some(failure) = failure {
        output.warn(&format!(
            "partition {id} is not released yet: {failure}; run `ipuctl gc` later"
        ));
    }
}

/// Returns the token of this process in the ledger.
fn own_holder() -> Result<String, Failure> {
    Holder::own()
        .map(|holder| holder.to_string())
        .map_err(|error| Failure::because(Code::Host, "identify this process", error))
}

/// Returns whether `holder` requests the partition and does not have it yet. Excludes a partition that
/// existed before, and a request that another process has repeated since.
fn is_unfinished_request(entry: &Entry, holder: &str) -> bool {
    let is_unfinished = matches!(
        entry.state,
        EntryState::Waiting { .. }
            | EntryState::Intent {
                operation: Operation::Create,
                ..
            }
    );
    let is_manual = entry
        .owner
        .as_ref()
        .is_some_and(|owner| owner.kind == MANUAL_OWNER);
    is_unfinished && is_manual && entry.holder == holder
}

/// Maps an error of the ledger to a failure, which shows how an existing partition differs from the request.
fn request_failure(error: LedgerError, requested: &PartitionSpec) -> Failure {
    match &error {
        LedgerError::Illegal(TransitionError::OtherSpec { id, recorded }) => {
            other_properties(id, recorded, requested).unwrap_or_else(|| ledger_failure(error))
        }
        _ => ledger_failure(error),
    }
}
