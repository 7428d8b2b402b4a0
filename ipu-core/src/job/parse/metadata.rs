//! Which job: namespace, name and uid, and the names that are derived from them.

use alloc::format;
use alloc::string::{String, ToString as _};
use core::str::FromStr;

use super::counts::ProcessCounts;
use super::diagnostics::Diagnostics;
use crate::ids::{AccountName, AllocationId, JobKey, JobName, JobUid, NameError, Namespace};
use crate::job::raw::{RawMetadata, RawSpec};

/// The most characters of a derived name: it becomes a host name, which is a DNS-1123 label.
const MAX_LABEL: usize = 63;

/// The key of the job. `many` tells the longest name that is derived from it.
pub(super) fn parse(raw: &RawMetadata, many: ProcessCounts, findings: &mut Diagnostics) -> Option<JobKey> {
    let namespace = token::<Namespace>(
        "metadata.namespace",
        Some(raw.namespace.as_deref().unwrap_or("default")),
        "the namespace of the job",
        findings,
    );
    let name = match (&raw.name, &raw.generate_name) {
        (Some(name), _) => {
            let parsed = token::<JobName>("metadata.name", Some(name), "the name of the job", findings);
            if parsed.is_some() {
                check_label(name, many, findings);
            }
            parsed
        }
        (None, Some(prefix)) => {
            findings.refuse(
                "metadata.name",
                None,
                "a job is run under a complete name, and generateName only begins one",
                format!("add characters to {prefix:?} when the job is submitted, or give metadata.name"),
            );
            None
        }
        (None, None) => {
            findings.refuse(
                "metadata.name",
                None,
                "every job has a name",
                "add metadata.name or metadata.generateName",
            );
            None
        }
    };
    if raw.uid.is_none() {
        findings.refuse(
            "metadata.uid",
            None,
            "it tells a job from earlier ones of its name",
            "let the program that submits the job assign one",
        );
    }
    let uid = token::<JobUid>("metadata.uid", raw.uid.as_deref(), "the uid of the job", findings);
    Some(JobKey {
        namespace: namespace?,
        name: name?,
        uid: uid?,
    })
}

/// Whether every name derived from `name` is a DNS-1123 label: `<job>-worker-<n>` and `<job>-launcher` (seed 000 §6.6).
fn check_label(name: &str, many: ProcessCounts, findings: &mut Diagnostics) {
    let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !begins || !name.chars().all(valid) {
        findings.forbid(
            "metadata.name",
            Some(name),
            "must be lower-case letters, digits and '-', beginning with a letter or digit (DNS-1123), because host names are derived from it",
            format!("use {}, for example", suggestion(name)),
        );
    }
    let last = u64::from(many.instances) * u64::from(many.workers);
    let worker = format!("-worker-{}", last.saturating_sub(1));
    let launcher = launcher_suffix(many.instances.saturating_sub(1));
    let longest = if worker.len() >= launcher.len() {
        worker
    } else {
        launcher
    };
    let room = MAX_LABEL - longest.len();
    if name.len() > room {
        findings.forbid(
            "metadata.name",
            Some(name),
            format!("has {} characters, and the name of its last process, <job>{longest}, must fit in {MAX_LABEL}", name.len()),
            format!("use at most {room} characters"),
        );
    }
}

/// What the name of the launcher of instance `instance` adds to the job's: the documented name for the first one.
pub(in crate::job) fn launcher_suffix(instance: u32) -> String {
    match instance {
        0 => "-launcher".to_string(),
        further => format!("-launcher-{further}"),
    }
}

/// `name` with what is not allowed replaced, as a proposal.
fn suggestion(name: &str) -> String {
    let plain = |c: char| match c.to_ascii_lowercase() {
        c if c.is_ascii_alphanumeric() => c,
        _ => '-',
    };
    let text: String = name.chars().take(MAX_LABEL).map(plain).collect();
    match text.trim_matches('-') {
        "" => "my-job".into(),
        proposal => proposal.into(),
    }
}

/// The account that is charged. A job that was accepted before accounts were bounded keeps its own.
pub(super) fn account(raw: &RawSpec, findings: &mut Diagnostics) -> Option<String> {
    let value = raw.account.as_deref()?;
    let kept = Namespace::new(value).ok().map(String::from);
    let account = AccountName::new(value).map(String::from);
    bounded("spec.account", account, kept, "an account", findings)
}

/// The allocation that IPUs are drawn from. A job that was accepted before the ids were bounded keeps its own.
pub(super) fn allocation(raw: &RawSpec, findings: &mut Diagnostics) -> Option<AllocationId> {
    let value = raw.allocation.as_deref()?;
    let kept = AllocationId::new(value).ok();
    let allocation = AllocationId::requested(value);
    bounded(
        "spec.allocation",
        allocation,
        kept,
        "the id of an allocation",
        findings,
    )
}

/// A value within its bound, or the one that a job has kept from before there was a bound.
fn bounded<T>(
    field: &str,
    value: Result<T, NameError>,
    kept: Option<T>,
    what: &str,
    findings: &mut Diagnostics,
) -> Option<T> {
    let error = match value {
        Ok(value) => return Some(value),
        Err(error) => error,
    };
    let (shown, rule, fix) = (
        format!("{:?}", error.value),
        format!("must be {}", error.rule),
        format!("give {what}"),
    );
    if kept.is_some() {
        findings.forbid(field, Some(&shown), rule, fix);
    } else {
        findings.refuse(field, Some(&shown), rule, fix);
    }
    kept
}

/// A value of one of the name types.
fn token<T: FromStr<Err = NameError>>(
    field: &str,
    value: Option<&str>,
    what: &str,
    findings: &mut Diagnostics,
) -> Option<T> {
    let value = value?;
    match value.parse() {
        Ok(token) => Some(token),
        Err(NameError { rule, .. }) => {
            let shown = format!("{value:?}");
            findings.refuse(
                field,
                Some(&shown),
                format!("must be {rule}"),
                format!("give {what}"),
            );
            None
        }
    }
}
