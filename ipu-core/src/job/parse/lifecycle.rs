//! End of a job: restarts, cleanup and deadlines.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::time::Duration;

use super::diagnostics::Diagnostics;
use crate::exit_status::ExitCodeSet;
use crate::job::raw::{IntOrString, RawRestartPolicy, RawSpec};
use crate::job::{CleanPodPolicy, RestartPolicy};

const TYPE: &str = "spec.restartPolicy.type";
const LIMIT: &str = "spec.restartPolicy.backOffLimit";
const CODES: &str = "spec.restartPolicy.exitCodes";
const BACK_OFF: &str = "spec.restartPolicy.backOffSeconds";
const CLEAN: &str = "spec.cleanPodPolicy";

/// Default maximum number of restarts: that of the custom resource 1.2.0.
const DEFAULT_BACK_OFF_LIMIT: u32 = 3;
/// Default delay before the first restart: that of a Kubernetes Job.
const DEFAULT_BACK_OFF: Duration = Duration::from_secs(10);
/// Default time for which a partition waits for its workers: enough to pull a large image, not enough to buy
/// a node.
const DEFAULT_START_DEADLINE: Duration = Duration::from_secs(600);

pub(super) struct LifecycleFields {
    pub(super) restart: RestartPolicy,
    pub(super) back_off: Duration,
    pub(super) clean_pod_policy: CleanPodPolicy,
    pub(super) max_runtime: Option<Duration>,
    pub(super) ttl_after_finished: Option<Duration>,
    pub(super) start_deadline: Duration,
}

/// Parses restarts, cleanup and deadlines (seed 000 §6.7.2–6.7.3).
pub(super) fn parse(raw: &RawSpec, diagnostics: &mut Diagnostics) -> Option<LifecycleFields> {
    let clean_pod_policy = clean_pod_policy(raw, diagnostics);
    let policy = raw.restart_policy.as_ref();
    let restart = match policy {
        None => Some(RestartPolicy::Never),
        Some(policy) => restart(policy, diagnostics),
    };
    let back_off = policy.and_then(|policy| policy.back_off_seconds.as_ref());
    let back_off = diagnostics.seconds(BACK_OFF, back_off, 0);
    let max_runtime = diagnostics.seconds(
        "spec.activeDeadlineSeconds",
        raw.active_deadline_seconds.as_ref(),
        1,
    );
    let ttl_after_finished = diagnostics.seconds(
        "spec.ttlSecondsAfterFinished",
        raw.ttl_seconds_after_finished.as_ref(),
        0,
    );
    let start_deadline = diagnostics.seconds(
        "spec.startDeadlineSeconds",
        raw.start_deadline_seconds.as_ref(),
        1,
    );
    let (restart, clean_pod_policy) = (restart?, clean_pod_policy?);
    if clean_pod_policy == CleanPodPolicy::All && restart != RestartPolicy::Never {
        let kind = policy.and_then(|policy| policy.kind.as_deref());
        diagnostics.warn(
            TYPE,
            kind,
            "acts as Never, because cleanPodPolicy All takes priority",
            "use another cleanPodPolicy to have restarts",
        );
    }
    Some(LifecycleFields {
        restart,
        back_off: back_off.unwrap_or(DEFAULT_BACK_OFF),
        clean_pod_policy,
        max_runtime,
        ttl_after_finished,
        start_deadline: start_deadline.unwrap_or(DEFAULT_START_DEADLINE),
    })
}

fn clean_pod_policy(raw: &RawSpec, diagnostics: &mut Diagnostics) -> Option<CleanPodPolicy> {
    match raw.clean_pod_policy.as_deref() {
        None | Some("None") => Some(CleanPodPolicy::None),
        Some("Workers") => Some(CleanPodPolicy::Workers),
        Some("All") => Some(CleanPodPolicy::All),
        Some(other) => {
            let fix = suggest(other, &["None", "Workers", "All"]);
            diagnostics.refuse(CLEAN, Some(other), "must be None, Workers or All", fix);
            None
        }
    }
}

fn restart(policy: &RawRestartPolicy, diagnostics: &mut Diagnostics) -> Option<RestartPolicy> {
    let limit = diagnostics.whole(LIMIT, policy.back_off_limit.as_ref());
    let back_off_limit = limit.map_or(DEFAULT_BACK_OFF_LIMIT, |limit| {
        diagnostics.clamped(LIMIT, limit, 0..=i32::MAX.unsigned_abs())
    });
    let kinds = ["Always", "OnFailure", "Never", "ExitCode"];
    let Some(kind) = policy.kind.as_deref() else {
        diagnostics.refuse(
            TYPE,
            None,
            format!("a restart policy is one of {}", kinds.join(", ")),
            "add its type, or leave restartPolicy out for Never",
        );
        return None;
    };
    let restart = match kind {
        "Always" => RestartPolicy::Always { back_off_limit },
        "OnFailure" => RestartPolicy::OnFailure { back_off_limit },
        "Never" => RestartPolicy::Never,
        "ExitCode" => RestartPolicy::ExitCode {
            retryable: exit_codes(policy, diagnostics)?,
            back_off_limit,
        },
        other => {
            let rule = format!("must be one of {}", kinds.join(", "));
            diagnostics.refuse(TYPE, Some(other), rule, suggest(other, &kinds));
            return None;
        }
    };
    if let (Some(codes), false) = (&policy.exit_codes, kind == "ExitCode") {
        diagnostics.warn(
            CODES,
            Some(&codes.to_string()),
            format!("is ignored under {kind}"),
            "use the type ExitCode to have it matter",
        );
    }
    Some(restart)
}

/// Returns the retryable codes; 128 to 255 unless the job sets others (seed 000 §6.7.2).
fn exit_codes(policy: &RawRestartPolicy, diagnostics: &mut Diagnostics) -> Option<ExitCodeSet> {
    let Some(given) = &policy.exit_codes else {
        return Some(ExitCodeSet::default_retryable());
    };
    let text = match given {
        IntOrString::Int(code) => code.to_string(),
        IntOrString::String(text) => text.clone(),
    };
    match text.parse::<ExitCodeSet>() {
        Ok(codes) => {
            if codes.contains(0) {
                diagnostics.warn(
                    CODES,
                    Some(&text),
                    "0 is success and never retried",
                    "leave it out, or use the type Always",
                );
            }
            Some(codes)
        }
        Err(error) => {
            diagnostics.forbid(
                CODES,
                Some(&text),
                format!(
                    "must be exit codes from 0 to 255 and rising ranges, separated by commas, which {:?} is not",
                    error.part
                ),
                "write 128-255,42, for example",
            );
            // Reached for a stored job only: keeps the valid part of its list.
            Some(valid_codes(&text))
        }
    }
}

/// Returns the valid exit codes of `text`, each limited to 255; the default if there are none.
fn valid_codes(text: &str) -> ExitCodeSet {
    let parts = text.split(',').filter_map(|part| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let from = from.trim().parse::<u8>().ok()?;
        let to = to.trim().parse::<u64>().ok()?.min(255).max(u64::from(from));
        Some(format!("{from}-{to}"))
    });
    let parts: Vec<String> = parts.collect();
    parts
        .join(",")
        .parse()
        .unwrap_or_else(|_| ExitCodeSet::default_retryable())
}

/// Suggests the supported value that differs from `word` in case only, or all of them.
fn suggest(word: &str, supported: &[&str]) -> String {
    match supported
        .iter()
        .find(|supported| supported.eq_ignore_ascii_case(word))
    {
        Some(supported) => format!("write {supported}"),
        None => format!("use {}", supported.join(" or ")),
    }
}
