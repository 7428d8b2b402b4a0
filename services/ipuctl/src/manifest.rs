//! From a file of manifests to IPUJobs that can run here, with everything that is odd about them said.

use std::io::Read as _;
use std::path::Path;

use ipu_core::{AllocationId, JobSpec, Limits, Violation};
use ipu_k8s::crd::{Document, FieldEdit, HostView, MAX_MANIFEST_BYTES, Manifest, read_manifests};

use crate::exit_code::{Code, Failure};
use crate::output::Output;

/// An IPUJob that keeps every rule.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) spec: JobSpec,
    pub(crate) host: HostView,
}

/// What is given on the command line and counts as if it were in the manifest.
#[derive(Clone, Debug)]
pub(crate) struct Overrides {
    pub(crate) uid: String,
    pub(crate) allocation: Option<AllocationId>,
    pub(crate) priority: Option<i32>,
}

/// The IPUJobs of the file; other documents are named and left out. With a name, only the one of that name.
pub(crate) fn read(arguments: &crate::cli::Manifest, output: &Output) -> Result<Vec<Manifest>, Failure> {
    let file = &arguments.file;
    let name = if file == Path::new("-") {
        "standard input".to_owned()
    } else {
        file.display().to_string()
    };
    let text = text_of(file, &name)?;
    let edits = arguments
        .set
        .iter()
        .map(|text| text.parse::<FieldEdit>())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| Failure::because(Code::Usage, "--set", error))?;
    let documents =
        read_manifests(&text, &edits).map_err(|error| Failure::because(Code::Data, name.clone(), error))?;
    let mut jobs = Vec::new();
    for document in documents {
        match document {
            Document::IpuJob(manifest) => jobs.push(*manifest),
            Document::Skipped(other) => {
                output.say(&format!(
                    "skipped: {} {} in line {} of {name}",
                    other.kind, other.name, other.line
                ));
            }
            other => output.say(&format!("skipped: {other:?}")),
        }
    }
    let Some(wanted) = &arguments.name else {
        return Ok(jobs);
    };
    let names: Vec<String> = jobs.iter().map(name_of).collect();
    jobs.retain(|job| name_of(job) == *wanted);
    if jobs.is_empty() {
        return Err(Failure::new(
            Code::Data,
            format!("no IPUJob {wanted:?} in {name}, which has {}", names.join(", ")),
        ));
    }
    Ok(jobs)
}

/// The one IPUJob of the file that is to run.
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
                        "{} IPUJobs of the file are called {name}: rename all but one",
                        jobs.len()
                    ),
                ),
                names => (
                    Code::Usage,
                    format!(
                        "the file has several IPUJobs: choose one with --name: {}",
                        names.join(", ")
                    ),
                ),
            };
            Err(Failure::new(code, message))
        }
    }
}

/// The name that a manifest goes by.
pub(crate) fn name_of(manifest: &Manifest) -> String {
    let metadata = &manifest.job.metadata;
    metadata
        .name
        .clone()
        .or_else(|| metadata.generate_name.clone())
        .unwrap_or_else(|| "(without a name)".to_owned())
}

/// The job of a manifest. Its warnings are said; what is wrong with it is the error, all of it.
pub(crate) fn parse(
    mut manifest: Manifest,
    overrides: &Overrides,
    output: &Output,
) -> Result<Job, Vec<Violation>> {
    let job = &mut manifest.job;
    let metadata = &mut job.metadata;
    if let (None, Some(prefix)) = (&metadata.name, &metadata.generate_name) {
        metadata.name = Some(format!(
            "{prefix}{}",
            overrides.uid.chars().take(5).collect::<String>()
        ));
    }
    metadata.namespace.get_or_insert_with(user);
    // A uid in the manifest is one of the cluster that it was exported from; here each run is a job of its own.
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
            let mut all = parsed.err().unwrap_or_default();
            for violation in host.err().unwrap_or_default() {
                if !all.iter().any(|known| known.field == violation.field) {
                    all.push(violation);
                }
            }
            return Err(all);
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

/// Everything that is wrong with a manifest, as one failure.
pub(crate) fn refuse(name: &str, violations: &[Violation]) -> Failure {
    let listed: Vec<String> = violations
        .iter()
        .map(|violation| format!("\n  {violation}"))
        .collect();
    Failure::new(
        Code::Data,
        format!("IPUJob {name} cannot run:{}", listed.concat()),
    )
}

/// Says once what a host does not do of a template.
pub(crate) fn report_ignored_fields(host: &HostView, output: &Output) {
    if !host.ignored.is_empty() {
        let listed: Vec<String> = host
            .ignored
            .iter()
            .map(|ignored| {
                let field = ignored
                    .field
                    .strip_prefix("spec.workers.template.")
                    .unwrap_or(&ignored.field);
                format!("{field} ({})", ignored.what)
            })
            .collect();
        output.say(&format!(
            "ignored on a host, in spec.workers.template: {}",
            listed.join(", ")
        ));
    }
    for variable in &host.unsupported_env {
        output.warn(&format!(
            "{}: {} is not set: only Kubernetes can find its value ({})",
            variable.field, variable.name, variable.source
        ));
    }
}

/// The user of this process: the namespace of jobs that name none.
pub(crate) fn user() -> String {
    let uid = rustix::process::getuid().as_raw();
    let known = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let named = known.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    named.unwrap_or_else(|| format!("uid-{uid}"))
}

fn text_of(file: &Path, name: &str) -> Result<String, Failure> {
    let refused = |error: std::io::Error| {
        let code = if error.kind() == std::io::ErrorKind::NotFound {
            Code::NotFound
        } else {
            Code::Data
        };
        Failure::because(code, format!("read {name}"), error)
    };
    let mut text = String::new();
    // One byte more than is accepted tells a file that is too large from one that just fits.
    let most = MAX_MANIFEST_BYTES as u64 + 1;
    if file == Path::new("-") {
        std::io::stdin()
            .take(most)
            .read_to_string(&mut text)
            .map_err(refused)?;
    } else {
        std::fs::File::open(file)
            .map_err(refused)?
            .take(most)
            .read_to_string(&mut text)
            .map_err(refused)?;
    }
    Ok(text)
}
