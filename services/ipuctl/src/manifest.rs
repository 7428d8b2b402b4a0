//! Reads manifests, selects an IPUJob, validates it and reports ignored fields.

use ipu_core::AllocationId;
use ipu_core::job::{ErrorList, JobSpec, Limits, Violation};
use ipu_k8s::crd::{
    Document, FieldEdit, HostView, MAX_MANIFEST_BYTES, Manifest, ManifestError, SkippedDocument,
    read_manifests,
};

use crate::exit_code::{Code, Failure};
use crate::input::{input_name, read_input};
use crate::output::Output;

/// A valid IPUJob.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) spec: JobSpec,
    pub(crate) host: HostView,
}

/// Values of the command line that replace those of the manifest.
#[derive(Clone, Debug)]
pub(crate) struct Overrides {
    pub(crate) uid: String,
    pub(crate) allocation: Option<AllocationId>,
    pub(crate) priority: Option<i32>,
}

/// Returns the IPUJobs of the file, with `--name` only that one. Other documents are reported and skipped.
pub(crate) fn read(arguments: &crate::cli::Manifest, output: &Output) -> Result<Vec<Manifest>, Failure> {
    let file = &arguments.file;
    let name = input_name(file);
    // One byte more than the limit, so that a file that is too large is detected.
    let text = read_input(file, MAX_MANIFEST_BYTES as u64 + 1)?;
    let edits = arguments
        .set
        .iter()
        .map(|text| text.parse::<FieldEdit>())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| Failure::because(Code::Usage, "--set", error))?;
    let documents = read_manifests(&text, &edits).map_err(|error| match error {
        ManifestError::NoIpuJob { found } => Failure::new(Code::Data, no_job(&name, &found)),
        error => Failure::because(Code::Data, name.clone(), error),
    })?;
    let mut jobs = Vec::new();
    for document in documents {
        match document {
            Document::IpuJob(manifest) => jobs.push(*manifest),
            Document::Skipped(other) => {
                output.say(&format!(
                    "Skipped {} {} in line {} of {name}.",
                    other.kind, other.name, other.line
                ));
            }
        }
    }
    let Some(name_filter) = &arguments.name else {
        return Ok(jobs);
    };
    let names: Vec<String> = jobs.iter().map(name_of).collect();
    jobs.retain(|job| name_of(job) == *name_filter);
    if jobs.is_empty() {
        return Err(Failure::new(
            Code::Data,
            format!(
                "{name} has no IPUJob {name_filter:?}; it has {}",
                names.join(", ")
            ),
        ));
    }
    Ok(jobs)
}

