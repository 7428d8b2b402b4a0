//! The definition of the IPUJob as a page of the book.

use std::error::Error;
use std::fmt::Write as _;

use ipu_k8s::crd::IpuJob;
use serde_json::{Map, Value};

const INTRODUCTION: &str = "\
<!-- Written by `cargo xtask gen` from ipu-k8s/src/crd/schema: edit that. -->

# The custom resource IPUJob

What a Kubernetes API server knows of an IPUJob: `deploy/crd/ipujobs.graphcore.ai.yaml`, made from the same table as this page. What
the fields mean together, with examples and rules, is told under [Jobs](../ipujob.md); `kubectl explain ipujob.spec` says the same as
the tables here.

```console,norun
$ kubectl apply -f deploy/crd/ipujobs.graphcore.ai.yaml
```

It accepts every manifest of the custom resource 1.2.0 and of the alpha form, also from strict clients. It replaces the definition
1.2.0 in place, and stored jobs stay.

";

const SCALING: &str = "\
`kubectl scale ipujob NAME --replicas N`, and a HorizontalPodAutoscaler, change `spec.jobInstances`. The scale subresource tells
`status.currentReplicas`, the instances that run, where the custom resource 1.2.0 told those desired, so that `kubectl wait` and
autoscalers do not take a job for scaled before it is. `status.selector` is the label selector of its workers.

";

const NUMBERS: &str = "\
*integer* is a bare number. *number or text* may stand in quotes, as the custom resource 1.2.0 wants it: `\"4\"` and `4` are the same.
`ipuctl` takes quotes everywhere. A default is stored with the job; where there is none, the description says what counts.

";

pub(super) fn render(definition: &Value) -> Result<String, Box<dyn Error>> {
    let names = &definition["spec"]["names"];
    let version = &definition["spec"]["versions"][0];
    let schema = &version["schema"]["openAPIV3Schema"];
    let mut text = INTRODUCTION.to_owned();
    text.push_str("## Names\n\n| | |\n|---|---|\n");
    writeln!(
        text,
        "| group and version | `{}/{}` |",
        word(&definition["spec"]["group"])?,
        word(&version["name"])?
    )?;
    writeln!(text, "| kind | `{}`, namespaced |", word(&names["kind"])?)?;
    writeln!(
        text,
        "| for `kubectl` | `{}`, `{}`, `{}`; in the category `{}` |",
        word(&names["plural"])?,
        word(&names["singular"])?,
        word(&names["shortNames"][0])?,
        word(&names["categories"][0])?,
    )?;
    text.push_str("\n## Columns\n\n| column | shows |\n|---|---|\n");
    for column in version["additionalPrinterColumns"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let path = word(&column["jsonPath"])?.trim_start_matches('.');
        writeln!(text, "| {} | `{path}` |", word(&column["name"])?.to_uppercase())?;
    }
    text.push_str("\n## Scaling\n\n");
    text.push_str(SCALING);
    text.push_str("## What a job asks for\n\n");
    text.push_str(NUMBERS);
    table(&mut text, "spec", &schema["properties"]["spec"])?;
    text.push_str("\n## What is recorded of it\n\nWritten by the operator; nobody else should.\n\n");
    table(&mut text, "status", &schema["properties"]["status"])?;
    rules(&mut text, schema)?;
    Ok(text)
}

fn table(text: &mut String, path: &str, schema: &Value) -> Result<(), Box<dyn Error>> {
    text.push_str("| field | type | default | meaning |\n|---|---|---|---|\n");
    rows(text, path, schema)
}

/// A row for each field below `schema`, which stands at `path`.
fn rows(text: &mut String, path: &str, schema: &Value) -> Result<(), Box<dyn Error>> {
    let (path, schema) = match schema.get("items") {
        Some(items) => (format!("{path}[]"), items),
        None => (path.to_owned(), schema),
    };
    let required: Vec<_> = schema["required"].as_array().into_iter().flatten().collect();
    for (name, field) in schema["properties"].as_object().unwrap_or(&Map::new()) {
        // Kubernetes' own parts have no descriptions, and are described by Kubernetes.
        let Some(about) = field["description"].as_str() else {
            continue;
        };
        let default = match field.get("default") {
            Some(value) => format!("`{}`", value.to_string().trim_matches('"')),
            None if required.iter().any(|required| *required == name) => "required".into(),
            None => String::new(),
        };
        writeln!(
            text,
            "| `{path}.{name}` | {} | {default} | {about} |",
            kind(field)
        )?;
        rows(text, &format!("{path}.{name}"), field)?;
    }
    Ok(())
}

fn kind(field: &Value) -> String {
    if field["x-kubernetes-int-or-string"] == true {
        return "number or text".into();
    }
    if let Some(words) = field["enum"].as_array() {
        let words = words.iter().filter_map(Value::as_str);
        return words
            .map(|word| format!("`{word}`"))
            .collect::<Vec<_>>()
            .join(", ");
    }
    let format = field["format"].as_str().unwrap_or_default();
    let least = field["minimum"].as_i64().map(|least| format!(" from {least}"));
    let most = field["maximum"].as_i64().map(|most| format!(" to {most}"));
    match (field["type"].as_str().unwrap_or_default(), format) {
        ("string", "date-time") => "time".into(),
        ("string", _) => "text".into(),
        ("array", _) => format!("list of {}", plural(&kind(&field["items"]))),
        ("integer", _) => format!("integer{}{}", least.unwrap_or_default(), most.unwrap_or_default()),
        ("boolean", _) => "true or false".into(),
        (other, _) => other.into(),
    }
}

fn plural(kind: &str) -> String {
    format!("{kind}s")
}

/// The messages of all rules: of more than one field, and of one.
fn rules(text: &mut String, schema: &Value) -> Result<(), Box<dyn Error>> {
    text.push_str(
        "\n## Rules\n\nThe API server refuses a job, and a change of one by whatever way (`kubectl scale` and autoscalers too), with what \
         applies of these messages. The [webhook](../ipujob.md) says everything else, as `ipuctl plan` does.\n\n",
    );
    for message in IpuJob::rules() {
        writeln!(text, "- {}", plain(&message))?;
    }
    let fields = schema["properties"]["spec"]["properties"].as_object();
    for field in fields.into_iter().flatten().map(|(_, field)| field) {
        for rule in field["x-kubernetes-validations"].as_array().into_iter().flatten() {
            writeln!(text, "- {}", plain(word(&rule["message"])?))?;
        }
    }
    Ok(())
}

/// A sentence of which nothing is taken for a tag of HTML.
fn plain(sentence: &str) -> String {
    sentence.replace('<', "&lt;").replace('>', "&gt;")
}

fn word(value: &Value) -> Result<&str, Box<dyn Error>> {
    value
        .as_str()
        .ok_or_else(|| format!("{value} is no text in the definition").into())
}
