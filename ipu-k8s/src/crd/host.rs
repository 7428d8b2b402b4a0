//! The part of a Pod template that a bare host supports, and a list of the fields that it ignores.

use ipu_core::job::{EnvVar, ErrorList, Violation, Warning};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::job_container::{DEFAULT_CONTAINER, job_container};
use super::spec::IpuJob;

const TEMPLATE_PATH: &str = "spec.workers.template";

/// The fields of a container that a host supports, or at least reads.
const USED_FIELDS: [&str; 6] = ["name", "image", "command", "args", "env", "workingDir"];

/// A job's Pod template on a host without containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView {
    /// The container of the job, which the workers run: see [`job_container`].
    pub container: HostContainer,
    /// Warnings about variables of the workers and of the launcher whose value only Kubernetes can resolve.
    pub unsupported_env: Vec<Warning>,
    /// Ignored fields of the template, then those of the job's container, each with a summary of its value:
    /// `spec.volumes[0] (data (nfs))`, for example.
    pub ignored: Vec<String>,
}

/// The container of the job in a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HostContainer {
    /// Name of the container.
    pub name: String,
    /// Image, which a host ignores.
    pub image: Option<String>,
    /// Command; if empty, the image's entry point, which a host does not know.
    pub command: Vec<String>,
    /// Arguments to the command.
    pub args: Vec<String>,
    /// Variables with a value, in the order in which they are given.
    #[serde(skip)]
    pub env: Vec<EnvVar>,
    /// Working directory.
    pub working_dir: Option<String>,
}

impl HostContainer {
    /// Returns the program and its arguments, or `None` if the image would decide, which a host does not
    /// have.
    #[must_use]
    pub fn program(&self) -> Option<Vec<String>> {
        let program = || self.command.iter().chain(&self.args).cloned().collect();
        (!self.command.is_empty()).then(program)
    }
}

impl IpuJob {
    /// Returns the part of the job's Pod template that a bare host supports, and the ignored fields.
    ///
    /// ```
    /// use ipu_k8s::crd::{Document, read_manifests};
    ///
    /// let text = "
    /// apiVersion: graphcore.ai/v1alpha1
    /// kind: IPUJob
    /// metadata: {name: mnist}
    /// spec:
    ///   workers:
    ///     template: {spec: {hostIPC: true, containers: [{name: main, command: [./train.sh], args: [-v]}]}}
    /// ";
    /// let documents = read_manifests(text, &[])?;
    /// let [Document::IpuJob(manifest)] = &documents[..] else { panic!("the text has one IPUJob") };
    /// let view = manifest.job.host_view().expect("the template has a container");
    /// assert_eq!(view.container.program().unwrap(), ["./train.sh", "-v"]);
    /// assert_eq!(view.ignored, ["spec.workers.template.spec.hostIPC (true)"]);
    /// # Ok::<(), ipu_k8s::crd::ManifestError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The template has no container, or a field that a host needs is of a wrong kind.
    pub fn host_view(&self) -> Result<HostView, ErrorList<Violation>> {
        let index = self.job_container_index();
        let path = format!("{TEMPLATE_PATH}.spec.containers[{index}]");
        let mut ignored = Vec::new();
        let mut ignore = |field: String, value: &Value| ignored.push(format!("{field} ({})", summary(value)));
        let template = self
            .spec
            .workers
            .as_ref()
            .and_then(|workers| workers.template.as_ref());
        let annotations = template.and_then(|template| template.0["metadata"]["annotations"].as_object());
        let mut annotations = annotations.cloned().unwrap_or_default();
        // It selects the container.
        annotations.remove(DEFAULT_CONTAINER);
        if !annotations.is_empty() {
            ignore(
                format!("{TEMPLATE_PATH}.metadata.annotations"),
                &Value::Object(annotations),
            );
        }
        let mut container = &Value::Null;
        for (name, value) in self.pod_spec().and_then(Value::as_object).into_iter().flatten() {
            let field = format!("{TEMPLATE_PATH}.spec.{name}");
            match (name.as_str(), value) {
                ("containers" | "volumes", Value::Array(items)) => {
                    for (i, item) in items.iter().enumerate() {
                        match name.as_str() {
                            "containers" if i == index => container = item,
                            _ => ignore(format!("{field}[{i}]"), item),
                        }
                    }
                }
                _ => ignore(field, value),
            }
        }
        let Value::Object(fields) = container else {
            return Err(vec![no_containers(None)].into());
        };
        let mut known = Value::Object(Map::new());
        for (name, value) in fields {
            let is_known = USED_FIELDS.contains(&&**name);
            if is_known {
                known[name] = value.clone();
            }
            if !is_known || name == "image" {
                ignore(format!("{path}.{name}"), value);
            }
        }
        let mut violations = Vec::new();
        let mut unsupported_env = Vec::new();
        let mut env = Vec::new();
        for (i, variable) in known["env"].take().as_array().into_iter().flatten().enumerate() {
            let text = |field: &str| variable[field].as_str().unwrap_or_default().to_owned();
            let (field, name, value) = (format!("{path}.env[{i}]"), text("name"), text("value"));
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                let rule =
                    "a variable's name is not empty and holds no '=', and neither name nor value holds NUL";
                violations.push(Violation::new(
                    &field,
                    Some(&format!("{name:?}")),
                    rule,
                    "correct it",
                ));
            }
            match variable.get("valueFrom") {
                Some(source) => unsupported_env.push(from_kubernetes(&field, &name, source)),
                None => env.push(EnvVar { name, value }),
            }
        }
        let launcher_env = self.spec.launcher.iter().flat_map(|launcher| &launcher.env);
        for (i, variable) in launcher_env.enumerate() {
            let field = format!("spec.launcher.env[{i}]");
            let source = variable.value_from.as_ref();
            unsupported_env.extend(source.map(|source| from_kubernetes(&field, &variable.name, source)));
        }
        // A manifest was checked against the schema when it was read.
        let container: HostContainer = serde_json::from_value(known).unwrap_or_else(|error| {
            violations.push(Violation::new(
                &path,
                Some("{…}"),
                error.to_string(),
                "correct the value",
            ));
            HostContainer::default()
        });
        for (field, words) in [("command", &container.command), ("args", &container.args)] {
            for (i, word) in words.iter().enumerate().filter(|(_, word)| word.contains('\0')) {
                let field = format!("{path}.{field}[{i}]");
                let rule = "must not contain a NUL character";
                violations.push(Violation::new(&field, Some(word), rule, "remove it"));
            }
        }
        if !violations.is_empty() {
            return Err(violations.into());
        }
        Ok(HostView {
            container: HostContainer { env, ..container },
            unsupported_env,
            ignored,
        })
    }
}

