//! The CustomResourceDefinition, generated from the table of fields.

mod cel;

use serde_json::{Map, Value, json};

use super::ipujob::IpuJob;
use super::schema::{Field, FieldKind, FieldPresence, IPU_JOB, SPEC, STATUS, WireFormat};

/// Path of the source of a variable in the schema of a pod template.
const ENV_VAR_SOURCE: &str =
    "/properties/spec/properties/containers/items/properties/env/items/properties/valueFrom";

/// Printable ASCII without `"` and `\`.
const TOKEN: &str = r"^[!#-\[\]-~]+$";

impl IpuJob {
    /// Returns the CustomResourceDefinition `ipujobs.graphcore.ai`, with the schema of a pod template.
    ///
    /// The caller chooses the version of Kubernetes by the schema of the template. It has to be structural:
    /// without references, and with a type at every level. The version of this repository is
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
                // An operator replaces the CRD of an older version only.
                "annotations": {"graphcore.ai/crd-version": env!("CARGO_PKG_VERSION")},
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
                    "schema": {"openAPIV3Schema": object_schema(pod_template)},
                    "subresources": {
                        "status": {},
                        // The original CRD reported the desired count here, so clients of the scale
                        // subresource considered the scaling finished at once.
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

    /// Returns the messages of the CRD's rules for several fields, in order. The rule of a single field is in
    /// the schema of that field.
    #[must_use]
    pub fn rules() -> Vec<String> {
        cel::messages()
    }
}

/// The printer columns of the custom resource 1.2.0, in its spelling.
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

fn object_schema(pod_template: &Value) -> Value {
    let schema = Schema { pod_template };
    let description = |name: &str| {
        IPU_JOB
            .iter()
            .find(|field| field.name == name)
            .map_or("", |field| field.description)
    };
    let mut spec = schema.object("spec", SPEC);
    spec["description"] = description("spec").into();
    spec["x-kubernetes-validations"] = cel::spec_rules();
    let mut status = schema.object("status", STATUS);
    status["description"] = description("status").into();
    // One program writes the whole status. Field ownership would take as much space as the fields.
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
        "x-kubernetes-validations": cel::job_rules(),
    })
}

/// Generator of schemas.
struct Schema<'a> {
    pod_template: &'a Value,
}

impl Schema<'_> {
    /// Returns the schema of an object at `path` with these fields.
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
            WireFormat::Integer { min, max } => {
                let mut schema = json!({"type": "integer", "format": "int32"});
                if min > i32::MIN {
                    schema["minimum"] = min.into();
                }
                if max < i32::MAX {
                    schema["maximum"] = max.into();
                }
                schema
            }
            WireFormat::Long => json!({"type": "integer", "format": "int64"}),
            WireFormat::Float => json!({"type": "number"}),
            WireFormat::Count { max } => with_rule(cel::count(&path, max)),
            WireFormat::PowerOfTwo { max } => with_rule(cel::power_of_two(&path, max)),
            WireFormat::NumberOrText => number_or_text(),
            WireFormat::Pattern(pattern) => {
                let mut schema = number_or_text();
                schema["pattern"] = pattern.into();
                schema
            }
            WireFormat::Token { max } => {
                json!({"type": "string", "minLength": 1, "maxLength": max, "pattern": TOKEN})
            }
            WireFormat::OneOf(values) => json!({"type": "string", "enum": values}),
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
        schema["description"] = field.description.into();
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

/// Returns the schema of a number, as a number or a string, with a validation rule.
fn with_rule(rule: Value) -> Value {
    let mut schema = number_or_text();
    schema["x-kubernetes-validations"] = [rule].into_iter().collect();
    schema
}

fn anything() -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}