/// Returns the message for a file without an IPUJob.
fn no_job(file: &str, found: &[SkippedDocument]) -> String {
    let mut kinds: Vec<String> = Vec::new();
    for document in found {
        let article = if document.kind.starts_with(['A', 'E', 'I', 'O', 'U']) {
            "an"
        } else {
            "a"
        };
        let kind = format!("{article} {}", document.kind);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    match kinds.split_last() {
        None => format!("{file} is empty, expected kind IPUJob"),
        Some((last, [])) => format!("{file} contains {last}, expected kind IPUJob"),
        Some((last, first)) => {
            format!(
                "{file} contains {} and {last}, expected kind IPUJob",
                first.join(", ")
            )
        }
    }
}

/// Returns the only IPUJob of the file.
///
/// # Errors
///
/// [`Code::Usage`] if there are several names, [`Code::Data`] if several jobs share one.
pub(crate) fn one(mut jobs: Vec<Manifest>) -> Result<Manifest, Failure> {
    match jobs.len() {
        1 => Ok(jobs.remove(0)),
        _ => {
            let mut names: Vec<String> = jobs.iter().map(name_of).collect();
            names.dedup();
            let (code, message) = match names.as_slice() {
                [name] => (
                    Code::Data,
                    format!(
                        "the file has {} IPUJobs named {name}: rename all but one",
                        jobs.len()
                    ),
                ),
                names => (
                    Code::Usage,
                    format!(
                        "the file has several IPUJobs, select one with --name: {}",
                        names.join(", ")
                    ),
                ),
            };
            Err(Failure::new(code, message))
        }
    }
}

/// Returns the name of the job, or its `generateName`.
pub(crate) fn name_of(manifest: &Manifest) -> String {
    let metadata = &manifest.job.metadata;
    metadata
        .name
        .clone()
        .or_else(|| metadata.generate_name.clone())
        .unwrap_or_else(|| "(unnamed)".to_owned())
}

/// Validates a manifest and prints its warnings.
///
/// # Errors
///
/// All rules that the manifest violates.
pub(crate) fn parse(
    mut manifest: Manifest,
    overrides: &Overrides,
    output: &Output,
) -> Result<Job, ErrorList<Violation>> {
    let job = &mut manifest.job;
    let metadata = &mut job.metadata;
    if let (None, Some(prefix)) = (&metadata.name, &metadata.generate_name) {
        metadata.name = Some(format!(
            "{prefix}{}",
            overrides.uid.chars().take(5).collect::<String>()
        ));
    }
    metadata.namespace.get_or_insert_with(user);
    // A uid in the manifest belongs to the cluster that it was exported from. Here each run is a separate
    // job.
    metadata.uid = Some(overrides.uid.clone());
    if let Some(allocation) = &overrides.allocation {
        job.spec.allocation = Some(allocation.to_string());
    }
    if let Some(priority) = overrides.priority {
        job.spec.priority = Some(i64::from(priority).into());
    }
    let parsed = manifest.parse(&Limits::default());
    let host = manifest.job.host_view();
    let (parsed, host) = match (parsed, host) {
        (Ok(parsed), Ok(host)) => (parsed, host),
        (parsed, host) => {
            // A suggestion about an unknown field may explain a violation.
            for warning in manifest.warnings() {
                output.warn(&warning.to_string());
            }
            let mut violations: Vec<Violation> = parsed.err().into_iter().flatten().collect();
            for violation in host.err().into_iter().flatten() {
                if !violations.iter().any(|other| other.field == violation.field) {
                    violations.push(violation);
                }
            }
            return Err(violations.into());
        }
    };
    for warning in &parsed.warnings {
        output.warn(&warning.to_string());
    }
    Ok(Job {
        spec: parsed.spec,
        host,
    })
}

/// Returns why a job runs nothing, if it does not: no program on a host resumes or scales it.
pub(crate) fn idle_reason(spec: &JobSpec) -> Option<&'static str> {
    if spec.suspend() {
        return Some("spec.suspend is true: remove it, or use --set suspend=false");
    }
    (spec.instances() == 0)
        .then_some("spec.jobInstances is 0: use at least 1, for example with --set jobInstances=1")
}

/// Returns one failure with all violations.
pub(crate) fn refuse(name: &str, violations: &[Violation]) -> Failure {
    let listed: Vec<String> = violations
        .iter()
        .map(|violation| format!("\n  {violation}"))
        .collect();
    Failure::new(
        Code::Data,
        format!("IPUJob {name} is invalid:{}", listed.concat()),
    )
}

/// Reports the fields of the Pod template that a host ignores, in one line.
pub(crate) fn report_ignored_fields(host: &HostView, output: &Output) {
    if !host.ignored.is_empty() {
        let fields = host.ignored.iter();
        let listed: Vec<&str> = fields
            .map(|field| field.strip_prefix("spec.workers.template.").unwrap_or(field))
            .collect();
        output.say(&format!(
            "Ignored fields of spec.workers.template: {}",
            listed.join(", ")
        ));
    }
    for warning in &host.unsupported_env {
        output.warn(&warning.to_string());
    }
}

/// Returns the name of the user in the system's user database, else `uid-N`. Jobs without a namespace get it
/// as theirs.
pub(crate) fn user() -> String {
    let uid = uzers::get_current_uid();
    uzers::get_user_by_uid(uid)
        .and_then(|user| user.name().to_str().map(str::to_owned))
        .unwrap_or_else(|| format!("uid-{uid}"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_user_is_the_one_of_the_systems_database() {
        let output = Command::new("id").arg("--user").arg("--name").output().unwrap();
        if output.status.success() {
            assert_eq!(user(), String::from_utf8(output.stdout).unwrap().trim());
        } else {
            assert_eq!(user(), format!("uid-{}", rustix::process::getuid().as_raw()));
        }
    }
}
