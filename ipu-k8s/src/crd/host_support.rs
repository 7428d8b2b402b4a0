//! The part of a pod template that a bare host supports, and a list of the fields that it ignores.

use ipu_core::{EnvVar, Violation};
use serde_json::{Map, Value};

use super::ipujob::IpuJob;

const TEMPLATE: &str = "spec.workers.template";

/// A job's pod template on a host without containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView {
    /// First container, which the workers run.
    pub container: HostContainer,
    /// Variables of the workers and of the launcher whose value only Kubernetes can resolve.
    pub unsupported_env: Vec<UnsupportedEnv>,
    /// Ignored fields of the template, then those of the first container.
    pub ignored: Vec<IgnoredField>,
}

/// The first container of a template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    pub env: Vec<EnvVar>,
    /// Working directory.
    pub working_dir: Option<String>,
}

/// A variable whose value only Kubernetes can resolve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedEnv {
    /// Path of the variable.
    pub field: String,
    /// Name of the variable.
    pub name: String,
    /// Kind of the source: `secretKeyRef`, for example.
    pub source: String,
}

/// A field of a template that a host ignores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredField {
    /// Path of the field.
    pub field: String,
    /// Summary of its value: the volume `data (nfs)`, for example.
    pub what: String,
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
    /// Returns the part of the job's pod template that a bare host supports, and the ignored fields.
    ///
    /// # Errors
    ///
    /// The template has no container, or a field that a host needs is of a wrong kind.
    pub fn host_view(&self) -> Result<HostView, Vec<Violation>> {
        let mut reader = TemplateReader::default();
        let template = self.spec.workers.as_ref().and_then(|w| w.template.as_ref());
        let template = template.and_then(|template| template.0.as_object());
        let container = template.and_then(|template| reader.template(template));
        self.launcher_env(&mut reader);
        match container {
            Some(container) if reader.violations.is_empty() => Ok(HostView {
                container,
                unsupported_env: reader.unsupported_env,
                ignored: reader.ignored,
            }),
            Some(_) => Err(reader.violations),
            None => {
                reader.violations.push(no_containers(None));
                Err(reader.violations)
            }
        }
    }

    /// Returns the violation of a job whose workers have nothing to run, on any platform: it would hold IPUs
    /// and never use them.
    pub(super) fn without_containers(&self) -> Option<Violation> {
        let template = self.spec.workers.as_ref().and_then(|w| w.template.as_ref());
        let containers = template.and_then(|template| template.0.pointer("/spec/containers"));
        match containers {
            None | Some(Value::Null) => Some(no_containers(None)),
            Some(Value::Array(items)) if items.is_empty() => Some(no_containers(Some("[]"))),
            // The schema of a pod refuses values that are not lists.
            Some(_) => None,
        }
    }

    fn launcher_env(&self, reader: &mut TemplateReader) {
        let env = self.spec.launcher.iter().flat_map(|launcher| &launcher.env);
        for (i, var) in env.enumerate() {
            if let Some(source) = &var.value_from {
                reader.unsupported(&format!("spec.launcher.env[{i}]"), &var.name, source);
            }
        }
    }
}

fn no_containers(value: Option<&str>) -> Violation {
    Violation::new(
        &format!("{TEMPLATE}.spec.containers"),
        value,
        "its first item defines the process of the workers",
        "add a container with a name, an image and a command",
    )
}

/// Findings about a template.
#[derive(Default)]
struct TemplateReader {
    violations: Vec<Violation>,
    unsupported_env: Vec<UnsupportedEnv>,
    ignored: Vec<IgnoredField>,
}

impl TemplateReader {
    fn template(&mut self, template: &Map<String, Value>) -> Option<HostContainer> {
        if let Some(annotations) = template.get("metadata").and_then(|m| m.get("annotations")) {
            self.ignore(&format!("{TEMPLATE}.metadata.annotations"), annotations);
        }
        let spec = template.get("spec")?.as_object()?;
        let path = format!("{TEMPLATE}.spec");
        let mut first = None;
        for (name, value) in spec {
            let field = format!("{path}.{name}");
            match (name.as_str(), value) {
                ("containers", Value::Array(containers)) => {
                    first = containers.first().and_then(Value::as_object);
                    for (i, container) in containers.iter().enumerate().skip(1) {
                        self.ignore(&format!("{field}[{i}]"), container);
                    }
                }
                ("volumes", Value::Array(volumes)) => {
                    for (i, volume) in volumes.iter().enumerate() {
                        self.ignore(&format!("{field}[{i}]"), volume);
                    }
                }
                _ => self.ignore(&field, value),
            }
        }
        first.map(|container| self.container(container, &format!("{path}.containers[0]")))
    }

