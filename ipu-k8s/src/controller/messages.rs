//! What the users of a job are told of a pass, by Events, in the words of its status.

use std::collections::BTreeMap;

use ipu_core::{JobPhase, Plan, Reason, Timestamp};

use super::ports::{JobEvent, Severity};
use crate::crd::IpuJobStatus;

/// The reason of an Event about what Kubernetes has no word for.
const NOT_STARTED: &str = "NotStarted";

/// What is to be told: another phase, a restart, another reason to wait, what becomes of an instance while the job goes on, and what hinders
/// a process, which is `held_up`. It is told when the status is written that says it: once.
pub(super) fn events(
    before: &IpuJobStatus,
    after: &IpuJobStatus,
    plan: &Plan,
    held_up: Option<&str>,
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
    for news in plan
        .reasons
        .iter()
        .filter(|reason| is_new_message(reason, before, after, phase))
    {
        events.push(event(Severity::Warning, &news.code, &news.to_string()));
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
        let told = match phase {
            JobPhase::Failed | JobPhase::Completed => plan.status.conclusion.as_ref(),
            _ => plan.reasons.first(),
        };
        let severity = match phase {
            JobPhase::Failed | JobPhase::Restarting => Severity::Warning,
            _ => Severity::Normal,
        };
        let note = told.map_or_else(|| after.last_message.clone(), ToString::to_string);
        events.push(event(severity, &format!("IPUJob{phase:?}"), &note));
    } else {
        // Making and starting things is what a job does; waiting for others is worth a word.
        let told = waits(before);
        for (code, words) in waits(after) {
            if !told.contains_key(code) {
                let note = words.unwrap_or(&after.last_message);
                events.push(event(Severity::Normal, code, note));
            }
        }
    }
    if let Some(words) = held_up.filter(|words| !before.last_message.contains(words)) {
        events.push(event(Severity::Warning, code(words), words));
    }
    events
}

/// Whether it is told of by itself: that a process is gone, that an instance has failed for good, or that it gave its partition back. All
/// are reasons of the one pass that closes the attempt or has the verdict.
fn is_new_message(reason: &Reason, before: &IpuJobStatus, after: &IpuJobStatus, phase: JobPhase) -> bool {
    let of = |status: &IpuJobStatus| {
        let index = reason.numbers.get("instance").copied();
        let mut all = status.instances.iter();
        let known = all.find(|known| index == Some(u64::from(known.index)));
        known.map_or((false, 0), |known| {
            (known.state == "Failed", known.unused_releases)
        })
    };
    let ((had_failed, before), (has_failed, now)) = (of(before), of(after));
    ["WorkerGone", "LauncherGone"].contains(&&*reason.code)
        || (!phase.is_finished() && (has_failed && !had_failed || now > before))
}

/// The codes of what instances wait for; with the words, unless the message of the job has them.
fn waits(status: &IpuJobStatus) -> BTreeMap<&str, Option<&str>> {
    let waiting = status
        .instances
        .iter()
        .filter(|instance| instance.state == "Waiting");
    let reasons = waiting.filter_map(|instance| instance.reason.as_deref());
    let mut waits = BTreeMap::new();
    for (place, reason) in reasons.enumerate() {
        let code = reason.split(':').next().unwrap_or_default();
        waits.entry(code).or_insert((place > 0).then_some(reason));
    }
    waits
}

/// The code in what is said of a Kubernetes Pod: `<name>: <code>: <more>`.
fn code(words: &str) -> &str {
    let is_code = |word: &&str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric());
    words.split(": ").nth(1).filter(is_code).unwrap_or(NOT_STARTED)
}
