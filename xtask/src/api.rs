//! Generates `docs/reference/proxy-api.md` from the OpenAPI document of the proxy: every operation with its
//! parameters, body, responses and problems, and every object.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::Generated;

const DOCUMENT: &str = "services/vipu-proxy/src/openapi.json";

const INTRODUCTION: &str = "\
<!-- Written by `cargo xtask gen` from services/vipu-proxy/src/openapi.json: edit that. -->

# The API of the proxy

This page lists every operation of [`vipu-proxy`](../proxy.md). A running proxy serves the same API as an
OpenAPI 3.1 document at `/openapi.json`, and the tests validate every response against it. Bodies are JSON of
at most 64 KiB; unknown fields are refused. Times are milliseconds since 1970.

Write operations need a bearer token or a client certificate: see [who may change
something](../proxy.md#who-may-change-something). Errors are `application/problem+json`, a
[`Problem`](#problem) with a stable `code`; the [codes](#problems) are below.

";

/// HTTP methods in display order.
const METHODS: [&str; 4] = ["get", "put", "post", "delete"];

pub(crate) fn generate(root: &Path) -> Result<Vec<Generated>, Box<dyn Error>> {
    let document: Value = serde_json::from_str(&std::fs::read_to_string(root.join(DOCUMENT))?)?;
    let mut text = INTRODUCTION.to_owned();
    operations(&mut text, &document)?;
    problems(&mut text, &document)?;
    objects(&mut text, &document)?;
    Ok(vec![Generated {
        path: PathBuf::from("docs/reference/proxy-api.md"),
        text: crate::wrap::wrap(&text),
    }])
}

fn operations(text: &mut String, document: &Value) -> Result<(), Box<dyn Error>> {
    text.push_str("## Operations\n\n| operation | effect |\n|---|---|\n");
    let mut details = String::new();
    for (path, methods) in map(&document["paths"]) {
        for method in METHODS {
            let Some(operation) = methods.get(method) else {
                continue;
            };
            let name = format!("{} {path}", method.to_uppercase());
            let anchor = anchor_of(&name);
            writeln!(
                text,
                "| [`{name}`](#{anchor}) | {} |",
                text_of(&operation["summary"])?
            )?;
            details.push_str(&render_operation(&name, operation)?);
        }
    }
    writeln!(text, "\n{details}")?;
    Ok(())
}

fn render_operation(name: &str, operation: &Value) -> Result<String, Box<dyn Error>> {
    let mut text = format!("### `{name}`\n\n{}.", text_of(&operation["summary"])?);
    if let Some(more) = operation["description"].as_str() {
        write!(text, " {more}")?;
    }
    if operation.get("security").is_some() {
        text.push_str(" Needs a token or a client certificate.");
    }
    text.push_str("\n\n");
    let parameters = operation["parameters"].as_array().map_or(&[][..], Vec::as_slice);
    if !parameters.is_empty() {
        text.push_str("| parameter | in | type | |\n|---|---|---|---|\n");
        for parameter in parameters {
            writeln!(
                text,
                "| `{}` | {} | {} | {} |",
                text_of(&parameter["name"])?,
                text_of(&parameter["in"])?,
                describe_type(&parameter["schema"]),
                description(parameter)
            )?;
        }
        text.push('\n');
    }
    if let Some((kind, content)) = map(&operation["requestBody"]["content"]).next() {
        let optionality = if operation["requestBody"]["required"] == true {
            ""
        } else {
            ", optional"
        };
        writeln!(
            text,
            "Body: {} as `{kind}`{optionality}.\n",
            describe_type(&content["schema"])
        )?;
    }
    text.push_str("| response | meaning | body |\n|---|---|---|\n");
    for (status, response) in map(&operation["responses"]).filter(|(status, _)| *status != "default") {
        let mut contents = map(&response["content"]);
        let body = contents.next().map_or_else(String::new, |(kind, content)| {
            format!("{} as `{kind}`", describe_type(&content["schema"]))
        });
        writeln!(
            text,
            "| {status} | {} | {body} |",
            text_of(&response["description"])?
        )?;
    }
    let codes: Vec<String> = list(&operation["x-problems"])
        .map(|code| format!("`{code}`"))
        .collect();
    if !codes.is_empty() {
        text.push_str("\nProblems:\n\n");
        for codes in codes.chunks(5) {
            writeln!(text, "- {}", codes.join(", "))?;
        }
    }
    text.push('\n');
    Ok(text)
}

fn problems(text: &mut String, document: &Value) -> Result<(), Box<dyn Error>> {
    text.push_str("## Problems\n\n");
    let common: Vec<String> = list(&document["x-problems-of-all"])
        .map(|code| format!("`{code}`"))
        .collect();
    writeln!(
        text,
        "Any operation can also return {}.\n\n| code | status | meaning |\n|---|---|---|",
        common.join(", ")
    )?;
    for (code, problem) in map(&document["x-problems"]) {
        writeln!(
            text,
            "| `{code}` | {} | {} |",
            problem["status"],
            text_of(&problem["description"])?
        )?;
    }
    text.push('\n');
    Ok(())
}

fn objects(text: &mut String, document: &Value) -> Result<(), Box<dyn Error>> {
    text.push_str("## Objects\n");
    for (name, schema) in map(&document["components"]["schemas"]) {
        write!(text, "\n### {name}\n\n")?;
        if let Some(description) = schema["description"].as_str() {
            writeln!(text, "{description}.\n")?;
        }
        if schema["properties"].is_null() {
            writeln!(text, "{}.", describe_type(schema))?;
            continue;
        }
        let required: Vec<&str> = list(&schema["required"]).collect();
        text.push_str("| field | type | |\n|---|---|---|\n");
        for (field, definition) in map(&schema["properties"]) {
            let mut notes = Vec::new();
            if required.contains(&field.as_str()) {
                notes.push("required".to_owned());
            }
            let note = description(definition);
            if !note.is_empty() {
                notes.push(note);
            }
            writeln!(
                text,
                "| `{field}` | {} | {} |",
                describe_type(definition),
                notes.join("; ")
            )?;
        }
    }
    Ok(())
}

/// Describes the type of a schema.
fn describe_type(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap_or_default();
        return format!("[{name}](#{})", anchor_of(name));
    }
    if let Some(any) = schema["anyOf"].as_array() {
        let all: Vec<String> = any.iter().map(describe_type).collect();
        return all.join(" or ");
    }
    if let Some(values) = schema["enum"].as_array() {
        let all: Vec<String> = values
            .iter()
            .map(|value| match value.as_str() {
                Some("") => "empty".to_owned(),
                Some(text) => format!("`{text}`"),
                None => format!("`{value}`"),
            })
            .collect();
        return all.join(", ");
    }
    match schema["type"].as_str() {
        Some("array") => format!("list of {}", describe_type(&schema["items"])),
        Some("object") if schema["additionalProperties"].is_object() => {
            format!(
                "names, each with {}",
                describe_type(&schema["additionalProperties"])
            )
        }
        Some("integer") => match (schema["minimum"].as_i64(), schema["maximum"].as_i64()) {
            (Some(min), Some(max)) => format!("integer, {min} to {max}"),
            (Some(min), None) => format!("integer, at least {min}"),
            _ => "integer".to_owned(),
        },
        Some("string") => match (schema["pattern"].as_str(), schema["maxLength"].as_u64()) {
            (Some(pattern), _) => format!("string `{}`", pattern.replace('|', "\\|")),
            (None, Some(max)) => format!("string of at most {max} characters"),
            (None, None) => "string".to_owned(),
        },
        Some(other) => other.to_owned(),
        None => "anything".to_owned(),
    }
}

/// Returns the description of a field or parameter, or of its value.
fn description(schema: &Value) -> String {
    let inner = schema["anyOf"].as_array().and_then(|any| any.first());
    let candidates = [Some(schema), inner];
    let mut found = candidates
        .into_iter()
        .flatten()
        .filter_map(|candidate| candidate["description"].as_str());
    found.next().unwrap_or_default().replace('|', "\\|")
}

/// Returns the anchor of a heading, as mdBook generates it.
fn anchor_of(heading: &str) -> String {
    let characters = heading.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_ascii_alphanumeric() || c == '-' || c == '_' => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    characters.collect()
}

fn map(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

fn list(value: &Value) -> impl Iterator<Item = &str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn text_of(value: &Value) -> Result<&str, Box<dyn Error>> {
    value
        .as_str()
        .ok_or_else(|| format!("{value} is not a string").into())
}
