//! `kubectl ipu submit`: checks the IPUJobs of a file, creates them, and waits for one.

mod positions;

use std::io::Read as _;
use std::path::Path;

use ipu_core::IpuCount;
use ipu_core::job::{JobPhase, Limits};
use ipu_k8s::crd::{Document, FieldEdit, Manifest, read_manifests};
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::Request;

use self::positions::Positions;
use super::get::status_of;
use super::job_watch::{JobWatch, is_finished};
use crate::cli::{Format, Submit};
use crate::context::{Context, job_resource};
use crate::exit_code::{Code, Failure, api_failure, api_text};
use crate::output::{self, List, render};

/// A manifest file.
struct ManifestFile {
    name: String,
    jobs: Vec<Manifest>,
    positions: Positions,
}

/// Creates the jobs of the file. Nothing is created if the API server refuses one of them.
pub(crate) async fn submit(
    arguments: &Submit,
    context: &Context,
    namespace: Option<&str>,
    format: Format,
) -> Result<Code, Failure> {
    let file = ManifestFile::read(arguments)?;
    let count = file.jobs.len();
    if arguments.wait && count != 1 {
        let text = format!(
            "--wait requires a file with one IPUJob, but {} has {count}; submit them one by one",
            file.name
        );
        return Err(Failure::new(Code::Usage, text));
    }
    check_namespaces(&file.jobs, namespace)?;
    for job in &file.jobs {
        file.create(job, context, true).await?;
    }
    let mut created = Vec::new();
    let mut result = Ok(Code::Done);
    for job in &file.jobs {
        match file.create(job, context, false).await {
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
    match created.as_slice() {
        [job] if arguments.wait => return wait(job, context, format).await,
        [] => {}
        [job] if count == 1 => output::result(&render(format, job, String::new)?)?,
        // Those before a failed one exist.
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

impl ManifestFile {
    /// Reads the jobs of the file and checks them with the rules of the webhook, except for the limits of the
    /// installation.
    fn read(arguments: &Submit) -> Result<Self, Failure> {
        let (text, name) = text_of(&arguments.file)?;
        let edits = arguments
            .set
            .iter()
            .map(|text| text.parse::<FieldEdit>())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| Failure::because(Code::Usage, "--set", error))?;
        let documents = read_manifests(&text, &edits)
            .map_err(|error| Failure::because(Code::Data, name.clone(), error))?;
        let mut file = Self {
            name,
            jobs: Vec::new(),
            positions: Positions::read(&text),
        };
        for document in documents {
            match document {
                Document::Skipped(other) => output::say(&format!(
                    "Skipped {} {} in line {} of {}: apply it by kubectl apply.",
                    other.kind, other.name, other.line, file.name
                )),
                Document::IpuJob(manifest) => file.jobs.push(*manifest),
            }
        }
        let faults: Vec<String> = file.jobs.iter().flat_map(|job| file.check(job)).collect();
        if faults.is_empty() {
            Ok(file)
        } else {
            Err(file.invalid(&faults))
        }
    }

    fn invalid(&self, faults: &[String]) -> Failure {
        Failure::new(
            Code::Data,
            format!("{} is invalid:\n  {}", self.name, faults.join("\n  ")),
        )
    }

    /// Returns the position of a field, or of its document.
    fn position(&self, manifest: &Manifest, field: &str) -> String {
        match self.positions.find(manifest.line, field) {
            Some((line, column)) => format!("line {line}, column {column}"),
            None => format!("line {}", manifest.line),
        }
    }

    /// Returns the broken rules of a job. Prints its warnings if it has none.
    fn check(&self, manifest: &Manifest) -> Vec<String> {
        let mut checked = manifest.clone();
        // The API server sets them.
        let metadata = &mut checked.job.metadata;
        metadata.uid.get_or_insert_with(|| "unknown".into());
        metadata.namespace.get_or_insert_with(|| "default".into());
        if let Some(prefix) = &metadata.generate_name {
            let name = format!("{prefix}xxxxx");
            metadata.name.get_or_insert(name);
        }
        // The webhook knows the limit of the installation.
        let parsed = checked.parse(&Limits::default().with_max_ipus(IpuCount::MAX));
        let missing = checked.job.missing_images();
        let violations = match parsed {
            Ok(parsed) if missing.is_empty() => {
                for warning in &parsed.warnings {
                    output::say(&format!("Warning: {warning}"));
                }
                return Vec::new();
            }
            parsed => parsed.err().into_iter().flatten().chain(missing),
        };
        violations
            .map(|violation| format!("{}: {violation}", self.position(manifest, &violation.field)))
            .collect()
    }

    /// Creates a job, with the strict validation of fields that `kubectl apply` has. Stores nothing in a dry
    /// run.
    async fn create(
        &self,
        manifest: &Manifest,
        context: &Context,
        dry_run: bool,
    ) -> Result<DynamicObject, Failure> {
        let metadata = &manifest.job.metadata;
        let name = metadata.name.as_ref().or(metadata.generate_name.as_ref());
        let namespace = metadata.namespace.as_ref().unwrap_or(&context.namespace);
        let api: Api<DynamicObject> =
            Api::namespaced_with(context.client.clone(), namespace, &job_resource());
        let params = PostParams {
            dry_run,
            ..PostParams::default()
        };
        let convert = |error| Failure::because(Code::Bug, "convert the IPUJob", error);
        let body = serde_json::to_vec(&manifest.job).map_err(convert)?;
        let mut request = Request::new(api.resource_url())
            .create(&params, body)
            .map_err(|error| Failure::because(Code::Bug, "build a request", error))?;
        let uri = request.uri().to_string();
        let separator = if uri.contains('?') { '&' } else { '?' };
        *request.uri_mut() = format!("{uri}{separator}fieldValidation=Strict")
            .parse()
            .map_err(|error| Failure::because(Code::Bug, "build a request", error))?;
        let created = context.client.request::<DynamicObject>(request).await;
        created.map_err(|error| {
            let text = api_text(&error);
            let unknown = text.split("unknown field \"").skip(1);
            let faults: Vec<String> = unknown
                .filter_map(|rest| rest.split('"').next())
                .map(|field| {
                    format!(
                        "{}: unknown field {field}: correct or remove it",
                        self.position(manifest, field)
                    )
                })
                .collect();
            if faults.is_empty() {
                let name = name.map(String::as_str).unwrap_or_default();
                api_failure(format!("create IPUJob {namespace}/{name}"), error)
            } else {
                self.invalid(&faults)
            }
        })
    }
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
