//! The Events that a reconcile publishes, in the words of the job's status.

use std::collections::BTreeMap;

use ipu_core::{JobPhase, Plan, Reason, Timestamp};

use super::ports::{JobEvent, Severity};
use crate::crd::IpuJobStatus;

/// Reason of an Event about a pod whose problem has no Kubernetes reason.
const NOT_STARTED: &str = "NotStarted";

/// Returns the Events of a reconcile: a new phase, a restart, a new reason to wait, the end of an instance
/// while the job continues, and a blocked process, `blocked_process`. They are published once, when the
/// status with the same content is written.
pub(super) fn events(
    before: &IpuJobStatus,
    after: &IpuJobStatus,
    plan: &Plan,
    blocked_process: Option<&str>,
    at: Timestamp,
) -> Vec<JobEvent> {
    let phase = plan.status.phase;
    let event = |severity: Severity, reason: &str, note: &str| JobEvent {
        severity,
        reason: reason.to_owned(),
        note: note.to_owned(),
        at,
    };
    let mut events = Vec::new();
    for reason in plan
        .reasons
        .iter()
        .filter(|reason| has_own_event(reason, before, after, phase))
    {
        events.push(event(Severity::Warning, &reason.code, &reason.to_string()));
    }
    if phase == JobPhase::Restarting && after.restart_count > before.restart_count {
        // One restart may follow another without any other phase in between.
        for restart in &plan.reasons {
            let severity = match restart.code.as_str() {
                "RestartAfterFailure" => Severity::Warning,
                "RestartAfterSuccess" => Severity::Normal,
                _ => continue,
            };
            events.push(event(severity, "IPUJobRestarting", &restart.to_string()));
        }
    } else if before.phase != Some(phase) && phase != JobPhase::Pending {
        let reason = match phase {
            JobPhase::Failed | JobPhase::Completed => plan.status.conclusion.as_ref(),
            _ => plan.reasons.first(),
        };
        let severity = match phase {
            JobPhase::Failed | JobPhase::Restarting => Severity::Warning,
            _ => Severity::Normal,
        };
        let note = reason.map_or_else(|| after.last_message.clone(), ToString::to_string);
        events.push(event(severity, &format!("IPUJob{phase:?}"), &note));
    } else {
        // Creating and starting resources is routine; waiting for a partition is worth an Event.
        let previous = waiting_reasons(before);
        for (code, message) in waiting_reasons(after) {
            if !previous.contains_key(code) {
                let note = message.unwrap_or(&after.last_message);
                events.push(event(Severity::Normal, code, note));
            }
        }
    }
    if let Some(message) = blocked_process.filter(|message| !before.last_message.contains(message)) {
        events.push(event(Severity::Warning, code(message), message));
    }
    events
}

/// Returns whether a reason gets its own Event: a missing process, an instance that failed for good, or a
/// released partition, or a preemption. All are reasons of the one reconcile that ends the attempt.
fn has_own_event(
    reason: &Reason,
    before_status: &IpuJobStatus,
    after_status: &IpuJobStatus,
    phase: JobPhase,
) -> bool {
    let of = |status: &IpuJobStatus| {
        let index = reason.numbers.get("instance").copied();
        let mut all = status.instances.iter();
        let known = all.find(|known| index == Some(u64::from(known.index)));
        known.map_or((false, 0), |known| {
            (known.state == "Failed", known.unused_releases)
        })
    };
    let ((had_failed, before), (has_failed, now)) = (of(before_status), of(after_status));
    let is_preemption =
        reason.code == "Preempted" && after_status.preemption_count > before_status.preemption_count;
    is_preemption
        || ["WorkerGone", "LauncherGone"].contains(&&*reason.code)
        || (!phase.is_finished() && (has_failed && !had_failed || now > before))
}

/// Returns the codes of the reasons for which instances wait, each with its text, unless the message of the
/// job contains it.
fn waiting_reasons(status: &IpuJobStatus) -> BTreeMap<&str, Option<&str>> {
    let waiting = status
        .instances
        .iter()
        .filter(|instance| instance.state == "Waiting");
    let reasons = waiting.filter_map(|instance| instance.reason.as_deref());
    let mut reasons_by_code = BTreeMap::new();
    for (position, reason) in reasons.enumerate() {
        let code = reason.split(':').next().unwrap_or_default();
        reasons_by_code
            .entry(code)
            .or_insert((position > 0).then_some(reason));
    }
    reasons_by_code
}

/// Returns the code in a message about a pod: `<name>: <code>: <details>`.
fn code(message: &str) -> &str {
    let is_code = |word: &&str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric());
    message.split(": ").nth(1).filter(is_code).unwrap_or(NOT_STARTED)
}
