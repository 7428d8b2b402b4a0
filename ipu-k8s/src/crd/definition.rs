//! The definition of the resource, as Kubernetes wants it, from the table of fields.

mod cel;

use serde_json::{Map, Value, json};

use super::ipujob::IpuJob;
use super::schema::{Field, FieldKind, FieldPresence, IPU_JOB, SPEC, STATUS, WireFormat};

/// Where a Pod template says what the source of a variable is.
const ENV_VAR_SOURCE: &str =
    "/properties/spec/properties/containers/items/properties/env/items/properties/valueFrom";

/// Printable ASCII without `"` and `\`.
const TOKEN: &str = r"^[!#-\[\]-~]+$";

impl IpuJob {
    /// The CustomResourceDefinition `ipujobs.graphcore.ai`, around the schema of a Kubernetes Pod template.
    ///
    /// The template's schema is the caller's choice of a version of Kubernetes. It has to be structural: without
    /// references, and with a type in every place. What is generated for this repository is
    /// `deploy/crd/ipujobs.graphcore.ai.yaml`.
    ///
    /// ```
    /// use ipu_k8s::crd::IpuJob;
    /// use serde_json::json;
    ///
    /// let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    /// let definition = IpuJob::definition(&anything);
    /// assert_eq!(definition["metadata"]["name"], "ipujobs.graphcore.ai");
    /// ```
    #[must_use]
    pub fn definition(pod_template: &Value) -> Value {
        let (group, version) = Self::API_VERSION.split_once('/').unwrap_or_default();
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": format!("ipujobs.{group}"),
                "labels": {"app.kubernetes.io/name": "ipu-operator"},
            },
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {
                    "kind": Self::KIND,
                    "listKind": format!("{}List", Self::KIND),
                    "plural": "ipujobs",
                    "singular": "ipujob",
                    "shortNames": ["ipuj"],
                    "categories": ["all"],
                },
                "versions": [{
                    "name": version,
                    "served": true,
                    "storage": true,
                    "schema": {"openAPIV3Schema": whole(pod_template)},
                    "subresources": {
                        "status": {},
                        // The original told what was desired here, and whoever scaled thought at once that it was done.
                        "scale": {
                            "specReplicasPath": ".spec.jobInstances",
                            "statusReplicasPath": ".status.currentReplicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": columns(),
                }],
            },
        })
    }

    /// What the definition's rules for more than one field say of a job that breaks them, in their order. The rule of a single field is in
    /// the schema of the field.
    #[must_use]
    pub fn rules() -> Vec<String> {
        cel::messages()
    }
}

/// The columns of the custom resource 1.2.0, in its spelling.
fn columns() -> Value {
    let columns = [
        ("status", "string", ".status.launcherStatus"),
        ("current", "integer", ".status.currentReplicas"),
        ("desired", "integer", ".status.desiredReplicas"),
        ("LastMessage", "string", ".status.lastMessage"),
        ("Age", "date", ".metadata.creationTimestamp"),
    ];
    columns
        .iter()
        .map(|(name, kind, path)| json!({"name": name, "type": kind, "jsonPath": path}))
        .collect()
}

fn whole(pod_template: &Value) -> Value {
    let schema = Schema { pod_template };
    let about = |name: &str| {
        IPU_JOB
            .iter()
            .find(|field| field.name == name)
            .map_or("", |field| field.about)
    };
    let mut spec = schema.object("spec", SPEC);
    spec["description"] = about("spec").into();
    spec["x-kubernetes-validations"] = cel::of_spec();
    let mut status = schema.object("status", STATUS);
    status["description"] = about("status").into();
    // One program writes all of it. Who wrote which of its fields would take as much room as they do.
    status["x-kubernetes-map-type"] = "atomic".into();
    json!({
        "type": "object",
        "description": "A job that uses IPUs: how many it needs, which processes use them, and how it ends.",
        "properties": {
            "apiVersion": {"type": "string", "description": format!("{}.", IpuJob::API_VERSION)},
            "kind": {"type": "string", "description": format!("{}.", IpuJob::KIND)},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
        "x-kubernetes-validations": cel::of_job(),
    })
}

/// How schemas are made.
struct Schema<'a> {
    pod_template: &'a Value,
}

