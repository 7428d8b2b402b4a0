//! What the users of a job are told of a pass, by Events, in the words of its status.

use ipu_core::{JobPhase, Plan, Reason, Timestamp};

use super::port::{JobEvent, Severity};
use crate::crd::IpuJobStatus;

/// What the users of the job are told, if it is another phase than before, or waits for another reason.
pub(super) fn event(
    before: &IpuJobStatus,
    after: &IpuJobStatus,
    plan: &Plan,
    at: Timestamp,
) -> Option<JobEvent> {
    let phase = plan.status.phase;
    let first = plan.reasons.first();
    let warning = |reason: &Reason| JobEvent {
        severity: Severity::Warning,
        reason: reason.code.clone(),
        note: reason.to_string(),
        at,
    };
    // Told once: in the pass that closes the attempt.
    if let Some(gone) = plan
        .reasons
        .iter()
        .find(|reason| ["WorkerGone", "LauncherGone"].contains(&&*reason.code))
    {
        return Some(warning(gone));
    }
    // And so is what becomes of one instance while the job goes on: it has failed for good, or gave its partition back.
    let is_news = |reason: &&Reason| {
        let of = |status: &IpuJobStatus| {
            let index = reason.numbers.get("instance").copied();
            let mut all = status.instances.iter();
            let known = all.find(|known| index == Some(u64::from(known.index)));
            known.map_or((false, 0), |known| (known.state == "Failed", known.given_back))
        };
        let ((had_failed, before), (has_failed, now)) = (of(before), of(after));
        (has_failed && !had_failed) || now > before
    };
    if let Some(news) = plan.reasons.iter().find(is_news).filter(|_| !phase.is_finished()) {
        return Some(warning(news));
    }
    if before.phase == Some(phase) || phase == JobPhase::Pending {
        // Making and starting things is what a job does; waiting for others is worth a word.
        let waits = |status: &IpuJobStatus| {
            let waiting = status
                .instances
                .iter()
                .find(|instance| instance.state == "Waiting")?;
            let reason = waiting.reason.as_deref()?;
            Some(reason.split(':').next().unwrap_or_default().to_owned())
        };
        let code = waits(after).filter(|code| waits(before).as_ref() != Some(code))?;
        return Some(JobEvent {
            severity: Severity::Normal,
            reason: code,
            note: after.last_message.clone(),
            at,
        });
    }
    let after_success = first.is_some_and(|reason| reason.code == "RestartAfterSuccess");
    let severity = match phase {
        JobPhase::Restarting if after_success => Severity::Normal,
        JobPhase::Failed | JobPhase::Restarting => Severity::Warning,
        _ => Severity::Normal,
    };
    let told = match phase {
        JobPhase::Failed | JobPhase::Completed => plan.status.conclusion.as_ref(),
        _ => first,
    };
    Some(JobEvent {
        severity,
        reason: format!("IPUJob{phase:?}"),
        note: told.map_or_else(|| after.last_message.clone(), ToString::to_string),
        at,
    })
}