    fn container(&mut self, fields: &Map<String, Value>, path: &str) -> HostContainer {
        let mut container = HostContainer::default();
        for (name, value) in fields {
            let field = format!("{path}.{name}");
            match name.as_str() {
                "name" => container.name = self.text(&field, value).unwrap_or_default(),
                "image" => {
                    container.image = self.text(&field, value);
                    self.ignore(&field, value);
                }
                "workingDir" => container.working_dir = self.text(&field, value),
                "command" => container.command = self.texts(&field, value),
                "args" => container.args = self.texts(&field, value),
                "env" => container.env = self.env(&field, value),
                _ => self.ignore(&field, value),
            }
        }
        container
    }

    fn env(&mut self, path: &str, value: &Value) -> Vec<EnvVar> {
        let mut env = Vec::new();
        for (i, item) in self.items(path, value).iter().enumerate() {
            let path = format!("{path}[{i}]");
            let Some(name) = item.get("name").and_then(Value::as_str) else {
                self.report_invalid(
                    &format!("{path}.name"),
                    item.get("name"),
                    "a variable must have a name, which is a string",
                );
                continue;
            };
            if name.is_empty() || name.contains(['=', '\0']) {
                let rule = "the name of a variable must not be empty or contain = or NUL";
                self.report_invalid(&format!("{path}.name"), item.get("name"), rule);
                continue;
            }
            match (item.get("value"), item.get("valueFrom")) {
                (_, Some(source)) => self.unsupported(&path, name, source),
                (None | Some(Value::Null), None) => env.push(EnvVar {
                    name: name.into(),
                    value: String::new(),
                }),
                (Some(value), None) => {
                    if let Some(value) = self.text(&format!("{path}.value"), value) {
                        env.push(EnvVar {
                            name: name.into(),
                            value,
                        });
                    }
                }
            }
        }
        env
    }

    fn unsupported(&mut self, path: &str, name: &str, source: &Value) {
        self.unsupported_env.push(UnsupportedEnv {
            field: path.into(),
            name: name.into(),
            source: keys(source),
        });
    }

    fn texts(&mut self, path: &str, value: &Value) -> Vec<String> {
        let items = self.items(path, value).to_vec();
        let texts = items.iter().enumerate();
        texts
            .filter_map(|(i, item)| self.text(&format!("{path}[{i}]"), item))
            .collect()
    }

    fn items<'a>(&mut self, path: &str, value: &'a Value) -> &'a [Value] {
        match value {
            Value::Array(items) => items,
            Value::Null => &[],
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
                self.report_invalid(path, Some(value), "must be a list");
                &[]
            }
        }
    }

    fn text(&mut self, path: &str, value: &Value) -> Option<String> {
        if let Value::String(text) = value {
            if text.contains('\0') {
                self.report_invalid(path, Some(value), "must not contain a NUL character");
                return None;
            }
            return Some(text.clone());
        }
        if !value.is_null() {
            self.report_invalid(path, Some(value), "must be a string");
        }
        None
    }

    fn report_invalid(&mut self, path: &str, value: Option<&Value>, rule: &str) {
        // The value of a variable may be a secret.
        let secret = path.ends_with("].value");
        let shown = value.map(|value| if secret { "…".into() } else { value.to_string() });
        let fix = "write it as in a Kubernetes manifest, numbers in a string in quotes";
        self.violations
            .push(Violation::new(path, shown.as_deref(), rule, fix));
    }

    fn ignore(&mut self, field: &str, value: &Value) {
        self.ignored.push(IgnoredField {
            field: field.into(),
            what: summary(value),
        });
    }
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
