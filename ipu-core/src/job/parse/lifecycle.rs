//! How a job ends: restarts, clean-up and deadlines.

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

/// The restarts of a job that does not say how many: the default of the custom resource 1.2.0.
const DEFAULT_BACK_OFF_LIMIT: u32 = 3;
/// The first pause of a job that does not say how long: that of a Kubernetes Job.
const DEFAULT_BACK_OFF: Duration = Duration::from_secs(10);
/// How long a partition waits for its workers: time for a large image to be pulled, not for a node to be bought.
const DEFAULT_START_DEADLINE: Duration = Duration::from_secs(600);

pub(super) struct LifecycleFields {
    pub(super) restart: RestartPolicy,
    pub(super) back_off: Duration,
    pub(super) clean_pod_policy: CleanPodPolicy,
    pub(super) max_runtime: Option<Duration>,
    pub(super) ttl_after_finished: Option<Duration>,
    pub(super) start_deadline: Duration,
}

/// How `raw` wants to end (seed 000 §6.7.2–6.7.3).
pub(super) fn parse(raw: &RawSpec, findings: &mut Diagnostics) -> Option<LifecycleFields> {
    let clean_pod_policy = clean_pod_policy(raw, findings);
    let policy = raw.restart_policy.as_ref();
    let restart = match policy {
        None => Some(RestartPolicy::Never),
        Some(policy) => restart(policy, findings),
    };
    let back_off = policy.and_then(|policy| policy.back_off_seconds.as_ref());
    let back_off = findings.seconds(BACK_OFF, back_off, 0);
    let max_runtime = findings.seconds(
        "spec.activeDeadlineSeconds",
        raw.active_deadline_seconds.as_ref(),
        1,
    );
    let ttl_after_finished = findings.seconds(
        "spec.ttlSecondsAfterFinished",
        raw.ttl_seconds_after_finished.as_ref(),
        0,
    );
    let start_deadline = findings.seconds(
        "spec.startDeadlineSeconds",
        raw.start_deadline_seconds.as_ref(),
        1,
    );
    let (restart, clean_pod_policy) = (restart?, clean_pod_policy?);
    if clean_pod_policy == CleanPodPolicy::All && restart != RestartPolicy::Never {
        let kind = policy.and_then(|policy| policy.kind.as_deref());
        findings.warn(
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

fn clean_pod_policy(raw: &RawSpec, findings: &mut Diagnostics) -> Option<CleanPodPolicy> {
    match raw.clean_pod_policy.as_deref() {
        None | Some("None") => Some(CleanPodPolicy::None),
        Some("Workers") => Some(CleanPodPolicy::Workers),
        Some("All") => Some(CleanPodPolicy::All),
        Some(other) => {
            let fix = closest(other, &["None", "Workers", "All"]);
            findings.refuse(CLEAN, Some(other), "must be None, Workers or All", fix);
            None
        }
    }
}

fn restart(policy: &RawRestartPolicy, findings: &mut Diagnostics) -> Option<RestartPolicy> {
    let limit = findings.whole(LIMIT, policy.back_off_limit.as_ref());
    let back_off_limit = limit.map_or(DEFAULT_BACK_OFF_LIMIT, |limit| {
        findings.clamped(LIMIT, limit, 0..=i32::MAX.unsigned_abs())
    });
    let kinds = ["Always", "OnFailure", "Never", "ExitCode"];
    let Some(kind) = policy.kind.as_deref() else {
        findings.refuse(
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
            retryable: exit_codes(policy, findings)?,
            back_off_limit,
        },
        other => {
            let rule = format!("must be one of {}", kinds.join(", "));
            findings.refuse(TYPE, Some(other), rule, closest(other, &kinds));
            return None;
        }
    };
    if let (Some(codes), false) = (&policy.exit_codes, kind == "ExitCode") {
        findings.warn(
            CODES,
            Some(&codes.to_string()),
            format!("is ignored under {kind}"),
            "use the type ExitCode to have it matter",
        );
    }
    Some(restart)
}

/// The retryable codes; 128 to 255 unless the job says otherwise (seed 000 §6.7.2).
fn exit_codes(policy: &RawRestartPolicy, findings: &mut Diagnostics) -> Option<ExitCodeSet> {
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
                findings.warn(
                    CODES,
                    Some(&text),
                    "0 is success and never asked about",
                    "leave it out, or use the type Always",
                );
            }
            Some(codes)
        }
        Err(error) => {
            findings.forbid(
                CODES,
                Some(&text),
                format!(
                    "must be exit codes from 0 to 255 and rising ranges, separated by commas, which {:?} is not",
                    error.part
                ),
                "write 128-255,42, for example",
            );
            // Reached for a stored job only: the part of its list that has a meaning.
            Some(meaningful(&text))
        }
    }
}

/// The parts of `text` that are exit codes, each cut to 255; the default if there is none.
fn meaningful(text: &str) -> ExitCodeSet {
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

/// The known word that `word` differs from in case only, or all of them.
fn closest(word: &str, known: &[&str]) -> String {
    match known.iter().find(|known| known.eq_ignore_ascii_case(word)) {
        Some(known) => format!("write {known}"),
        None => format!("use {}", known.join(" or ")),
    }
}
