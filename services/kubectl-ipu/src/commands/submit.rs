//! `kubectl ipu submit`: checks the IPUJobs of a file, creates them, and waits for one.

use std::io::Read as _;
use std::path::Path;

use ipu_core::{IpuCount, JobPhase, Limits};
use ipu_k8s::crd::{Document, FieldEdit, Manifest, read_manifests};
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject, PostParams};

use super::get::status_of;
use super::job_watch::{JobWatch, is_finished};
use crate::cli::{Format, Submit};
use crate::context::{Context, job_resource};
use crate::exit_code::{Code, Failure};
use crate::output::{self, List, render};

/// Creates the jobs of the file. Nothing is created if one of them breaks a rule.
pub(crate) async fn submit(
    arguments: &Submit,
    context: &Context,
    namespace: Option<&str>,
    format: Format,
) -> Result<Code, Failure> {
    let jobs = read(arguments)?;
    if arguments.wait && jobs.len() != 1 {
        let text = format!(
            "--wait requires a file with one IPUJob, but {} has {}; submit them one by one",
            arguments.file.display(),
            jobs.len()
        );
        return Err(Failure::new(Code::Usage, text));
    }
    if jobs.is_empty() {
        let text = format!("{} has no IPUJob", arguments.file.display());
        return Err(Failure::new(Code::Data, text));
    }
    check_namespaces(&jobs, namespace)?;
    let count = jobs.len();
    let mut created = Vec::new();
    let mut result = Ok(Code::Done);
    for job in jobs {
        match create(job, context).await {
            Ok(job) => {
                report(&job, arguments.wait, format)?;
                created.push(job);
            }
            Err(failure) => {
                result = Err(failure);
                break;
            }
        }
    }
    if arguments.wait
        && let [job] = created.as_slice()
    {
        return wait(job, context, format).await;
    }
    // Those before a failed one exist.
    match created.as_slice() {
        [] => {}
        [job] if count == 1 => output::result(&render(format, job, String::new)?)?,
        created => output::result(&render(format, &List::new(created), String::new)?)?,
    }
    result
}

/// Checks that no manifest names another namespace than `--namespace`, as `kubectl create` does.
fn check_namespaces(jobs: &[Manifest], namespace: Option<&str>) -> Result<(), Failure> {
    let Some(namespace) = namespace else {
        return Ok(());
    };
    for manifest in jobs {
        let named = manifest.job.metadata.namespace.as_deref();
        if let Some(named) = named.filter(|named| *named != namespace) {
            let text = format!(
                "--namespace {namespace}: line {} has metadata.namespace {named}, and both must be the same; remove one of them",
                manifest.line
            );
            return Err(Failure::new(Code::Usage, text));
        }
    }
    Ok(())
}

/// Prints that a job was created, unless documents are printed.
fn report(job: &DynamicObject, is_progress: bool, format: Format) -> Result<(), Failure> {
    let line = format!("ipujob/{} submitted", job.name_any());
    if is_progress {
        output::say(&line);
        return Ok(());
    }
    match format {
        Format::Table => output::result(&(line + "\n")),
        Format::Json | Format::Yaml => Ok(()),
    }
}

/// Reads the jobs of the file and checks them with the rules of the webhook, except for the limits of the
/// installation.
fn read(arguments: &Submit) -> Result<Vec<Manifest>, Failure> {
    let (text, name) = text_of(&arguments.file)?;
    let edits = arguments
        .set
        .iter()
        .map(|text| text.parse::<FieldEdit>())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| Failure::because(Code::Usage, "--set", error))?;
    let documents =
        read_manifests(&text, &edits).map_err(|error| Failure::because(Code::Data, name.clone(), error))?;
    let mut jobs = Vec::new();
    let mut faults = Vec::new();
    for document in documents {
        match document {
            Document::Skipped(other) => output::say(&format!(
                "Skipped {} {} in line {} of {name}: apply it by kubectl apply.",
                other.kind, other.name, other.line
            )),
            Document::IpuJob(manifest) => {
                faults.extend(violations(&manifest));
                jobs.push(*manifest);
            }
        }
    }
    if faults.is_empty() {
        return Ok(jobs);
    }
    Err(Failure::new(
        Code::Data,
        format!("{name} is invalid:\n  {}", faults.join("\n  ")),
    ))
}

