//! A CRD as a page of the book.

use std::error::Error;
use std::fmt::Write as _;

use serde_json::{Map, Value};

const JOB: &str = "\
<!-- Written by `cargo xtask gen` from ipu-k8s/src/crd/spec.rs: edit that. -->

# The custom resource IPUJob

This page describes the CRD `deploy/crd/ipujobs.graphcore.ai.yaml`, which is derived from the same type.
[Jobs](../ipujob.md) explains the fields with examples and rules. `kubectl explain ipujob.spec` shows the same
descriptions.

```console,norun
$ kubectl apply -f deploy/crd/ipujobs.graphcore.ai.yaml
```

The CRD accepts every manifest of the custom resource 1.2.0 and of the alpha form, also from strict clients.
It replaces the CRD 1.2.0 in place and keeps stored jobs.

";

const PARTITION: &str = "\
<!-- Written by `cargo xtask gen` from ipu-k8s/src/crd/ipupartition.rs: edit that. -->

# The custom resource IPUPartition

This page describes the CRD `deploy/crd/ipupartitions.graphcore.ai.yaml`, which is derived from the same type.
[IPUs for any kind of job](../ipupartition.md) explains its use. `kubectl explain ipupartition.spec` shows the
same descriptions.

";

const SCALING: &str = "\
`kubectl scale ipujob NAME --replicas N` and a HorizontalPodAutoscaler change `spec.jobInstances`. The scale
subresource reports `status.currentReplicas`, the running instances. The custom resource 1.2.0 reported the
desired instances instead, so `kubectl wait` and autoscalers treated a job as scaled too early.
`status.selector` is the label selector of its workers.

";

const NUMBERS: &str = "\
*integer* is an unquoted number. *number or text* may be quoted, as the custom resource 1.2.0 requires:
`\"4\"` and `4` are equal. `ipuctl` accepts quotes everywhere. A default is stored with the job; without one,
the description states the effective value.

";

pub(super) fn render_job(definition: &Value) -> Result<String, Box<dyn Error>> {
    let after_columns = format!("\n## Scaling\n\n{SCALING}## Spec fields\n\n{NUMBERS}");
    let admission = "also from `kubectl scale` and autoscalers. The [webhook](../ipujob.md) reports all other errors, \
                     as `ipuctl plan` does.";
    render(definition, JOB, &after_columns, admission)
}

pub(super) fn render_partition(definition: &Value) -> Result<String, Box<dyn Error>> {
    render(
        definition,
        PARTITION,
        "\n## Spec fields\n\n",
        "and stores nothing.",
    )
}

fn render(
    definition: &Value,
    introduction: &str,
    after_columns: &str,
    admission: &str,
) -> Result<String, Box<dyn Error>> {
    let names = &definition["spec"]["names"];
    let version = &definition["spec"]["versions"][0];
    let schema = &version["schema"]["openAPIV3Schema"];
    let mut text = introduction.to_owned();
    text.push_str("## Names\n\n| | |\n|---|---|\n");
    writeln!(
        text,
        "| group and version | `{}/{}` |",
        text_of(&definition["spec"]["group"])?,
        text_of(&version["name"])?
    )?;
    writeln!(text, "| kind | `{}`, namespaced |", text_of(&names["kind"])?)?;
    writeln!(
        text,
        "| for `kubectl` | `{}`, `{}`, `{}`; in the category `{}` |",
        text_of(&names["plural"])?,
        text_of(&names["singular"])?,
        text_of(&names["shortNames"][0])?,
        text_of(&names["categories"][0])?,
    )?;
    text.push_str("\n## Columns\n\n| column | shows |\n|---|---|\n");
    for column in version["additionalPrinterColumns"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let path = text_of(&column["jsonPath"])?.trim_start_matches('.');
        let wide = match column["priority"].as_i64() {
            Some(1..) => " (`-o wide`)",
            _ => "",
        };
        writeln!(
            text,
            "| {}{wide} | `{path}` |",
            text_of(&column["name"])?.to_uppercase()
        )?;
    }
    text.push_str(after_columns);
    table(&mut text, "spec", &schema["properties"]["spec"])?;
    text.push_str("\n## Status fields\n\nThe operator writes these fields; no other client should.\n\n");
    table(&mut text, "status", &schema["properties"]["status"])?;
    rules(&mut text, schema, admission)?;
    Ok(text)
}

