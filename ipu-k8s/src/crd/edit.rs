//! Edits of a manifest from the command line: `spec.jobInstances=2`.

use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value};

/// Maximum index of a list item in an edit: far more than a job has, and too few to exhaust the memory.
const MAX_INDEX: usize = 1000;

/// One edit: a path and its new value.
///
/// A path consists of fields joined by dots, with `[n]` for an item of a list and `\.` for a dot within a
/// name. It starts with `spec` or `metadata`; any other path is relative to `spec`. The value is parsed as
/// YAML: `2`, `true`, `"2"`, `[a, b]`; an empty one removes the field.
///
/// ```
/// use ipu_k8s::crd::FieldEdit;
///
/// let edit: FieldEdit = "jobInstances=2".parse()?;
/// assert_eq!(edit.to_string(), "spec.jobInstances=2");
/// assert!("jobInstances".parse::<FieldEdit>().is_err());
/// # Ok::<(), ipu_k8s::crd::EditError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct FieldEdit {
    path: Vec<PathSegment>,
    /// `None` removes the field.
    value: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PathSegment {
    Field(String),
    Item(usize),
}

/// Error of an edit that is malformed or cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// The text is not of the form `path=value`.
    #[error("{text:?} is not of the form path=value, such as spec.jobInstances=2")]
    NoAssignment {
        /// Text of the edit.
        text: String,
    },
    /// The path is malformed.
    #[error("{path:?} is not a valid path such as spec.launcher.command[0], with indices up to {MAX_INDEX}")]
    BadPath {
        /// Text of the path.
        path: String,
    },
    /// The path leads through a value of another kind.
    #[error("{path} cannot be set: the value at {at} is of another kind")]
    InTheWay {
        /// Whole path.
        path: String,
        /// Longest prefix of the path that exists.
        at: String,
    },
}

impl FromStr for FieldEdit {
    type Err = EditError;

    fn from_str(text: &str) -> Result<Self, EditError> {
        let (path, value) = text
            .split_once('=')
            .ok_or_else(|| EditError::NoAssignment { text: text.into() })?;
        let mut path = parse_path(path).ok_or_else(|| EditError::BadPath { path: path.into() })?;
        if !matches!(&path[0], PathSegment::Field(first) if first == "spec" || first == "metadata") {
            path.insert(0, PathSegment::Field("spec".into()));
        }
        let value = match value.trim() {
            "" => None,
            value => Some(serde_saphyr::from_str(value).unwrap_or_else(|_| Value::from(value))),
        };
        Ok(Self { path, value })
    }
}

impl fmt::Display for FieldEdit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=", display_path(&self.path))?;
        let value = self.value.as_ref().map(Value::to_string).unwrap_or_default();
        for c in value.chars() {
            // JSON allows these characters unescaped; YAML does not.
            match c {
                '\u{7f}'..='\u{9f}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                    write!(f, "\\u{:04x}", u32::from(c))?
                }
                _ => write!(f, "{c}")?,
            }
        }
        Ok(())
    }
}

impl FieldEdit {
    /// Applies the edit, and creates missing parents.
    pub(super) fn apply(&self, to: &mut Value) -> Result<(), EditError> {
        let mut at = to;
        for (depth, segment) in self.path.iter().enumerate() {
            if at.is_null() {
                *at = match segment {
                    PathSegment::Field(_) => Value::Object(Map::new()),
                    PathSegment::Item(_) => Value::Array(Vec::new()),
                };
            }
            let is_removed = self.value.is_none() && depth + 1 == self.path.len();
            at = match (segment, at) {
                (PathSegment::Field(name), Value::Object(object)) if is_removed => {
                    object.remove(name);
                    return Ok(());
                }
                (PathSegment::Field(name), Value::Object(object)) => {
                    object.entry(name).or_insert(Value::Null)
                }
                (PathSegment::Item(index), Value::Array(items)) if is_removed && *index < items.len() => {
                    items.remove(*index);
                    return Ok(());
                }
                (PathSegment::Item(index), Value::Array(items)) if *index <= items.len() => {
                    if *index == items.len() {
                        items.push(Value::Null);
                    }
                    &mut items[*index]
                }
                _ => {
                    return Err(EditError::InTheWay {
                        path: display_path(&self.path),
                        at: display_path(&self.path[..depth]),
                    });
                }
            };
        }
        *at = self.value.clone().unwrap_or_default();
        Ok(())
    }
}

fn display_path(path: &[PathSegment]) -> String {
    let segments = path.iter().map(|segment| match segment {
        PathSegment::Field(name) => format!(".{}", name.replace('.', "\\.")),
        PathSegment::Item(index) => format!("[{index}]"),
    });
    segments.collect::<String>().trim_start_matches('.').to_owned()
}

fn parse_path(path: &str) -> Option<Vec<PathSegment>> {
    let mut segments = Vec::new();
    // A character that names do not contain replaces escaped dots temporarily.
    for part in path.trim().replace("\\.", "\0").split('.') {
        let mut parts = part.split('[');
        let name = parts.next().filter(|name| !name.is_empty())?;
        segments.push(PathSegment::Field(name.replace('\0', ".")));
        for index in parts {
            let index = index.strip_suffix(']')?.parse().ok()?;
            segments.push(PathSegment::Item(
                Some(index).filter(|index| *index <= MAX_INDEX)?,
            ));
        }
    }
    Some(segments)
}