/// Returns the broken rules of a job.
fn violations(manifest: &Manifest) -> Vec<String> {
    let mut checked = manifest.clone();
    // The API server sets them.
    let metadata = &mut checked.job.metadata;
    metadata.uid.get_or_insert_with(|| "unknown".into());
    metadata.namespace.get_or_insert_with(|| "default".into());
    if let Some(prefix) = &metadata.generate_name {
        let name = format!("{prefix}xxxxx");
        metadata.name.get_or_insert(name);
    }
    let line = manifest.line;
    // The webhook knows the limit of the installation.
    let parsed = checked.parse(&Limits::default().with_max_ipus(IpuCount::MAX));
    let violations = parsed.err().unwrap_or_default();
    violations
        .iter()
        .map(|violation| format!("line {line}: {violation}"))
        .collect()
}

fn text_of(file: &Path) -> Result<(String, String), Failure> {
    if file == Path::new("-") {
        let mut text = String::new();
        let read = std::io::stdin().read_to_string(&mut text);
        read.map_err(|error| Failure::because(Code::NotFound, "read standard input", error))?;
        return Ok((text, "standard input".into()));
    }
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::because(Code::NotFound, format!("read {name}"), error))?;
    Ok((text, name))
}

async fn create(manifest: Manifest, context: &Context) -> Result<DynamicObject, Failure> {
    let name = manifest.job.metadata.name.clone();
    let name = name.or_else(|| manifest.job.metadata.generate_name.clone());
    let namespace = manifest.job.metadata.namespace.clone();
    let namespace = namespace.unwrap_or_else(|| context.namespace.clone());
    let object = serde_json::to_value(&manifest.job)
        .and_then(serde_json::from_value::<DynamicObject>)
        .map_err(|error| Failure::because(Code::Bug, "convert the IPUJob", error))?;
    let api: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), &namespace, &job_resource());
    let created = api.create(&PostParams::default(), &object).await;
    created.map_err(|error| {
        let action = format!("create IPUJob {namespace}/{}", name.unwrap_or_default());
        Failure::api(action, error)
    })
}

/// Prints each change of phase or message until the job has finished; returns the exit code of the job.
async fn wait(job: &DynamicObject, context: &Context, format: Format) -> Result<Code, Failure> {
    let mut states = JobWatch::new(job, context);
    loop {
        let job = states.next().await?;
        let status = status_of(&job);
        if is_finished(&status) {
            output::result(&render(format, &job, String::new)?)?;
            let failed = u8::from(status.phase == Some(JobPhase::Failed));
            return Ok(Code::Job(status.exit_code.unwrap_or(failed)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_of_another_namespace_than_the_flag_is_refused() {
        let documents = read_manifests(
            "apiVersion: graphcore.ai/v1alpha1\nkind: IPUJob\nmetadata: {name: a, namespace: prod}\nspec: {}\n",
            &[],
        );
        let jobs: Vec<Manifest> = documents
            .unwrap()
            .into_iter()
            .filter_map(|document| match document {
                Document::IpuJob(manifest) => Some(*manifest),
                Document::Skipped(_) => None,
            })
            .collect();
        assert_eq!(jobs.len(), 1);
        assert!(check_namespaces(&jobs, None).is_ok());
        assert!(check_namespaces(&jobs, Some("prod")).is_ok());
        let failure = check_namespaces(&jobs, Some("team")).unwrap_err();
        assert_eq!(failure.code, Code::Usage);
        assert_eq!(
            failure.chain(),
            "--namespace team: line 1 has metadata.namespace prod, and both must be the same; remove one of them"
        );
    }
}
