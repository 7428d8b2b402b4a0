//! Edits of a manifest from the command line: `spec.jobInstances=2`.

use std::fmt::Write as _;

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

impl std::str::FromStr for FieldEdit {
    type Err = EditError;

    fn from_str(text: &str) -> Result<Self, EditError> {
        let (path, value) = text
            .split_once('=')
            .ok_or_else(|| EditError::NoAssignment { text: text.into() })?;
        let mut segments = parse_path(path).ok_or_else(|| EditError::BadPath { path: path.into() })?;
        let is_rooted = matches!(segments.first(), Some(PathSegment::Field(first)) if first == "spec" || first == "metadata");
        if !is_rooted {
            segments.insert(0, PathSegment::Field("spec".into()));
        }
        let value = match value.trim() {
            "" => None,
            value => Some(serde_saphyr::from_str(value).unwrap_or_else(|_| Value::from(value))),
        };
        Ok(Self {
            path: segments,
            value,
        })
    }
}

impl std::fmt::Display for FieldEdit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&display_path(&self.path))?;
        match &self.value {
            Some(value) => {
                f.write_char('=')?;
                for c in value.to_string().chars() {
                    // JSON allows these characters unescaped; YAML does not.
                    match c {
                        '\u{7f}'..='\u{9f}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                            write!(f, "\\u{:04x}", u32::from(c))?
                        }
                        _ => f.write_char(c)?,
                    }
                }
                Ok(())
            }
            None => f.write_str("="),
        }
    }
}

impl FieldEdit {
    /// Applies the edit, and creates missing parents.
    pub(super) fn apply(&self, to: &mut Value) -> Result<(), EditError> {
        let mut at = to;
        let Some((last, parents)) = self.path.split_last() else {
            return Ok(());
        };
        for (i, segment) in parents.iter().enumerate() {
            at = self.enter(at, segment, i)?;
        }
        match (&self.value, last) {
            (Some(value), segment) => *self.enter(at, segment, parents.len())? = value.clone(),
            (None, PathSegment::Field(name)) => {
                at.as_object_mut().and_then(|object| object.remove(name));
            }
            (None, PathSegment::Item(index)) => {
                if let Some(items) = at.as_array_mut().filter(|items| *index < items.len()) {
                    items.remove(*index);
                }
            }
        }
        Ok(())
    }

    /// Returns the value at `segment`, after `depth` others, within `at`; creates it if absent.
    fn enter<'a>(
        &self,
        at: &'a mut Value,
        segment: &PathSegment,
        depth: usize,
    ) -> Result<&'a mut Value, EditError> {
        if at.is_null() {
            *at = match segment {
                PathSegment::Field(_) => Value::Object(Map::new()),
                PathSegment::Item(_) => Value::Array(Vec::new()),
            };
        }
        match (segment, at) {
            (PathSegment::Field(name), Value::Object(object)) => {
                Ok(object.entry(name.clone()).or_insert(Value::Null))
            }
            (PathSegment::Item(index), Value::Array(items)) if *index <= items.len() => {
                if *index == items.len() {
                    items.push(Value::Null);
                }
                Ok(&mut items[*index])
            }
            (PathSegment::Field(_) | PathSegment::Item(_), _) => Err(EditError::InTheWay {
                path: display_path(&self.path),
                at: display_path(&self.path[..depth]),
            }),
        }
    }
}

fn display_path(path: &[PathSegment]) -> String {
    let mut text = String::new();
    for segment in path {
        match segment {
            PathSegment::Field(name) => {
                let dot = if text.is_empty() { "" } else { "." };
                text.push_str(&format!("{dot}{}", name.replace('.', "\\.")));
            }
            PathSegment::Item(index) => text.push_str(&format!("[{index}]")),
        }
    }
    text
}

fn parse_path(path: &str) -> Option<Vec<PathSegment>> {
    let mut segments = Vec::new();
    // A character that names do not contain replaces escaped dots temporarily.
    for part in path.trim().replace("\\.", "\0").split('.') {
        let (name, indices) = part
            .split_once('[')
            .map_or((part, None), |(name, rest)| (name, Some(rest)));
        if name.is_empty() {
            return None;
        }
        segments.push(PathSegment::Field(name.replace('\0', ".")));
        for index in indices.into_iter().flat_map(|rest| rest.split('[')) {
            let index: usize = index.strip_suffix(']')?.parse().ok()?;
            segments.push(PathSegment::Item(
                Some(index).filter(|index| *index <= MAX_INDEX)?,
            ));
        }
    }
    Some(segments)
}