fn table(text: &mut String, path: &str, schema: &Value) -> Result<(), Box<dyn Error>> {
    text.push_str("| field | type | default | meaning |\n|---|---|---|---|\n");
    rows(text, path, schema)
}

/// Writes a row for each field below `schema`, which is at `path`.
fn rows(text: &mut String, path: &str, schema: &Value) -> Result<(), Box<dyn Error>> {
    let (path, schema) = match schema.get("items") {
        Some(items) => (format!("{path}[]"), items),
        None => (path.to_owned(), schema),
    };
    let required: Vec<_> = schema["required"].as_array().into_iter().flatten().collect();
    for (name, field) in schema["properties"].as_object().unwrap_or(&Map::new()) {
        // Embedded Kubernetes types have no descriptions; Kubernetes documents them.
        let Some(description) = field["description"].as_str() else {
            continue;
        };
        let default = match field.get("default") {
            Some(value) => format!("`{}`", value.to_string().trim_matches('"')),
            None if required.iter().any(|required| *required == name) => "required".into(),
            None => String::new(),
        };
        writeln!(
            text,
            "| `{path}.{name}` | {} | {default} | {description} |",
            describe_type(field)
        )?;
        rows(text, &format!("{path}.{name}"), field)?;
    }
    Ok(())
}

fn describe_type(field: &Value) -> String {
    if field["x-kubernetes-int-or-string"] == true {
        return "number or text".into();
    }
    if let Some(values) = field["enum"].as_array() {
        let values = values.iter().filter_map(Value::as_str);
        return values
            .map(|value| format!("`{value}`"))
            .collect::<Vec<_>>()
            .join(", ");
    }
    let format = field["format"].as_str().unwrap_or_default();
    let min = field["minimum"].as_i64().map(|min| format!(" from {min}"));
    let max = field["maximum"].as_i64().map(|max| format!(" to {max}"));
    match (field["type"].as_str().unwrap_or_default(), format) {
        ("string", "date-time") => "time".into(),
        ("string", _) => "text".into(),
        ("array", _) => format!("list of {}", plural(&describe_type(&field["items"]))),
        ("integer", _) => format!("integer{}{}", min.unwrap_or_default(), max.unwrap_or_default()),
        ("boolean", _) => "true or false".into(),
        (other, _) => other.into(),
    }
}

fn plural(kind: &str) -> String {
    match kind.split_once(' ') {
        Some((noun, rest)) => format!("{noun}s {rest}"),
        None => format!("{kind}s"),
    }
}

/// Writes the messages of all rules: of several fields, and of one.
fn rules(text: &mut String, schema: &Value, admission: &str) -> Result<(), Box<dyn Error>> {
    write!(
        text,
        "\n## Rules\n\nThe API server refuses an invalid object or change with the applicable messages below, {admission}\n\n"
    )?;
    let spec = &schema["properties"]["spec"];
    for (path, rules) in [("spec.FIELD", schema), ("spec", spec)] {
        write_rules(text, path, rules)?;
    }
    for (name, field) in spec["properties"].as_object().into_iter().flatten() {
        write_rules(text, &format!("spec.{name}"), field)?;
    }
    Ok(())
}

/// Writes the messages of the rules at `path`. An expression ends with the message, after the field.
fn write_rules(text: &mut String, path: &str, schema: &Value) -> Result<(), Box<dyn Error>> {
    for rule in schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let message = match rule["message"].as_str() {
            Some(message) => message.to_owned(),
            None => {
                let expression = text_of(&rule["messageExpression"])?.trim_end_matches('\'');
                let (_, message) = expression.rsplit_once("+ '").ok_or("a message without text")?;
                let gap = if message.starts_with(':') { "" } else { " " };
                format!("{path}{gap}{message}")
            }
        };
        writeln!(text, "- {}", escape_html(&message))?;
    }
    Ok(())
}

/// Escapes HTML in a sentence.
fn escape_html(sentence: &str) -> String {
    sentence.replace('<', "&lt;").replace('>', "&gt;")
}

fn text_of(value: &Value) -> Result<&str, Box<dyn Error>> {
    value
        .as_str()
        .ok_or_else(|| format!("{value} is not a string in the CRD").into())
}