impl IpuJob {
    /// Returns the index of the job's container in the Pod template; 0 if there are none.
    fn job_container_index(&self) -> usize {
        let template = self
            .spec
            .workers
            .as_ref()
            .and_then(|workers| workers.template.as_ref());
        let annotations = template.and_then(|template| template.0.pointer("/metadata/annotations"));
        let annotations =
            annotations.and_then(|annotations| serde_json::from_value(annotations.clone()).ok());
        let containers = self.pod_spec().and_then(|spec| spec["containers"].as_array());
        let containers = containers.into_iter().flatten();
        let names = containers.map(|container| container["name"].as_str().unwrap_or_default());
        let name = job_container(annotations.as_ref(), names.clone());
        names.into_iter().position(|one| Some(one) == name).unwrap_or(0)
    }
}

/// Returns the violation of a template whose workers have nothing to run.
pub(super) fn no_containers(value: Option<&str>) -> Violation {
    Violation::new(
        "spec.workers.template.spec.containers",
        value,
        "its first item defines the process of the workers",
        "add a container with a name, an image and a command",
    )
}

fn from_kubernetes(field: &str, name: &str, source: &Value) -> Warning {
    let rule = format!(
        "is not set, because its value comes from Kubernetes ({})",
        keys(source)
    );
    Warning::new(field, Some(name), rule, "give it a value")
}

/// Returns a short summary of `value`: its name and its other fields.
fn summary(value: &Value) -> String {
    match value {
        Value::Object(object) => match object.get("name").and_then(Value::as_str) {
            Some(name) => {
                let others: Vec<_> = object
                    .keys()
                    .filter(|key| *key != "name")
                    .map(String::as_str)
                    .collect();
                format!("{name} ({})", others.join(", "))
            }
            None => keys(value),
        },
        Value::Array(items) => items.iter().map(summary).collect::<Vec<_>>().join("; "),
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

fn keys(value: &Value) -> String {
    let keys = value.as_object().into_iter().flat_map(Map::keys);
    keys.map(String::as_str).collect::<Vec<_>>().join(", ")
}
