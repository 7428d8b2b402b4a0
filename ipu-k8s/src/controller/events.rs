//! The Events that a reconciliation publishes, in the words of the job's status.

use std::collections::BTreeMap;

use ipu_core::job::{JobPhase, JobSpec, Plan};
use ipu_core::{Reason, ReasonCode};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType};

use super::context::Context;
use super::error::ReconcileError;
use super::status::held_ipus;
use crate::crd::IpuJobStatus;

/// Reason of an Event about a Pod whose problem has no Kubernetes reason.
const NOT_STARTED: &str = "NotStarted";
/// Maximum length of a note in the API, in bytes.
const MAX_NOTE_BYTES: usize = 1024;

impl Context {
    /// Publishes Events about an object. A failure is only logged: the status contains the same information.
    pub(super) async fn publish(&self, regarding: &ObjectReference, events: Vec<Event>) {
        for event in events {
            let note = event.note.as_deref().unwrap_or_default();
            let namespace = regarding.namespace.as_deref().unwrap_or_default();
            let name = regarding.name.as_deref().unwrap_or_default();
            tracing::info!(
                object = format!("{namespace}/{name}"),
                reason = event.reason,
                "{note}"
            );
            if let Err(error) = self.recorder.publish(&event, regarding).await {
                tracing::debug!(%error, "an event could not be written");
            }
        }
    }
}

/// Creates an Event.
pub(super) fn event(type_: EventType, reason: &str, note: &str) -> Event {
    Event {
        type_,
        reason: reason.to_owned(),
        note: Some(truncated(note)),
        action: "Reconcile".to_owned(),
        secondary: None,
    }
}

/// Returns the Event of a refusal, unless the status `before` already reports it.
pub(super) fn refusal(before: &IpuJobStatus, blocker: &ReconcileError) -> Option<Event> {
    match blocker {
        ReconcileError::Refused { code, message } if !before.last_message.contains(&blocker.to_string()) => {
            Some(event(EventType::Warning, code, message))
        }
        _ => None,
    }
}

/// Returns the Events of a reconciliation: a new phase, a restart, a new reason to wait, the end of an
/// instance while the job continues, and the problem of a Pod, `problem`. They are published once, when the
/// status with the same content is written.
pub(super) fn events(
    spec: &JobSpec,
    before: &IpuJobStatus,
    after: &IpuJobStatus,
    plan: &Plan,
    problem: Option<&str>,
) -> Vec<Event> {
    let phase = plan.status.phase;
    let own = plan
        .reasons
        .iter()
        .filter(|reason| has_own_event(reason, before, after, phase));
    let own = own.map(|reason| event(EventType::Warning, reason.code.as_str(), &reason.to_string()));
    let mut events: Vec<Event> = own.collect();
    if phase == JobPhase::Restarting && after.restart_count > before.restart_count {
        // One restart may follow another without any other phase in between.
        for restart in &plan.reasons {
            let type_ = match restart.code.as_str() {
                "RestartAfterFailure" => EventType::Warning,
                "RestartAfterSuccess" => EventType::Normal,
                _ => continue,
            };
            events.push(event(type_, "IPUJobRestarting", &restart.to_string()));
        }
    } else if before.phase != Some(phase) && phase != JobPhase::Pending {
        let reason = match phase {
            JobPhase::Failed | JobPhase::Completed => plan.status.conclusion.as_ref(),
            _ => plan.reasons.first(),
        };
        let type_ = match phase {
            JobPhase::Failed | JobPhase::Restarting => EventType::Warning,
            _ => EventType::Normal,
        };
        let note = reason.map_or_else(|| after.last_message.clone(), ToString::to_string);
        events.push(event(type_, &format!("IPUJob{phase:?}"), &note));
        if let Some(held) = held_ipus(spec, plan) {
            events.push(event(
                EventType::Normal,
                "FinishedHoldsIpus",
                &format!("the finished job {held}"),
            ));
        }
    } else {
        // Creating and starting resources is routine; waiting for a partition is worth an Event.
        let previous = waiting_reasons(before);
        for (code, message) in waiting_reasons(after) {
            if !previous.contains_key(code) {
                let type_ = if ReasonCode::from(code).is_permanent() {
                    EventType::Warning
                } else {
                    EventType::Normal
                };
                events.push(event(type_, code, message.unwrap_or(&after.last_message)));
            }
        }
    }
    if let Some(message) = problem.filter(|message| !before.last_message.contains(message)) {
        events.push(event(EventType::Warning, code(message), message));
    }
    events
}

/// Returns whether a reason gets its own Event: a missing process, an instance that failed for good, a
/// released partition, or a preemption. All are reasons of the one reconciliation that ends the attempt.
fn has_own_event(reason: &Reason, before: &IpuJobStatus, after: &IpuJobStatus, phase: JobPhase) -> bool {
    let failure_and_releases = |status: &IpuJobStatus| {
        let index = reason.numbers.get("instance").copied();
        let mut all = status.instances.iter();
        let known = all.find(|known| index == Some(u64::from(known.index)));
        known.map_or((false, 0), |known| {
            (known.state == "Failed", known.unused_releases)
        })
    };
    let ((had_failed, released_before), (has_failed, released)) =
        (failure_and_releases(before), failure_and_releases(after));
    let is_preemption = reason.code == "Preempted" && after.preemption_count > before.preemption_count;
    is_preemption
        || matches!(reason.code, ReasonCode::WorkerGone | ReasonCode::LauncherGone)
        || !phase.is_finished() && (has_failed && !had_failed || released > released_before)
}

/// Returns the codes of the reasons for which instances wait, each with its text, unless the message of the
/// job contains it.
fn waiting_reasons(status: &IpuJobStatus) -> BTreeMap<&str, Option<&str>> {
    let waiting = status
        .instances
        .iter()
        .filter(|instance| instance.state == "Waiting");
    let reasons = waiting.filter_map(|instance| instance.reason.as_deref());
    let mut by_code = BTreeMap::new();
    for (position, reason) in reasons.enumerate() {
        let code = reason.split(':').next().unwrap_or_default();
        by_code.entry(code).or_insert((position > 0).then_some(reason));
    }
    by_code
}

/// Returns the code in a message about a Pod: `<name>: <code>: <details>`.
fn code(message: &str) -> &str {
    let is_code = |word: &&str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric());
    message.split(": ").nth(1).filter(is_code).unwrap_or(NOT_STARTED)
}

fn truncated(text: &str) -> String {
    const ELLIPSIS: &str = "…";
    if text.len() <= MAX_NOTE_BYTES {
        return text.to_owned();
    }
    let mut ends = (0..=MAX_NOTE_BYTES - ELLIPSIS.len()).rev();
    let end = ends.find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}{ELLIPSIS}", &text[..end])
}