impl Schema<'_> {
    /// An object at `path` with these fields.
    fn object(&self, path: &str, fields: &[Field]) -> Value {
        let mut properties = Map::new();
        for field in fields {
            properties.insert(field.name.into(), self.field(path, field));
        }
        let mut schema = json!({"type": "object", "properties": properties});
        let required: Vec<_> = fields
            .iter()
            .filter(|field| matches!(field.presence, FieldPresence::Required))
            .map(|field| field.name)
            .collect();
        if !required.is_empty() {
            schema["required"] = required.into();
        }
        schema
    }

    fn field(&self, parent: &str, field: &Field) -> Value {
        let path = format!("{parent}.{}", field.name);
        let mut schema = match field.wire {
            WireFormat::Kind => self.kind(&path, field.kind),
            WireFormat::Integer { least, most } => {
                let mut schema = json!({"type": "integer", "format": "int32"});
                if least > i32::MIN {
                    schema["minimum"] = least.into();
                }
                if most < i32::MAX {
                    schema["maximum"] = most.into();
                }
                schema
            }
            WireFormat::Long => json!({"type": "integer", "format": "int64"}),
            WireFormat::Float => json!({"type": "number"}),
            WireFormat::Count { most } => ruled(cel::count(&path, most)),
            WireFormat::PowerOfTwo { most } => ruled(cel::power_of_two(&path, most)),
            WireFormat::NumberOrText => number_or_text(),
            WireFormat::Pattern(pattern) => {
                let mut schema = number_or_text();
                schema["pattern"] = pattern.into();
                schema
            }
            WireFormat::Token { most } => {
                json!({"type": "string", "minLength": 1, "maxLength": most, "pattern": TOKEN})
            }
            WireFormat::OneOf(words) => json!({"type": "string", "enum": words}),
            WireFormat::Time => json!({"type": "string", "format": "date-time"}),
            WireFormat::PodTemplate => self.pod_template.clone(),
            WireFormat::EnvVarSource => {
                let known = self.pod_template.pointer(ENV_VAR_SOURCE);
                known.cloned().unwrap_or_else(anything)
            }
            WireFormat::NumberMap => {
                json!({"type": "object", "additionalProperties": {"type": "integer", "format": "int64"}})
            }
            WireFormat::Integers => json!({"type": "array", "items": {"type": "integer", "format": "int32"}}),
        };
        schema["description"] = field.about.into();
        match field.presence {
            FieldPresence::Optional | FieldPresence::Required => {}
            FieldPresence::Number(number) => schema["default"] = number.into(),
            FieldPresence::Text(text) => schema["default"] = text.into(),
        }
        schema
    }

    fn kind(&self, path: &str, kind: FieldKind) -> Value {
        match kind {
            FieldKind::Scalar => number_or_text(),
            FieldKind::Text => json!({"type": "string"}),
            FieldKind::Flag => json!({"type": "boolean"}),
            FieldKind::Texts => json!({"type": "array", "items": {"type": "string"}}),
            FieldKind::TextMap => json!({"type": "object", "additionalProperties": {"type": "string"}}),
            FieldKind::Object(fields) => self.object(path, fields),
            FieldKind::Objects(fields) => json!({"type": "array", "items": self.object(path, fields)}),
            FieldKind::Any => anything(),
        }
    }
}

fn number_or_text() -> Value {
    json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]})
}

/// A number, bare or in quotes, that keeps a rule.
fn ruled(rule: Value) -> Value {
    let mut schema = number_or_text();
    schema["x-kubernetes-validations"] = [rule].into_iter().collect();
    schema
}

fn anything() -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}
