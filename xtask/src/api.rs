//! `docs/reference/proxy-api.md` from the OpenAPI document of the proxy: every operation with its parameters, body, answers and
//! problems, and every object.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::Generated;

const DOCUMENT: &str = "services/vipu-proxy/src/openapi.json";

const INTRODUCTION: &str = "\
<!-- Written by `cargo xtask gen` from services/vipu-proxy/src/openapi.json: edit that. -->

# The API of the proxy

Every operation of [`vipu-proxy`](../proxy.md). A running proxy answers the same as an OpenAPI 3.1 document at `/openapi.json`; the
tests hold every answer against it. Bodies are JSON of at most 64 KiB; a field that is not known is refused. Times are
milliseconds since 1970.

Whoever may not only read shows a bearer token or a client certificate, see
[who may change something](../proxy.md#who-may-change-something). What is not done is told as `application/problem+json`, a
[`Problem`](#problem) with a stable `code`; the [codes](#problems) are below.

";

/// The methods in the order in which one meets them.
const METHODS: [&str; 4] = ["get", "put", "post", "delete"];

pub(crate) fn generate(root: &Path) -> Result<Vec<Generated>, Box<dyn Error>> {
    let document: Value = serde_json::from_str(&std::fs::read_to_string(root.join(DOCUMENT))?)?;
    let mut text = INTRODUCTION.to_owned();
    operations(&mut text, &document)?;
    problems(&mut text, &document)?;
    objects(&mut text, &document)?;
    Ok(vec![Generated {
        path: PathBuf::from("docs/reference/proxy-api.md"),
        text,
    }])
}

fn operations(text: &mut String, document: &Value) -> Result<(), Box<dyn Error>> {
    text.push_str("## Operations\n\n| operation | what it does |\n|---|---|\n");
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
                word(&operation["summary"])?
            )?;
            details.push_str(&operation_of(&name, operation)?);
        }
    }
    writeln!(text, "\n{details}")?;
    Ok(())
}

fn operation_of(name: &str, operation: &Value) -> Result<String, Box<dyn Error>> {
    let mut text = format!("### `{name}`\n\n{}.", word(&operation["summary"])?);
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
                word(&parameter["name"])?,
                word(&parameter["in"])?,
                type_of(&parameter["schema"]),
                description(parameter)
            )?;
        }
        text.push('\n');
    }
    if let Some((kind, content)) = map(&operation["requestBody"]["content"]).next() {
        let must = if operation["requestBody"]["required"] == true {
            ""
        } else {
            ", may be left out"
        };
        writeln!(text, "Body: {} as `{kind}`{must}.\n", type_of(&content["schema"]))?;
    }
    text.push_str("| answer | means | body |\n|---|---|---|\n");
    for (status, answer) in map(&operation["responses"]).filter(|(status, _)| *status != "default") {
        let mut contents = map(&answer["content"]);
        let body = contents.next().map_or_else(String::new, |(kind, content)| {
            format!("{} as `{kind}`", type_of(&content["schema"]))
        });
        writeln!(text, "| {status} | {} | {body} |", word(&answer["description"])?)?;
    }
    let codes: Vec<String> = list(&operation["x-problems"])
        .map(|code| format!("`{code}`"))
        .collect();
    if !codes.is_empty() {
        write!(text, "\nProblems: {}.\n", codes.join(", "))?;
    }
    text.push('\n');
    Ok(text)
}

fn problems(text: &mut String, document: &Value) -> Result<(), Box<dyn Error>> {
    text.push_str("## Problems\n\n");
    let everywhere: Vec<String> = list(&document["x-problems-of-all"])
        .map(|code| format!("`{code}`"))
        .collect();
    writeln!(
        text,
        "Besides those that are named there, any operation may answer {}.\n\n| code | status | means |\n|---|---|---|",
        everywhere.join(", ")
    )?;
    for (code, problem) in map(&document["x-problems"]) {
        writeln!(
            text,
            "| `{code}` | {} | {} |",
            problem["status"],
            word(&problem["description"])?
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
            writeln!(text, "{}.", type_of(schema))?;
            continue;
        }
        let required: Vec<&str> = list(&schema["required"]).collect();
        text.push_str("| field | type | |\n|---|---|---|\n");
        for (field, of) in map(&schema["properties"]) {
            let mut notes = Vec::new();
            if required.contains(&field.as_str()) {
                notes.push("always there".to_owned());
            }
            let told = description(of);
            if !told.is_empty() {
                notes.push(told);
            }
            writeln!(text, "| `{field}` | {} | {} |", type_of(of), notes.join("; "))?;
        }
    }
    Ok(())
}

/// What a schema takes, in words.
fn type_of(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap_or_default();
        return format!("[{name}](#{})", anchor_of(name));
    }
    if let Some(any) = schema["anyOf"].as_array() {
        let all: Vec<String> = any.iter().map(type_of).collect();
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
        Some("array") => format!("list of {}", type_of(&schema["items"])),
        Some("object") if schema["additionalProperties"].is_object() => {
            format!("names, each with {}", type_of(&schema["additionalProperties"]))
        }
        Some("integer") => match (schema["minimum"].as_i64(), schema["maximum"].as_i64()) {
            (Some(least), Some(most)) => format!("integer, {least} to {most}"),
            (Some(least), None) => format!("integer, at least {least}"),
            _ => "integer".to_owned(),
        },
        Some("string") => match (schema["pattern"].as_str(), schema["maxLength"].as_u64()) {
            (Some(pattern), _) => format!("string `{}`", pattern.replace('|', "\\|")),
            (None, Some(most)) => format!("string of at most {most} characters"),
            (None, None) => "string".to_owned(),
        },
        Some(other) => other.to_owned(),
        None => "anything".to_owned(),
    }
}

/// What is said of a field or a parameter, or of the value that it may have.
fn description(of: &Value) -> String {
    let inner = of["anyOf"].as_array().and_then(|any| any.first());
    let candidates = [Some(of), inner];
    let mut found = candidates
        .into_iter()
        .flatten()
        .filter_map(|at| at["description"].as_str());
    found.next().unwrap_or_default().replace('|', "\\|")
}

/// The anchor of a heading, as mdBook makes it.
fn anchor_of(heading: &str) -> String {
    let kept = heading.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_ascii_alphanumeric() || c == '-' || c == '_' => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

fn map(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

fn list(value: &Value) -> impl Iterator<Item = &str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn word(value: &Value) -> Result<&str, Box<dyn Error>> {
    value.as_str().ok_or_else(|| format!("{value} is no text").into())
}
