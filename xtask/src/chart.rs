//! Generates the schema of the chart's values, and their table in its README, from the comments of
//! `values.yaml`.
//!
//! A comment `# -- TEXT` before a key is its description and may continue on further lines. A comment
//! `# @schema JSON` adds rules to those that follow from the default. `# @refused KEY[, KEY]` before a map
//! names keys that the templates judge. A map with a description is one value with free keys; other maps
//! are groups.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::Generated;

const CHART: &str = "deploy/helm/ipu-operator";

const INTRODUCTION: &str = "\
<!-- Written by `cargo xtask gen` from values.yaml: edit that. -->

# ipu-operator

This chart installs the Kubernetes operator for Graphcore IPUs and the proxy to their V-IPU controllers.
`docs/helm.md` of the repository has the steps of an installation, an upgrade and an uninstallation.

The chart refuses values that it does not support, and names the replacement. It accepts the values files of
Graphcore's charts if their unsupported values have their defaults.

| Value | Default | Description |
|---|---|---|
";

/// A key of the values.
#[derive(Debug, Default, PartialEq)]
struct Entry {
    key: String,
    description: String,
    rules: Map<String, Value>,
    refused: Vec<String>,
    default: Value,
    children: Vec<Self>,
}

pub(crate) fn generate(root: &Path) -> Result<Vec<Generated>, Box<dyn Error>> {
    let folder = PathBuf::from(CHART);
    let entries = parse(&std::fs::read_to_string(root.join(CHART).join("values.yaml"))?)?;
    let mut readme = String::from(INTRODUCTION);
    for entry in &entries {
        write_rows("", entry, &mut readme)?;
    }
    Ok(vec![
        Generated {
            path: folder.join("values.schema.json"),
            text: serde_json::to_string_pretty(&root_schema(&entries))? + "\n",
        },
        Generated {
            path: folder.join("README.md"),
            text: crate::wrap::wrap(&readme),
        },
    ])
}

/// Parses the keys of a values file: block maps with two columns a level, and values on one line.
fn parse(text: &str) -> Result<Vec<Entry>, Box<dyn Error>> {
    // The groups that are open, the root first.
    let mut open = vec![Entry::default()];
    let mut next = Entry::default();
    let mut describes = false;
    for line in text.lines() {
        let content = line.trim_start();
        if content.is_empty() {
            (next, describes) = (Entry::default(), false);
        } else if let Some(comment) = content.strip_prefix('#') {
            let comment = comment.trim();
            if let Some(description) = comment.strip_prefix("-- ") {
                (next.description, describes) = (description.to_owned(), true);
            } else if let Some(rules) = comment.strip_prefix("@schema ") {
                (next.rules, describes) = (serde_json::from_str(rules)?, false);
            } else if let Some(keys) = comment.strip_prefix("@refused ") {
                (next.refused, describes) = (keys.split(", ").map(str::to_owned).collect(), false);
            } else if describes {
                next.description = format!("{} {comment}", next.description);
            }
        } else {
            let depth = (line.len() - content.len()) / 2;
            while open.len() > depth + 1 {
                close_group(&mut open)?;
            }
            let (key, value) = content.split_once(':').ok_or_else(|| unreadable(line))?;
            let mut entry = std::mem::take(&mut next);
            (entry.key, describes) = (key.to_owned(), false);
            if value.is_empty() {
                open.push(entry);
            } else {
                entry.default = serde_saphyr::from_str(value)?;
                open.last_mut()
                    .ok_or_else(|| unreadable(line))?
                    .children
                    .push(entry);
            }
        }
    }
    while open.len() > 1 {
        close_group(&mut open)?;
    }
    Ok(open.pop().unwrap_or_default().children)
}

fn unreadable(line: &str) -> String {
    format!("values.yaml: {line:?} is not a key, with two columns a level and a value on the same line")
}

