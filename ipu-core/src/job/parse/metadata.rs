//! Identity of a job: namespace, name and uid, and the names derived from them.

use alloc::format;
use alloc::string::{String, ToString as _};
use core::str::FromStr;

use super::counts::ProcessCounts;
use super::diagnostics::Diagnostics;
use crate::ids::{AccountName, AllocationId, JobKey, JobName, JobUid, NameError, Namespace};
use crate::job::raw::{RawMetadata, RawSpec};

/// Maximum length of a derived name: it becomes a host name, which is a DNS-1123 label.
const MAX_LABEL: usize = 63;

/// Parses the key of the job. The longest derived name depends on `counts`.
pub(super) fn parse(
    raw: &RawMetadata,
    counts: ProcessCounts,
    diagnostics: &mut Diagnostics,
) -> Option<JobKey> {
    let namespace = parse_name::<Namespace>(
        "metadata.namespace",
        Some(raw.namespace.as_deref().unwrap_or("default")),
        "the namespace of the job",
        diagnostics,
    );
    let name = match (&raw.name, &raw.generate_name) {
        (Some(name), _) => {
            let parsed =
                parse_name::<JobName>("metadata.name", Some(name), "the name of the job", diagnostics);
            if parsed.is_some() {
                check_label(name, counts, diagnostics);
            }
            parsed
        }
        (None, Some(prefix)) => {
            diagnostics.refuse(
                "metadata.name",
                None,
                "a job is run under a complete name, and generateName only begins one",
                format!("add characters to {prefix:?} when the job is submitted, or give metadata.name"),
            );
            None
        }
        (None, None) => {
            diagnostics.refuse(
                "metadata.name",
                None,
                "every job has a name",
                "add metadata.name or metadata.generateName",
            );
            None
        }
    };
    if raw.uid.is_none() {
        diagnostics.refuse(
            "metadata.uid",
            None,
            "the uid distinguishes a job from earlier ones of its name",
            "let the program that submits the job assign one",
        );
    }
    let uid = parse_name::<JobUid>(
        "metadata.uid",
        raw.uid.as_deref(),
        "the uid of the job",
        diagnostics,
    );
    Some(JobKey {
        namespace: namespace?,
        name: name?,
        uid: uid?,
    })
}

/// Checks that every name derived from `name` is a DNS-1123 label: `<job>-worker-<n>` and `<job>-launcher`
/// (seed 000 §6.6).
fn check_label(name: &str, counts: ProcessCounts, diagnostics: &mut Diagnostics) {
    let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !begins || !name.chars().all(valid) {
        diagnostics.forbid(
            "metadata.name",
            Some(name),
            "must be lower-case letters, digits and '-', beginning with a letter or digit (DNS-1123), because host names are derived from it",
            format!("use {}, for example", suggestion(name)),
        );
    }
    let last = u64::from(counts.instances) * u64::from(counts.workers);
    let worker = format!("-worker-{}", last.saturating_sub(1));
    let launcher = launcher_suffix(counts.instances.saturating_sub(1));
    let longest = if worker.len() >= launcher.len() {
        worker
    } else {
        launcher
    };
    let max_len = MAX_LABEL - longest.len();
    if name.len() > max_len {
        diagnostics.forbid(
            "metadata.name",
            Some(name),
            format!("has {} characters, and the name of its last process, <job>{longest}, must fit in {MAX_LABEL}", name.len()),
            format!("use at most {max_len} characters"),
        );
    }
}

/// Returns the suffix of the launcher's name of instance `instance`: the documented name for the first one.
pub(in crate::job) fn launcher_suffix(instance: u32) -> String {
    match instance {
        0 => "-launcher".to_string(),
        further => format!("-launcher-{further}"),
    }
}

/// Suggests a valid name: `name` with invalid characters replaced.
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

/// Parses the account that is charged. A job that was accepted before accounts were bounded keeps its own.
pub(super) fn account(raw: &RawSpec, diagnostics: &mut Diagnostics) -> Option<String> {
    let value = raw.account.as_deref()?;
    let stored = Namespace::new(value).ok().map(String::from);
    let account = AccountName::new(value).map(String::from);
    bounded("spec.account", account, stored, "an account", diagnostics)
}

/// Parses the allocation that IPUs are drawn from. A job that was accepted before the ids were bounded keeps
/// its own.
pub(super) fn allocation(raw: &RawSpec, diagnostics: &mut Diagnostics) -> Option<AllocationId> {
    let value = raw.allocation.as_deref()?;
    let stored = AllocationId::new(value).ok();
    let allocation = AllocationId::requested(value);
    bounded(
        "spec.allocation",
        allocation,
        stored,
        "the id of an allocation",
        diagnostics,
    )
}

/// Returns a value within its bound, or the stored one of a job that was accepted before the bound existed.
fn bounded<T>(
    field: &str,
    value: Result<T, NameError>,
    stored: Option<T>,
    description: &str,
    diagnostics: &mut Diagnostics,
) -> Option<T> {
    let error = match value {
        Ok(value) => return Some(value),
        Err(error) => error,
    };
    let (shown, rule, fix) = (
        format!("{:?}", error.value),
        format!("must be {}", error.rule),
        format!("give {description}"),
    );
    if stored.is_some() {
        diagnostics.forbid(field, Some(&shown), rule, fix);
    } else {
        diagnostics.refuse(field, Some(&shown), rule, fix);
    }
    stored
}

/// Parses a value of one of the name types.
fn parse_name<T: FromStr<Err = NameError>>(
    field: &str,
    value: Option<&str>,
    description: &str,
    diagnostics: &mut Diagnostics,
) -> Option<T> {
    let value = value?;
    match value.parse() {
        Ok(name) => Some(name),
        Err(NameError { rule, .. }) => {
            let shown = format!("{value:?}");
            diagnostics.refuse(
                field,
                Some(&shown),
                format!("must be {rule}"),
                format!("give {description}"),
            );
            None
        }
    }
}