/// Adds the innermost group to its parent.
fn close_group(open: &mut Vec<Entry>) -> Result<(), Box<dyn Error>> {
    let mut group = open.pop().ok_or("no group is open")?;
    let keys = group.children.iter();
    group.default = keys
        .map(|child| (child.key.clone(), child.default.clone()))
        .collect();
    let parent = open.last_mut().ok_or("the root has no parent")?;
    parent.children.push(group);
    Ok(())
}

impl Entry {
    /// Returns whether the keys below this one are values of their own.
    fn is_group(&self) -> bool {
        !self.children.is_empty() && self.description.is_empty()
    }

    fn schema(&self) -> Value {
        let mut schema = if self.is_group() {
            let mut group = group_schema(&self.children);
            for key in &self.refused {
                group["properties"][key] = json!({});
            }
            group
        } else {
            json!({"description": self.description, "type": type_of(&self.default)})
        };
        if self.rules.contains_key("enum")
            && let Some(schema) = schema.as_object_mut()
        {
            schema.remove("type");
        }
        for (rule, value) in &self.rules {
            schema[rule] = value.clone();
        }
        schema
    }
}

/// Returns the schema of the root. The templates judge its unknown keys, because an unescaped comma of
/// `--set` ends up there, and their message has the corrected command.
fn root_schema(entries: &[Entry]) -> Value {
    let mut schema = group_schema(entries);
    schema["$schema"] = json!("http://json-schema.org/draft-07/schema#");
    schema["additionalProperties"] = json!(true);
    schema
}

fn group_schema(entries: &[Entry]) -> Value {
    let properties: Map<String, Value> = entries
        .iter()
        .map(|entry| (entry.key.clone(), entry.schema()))
        .collect();
    json!({"type": "object", "additionalProperties": false, "properties": properties})
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Writes the rows of a key and of those below it.
fn write_rows(prefix: &str, entry: &Entry, text: &mut String) -> Result<(), Box<dyn Error>> {
    let key = format!("{prefix}{}", entry.key);
    if entry.is_group() {
        for child in &entry.children {
            write_rows(&format!("{key}."), child, text)?;
        }
        return Ok(());
    }
    if entry.description.is_empty() {
        return Err(format!("values.yaml: {key} has no description: write `# -- TEXT` before it").into());
    }
    writeln!(text, "| `{key}` | `{}` | {} |", entry.default, entry.description)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{parse, root_schema, write_rows};

    const VALUES: &str = "\
# Not a description.

# -- First line
# and second.
# @schema {\"minimum\": 1}
size: 2
# @refused old
group:
  # -- Free keys.
  # @schema {\"additionalProperties\": true}
  limits:
    memory: 1Mi
  # -- One of two.
  # @schema {\"enum\": [\"a\", \"b\"]}
  kind: a
";

    #[test]
    fn descriptions_rules_and_defaults_become_a_schema_and_rows() {
        let entries = parse(VALUES).unwrap();
        let schema = root_schema(&entries);
        assert_eq!(schema["properties"]["size"]["minimum"], 1);
        assert_eq!(schema["properties"]["size"]["type"], "integer");
        let group = &schema["properties"]["group"];
        assert_eq!(group["additionalProperties"], false);
        assert_eq!(group["properties"]["old"], serde_json::json!({}));
        assert_eq!(group["properties"]["limits"]["additionalProperties"], true);
        assert!(group["properties"]["kind"]["type"].is_null());
        let mut rows = String::new();
        for entry in &entries {
            write_rows("", entry, &mut rows).unwrap();
        }
        let expected = "\
| `size` | `2` | First line and second. |
| `group.limits` | `{\"memory\":\"1Mi\"}` | Free keys. |
| `group.kind` | `\"a\"` | One of two. |
";
        assert_eq!(rows, expected);
    }

    #[test]
    fn a_value_without_description_is_an_error() {
        let entries = parse("size: 2\n").unwrap();
        let error = write_rows("", &entries[0], &mut String::new()).unwrap_err();
        assert!(error.to_string().contains("size has no description"), "{error}");
    }
}
