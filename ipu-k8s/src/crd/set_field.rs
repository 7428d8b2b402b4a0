//! Changes to a manifest from the command line: `spec.jobInstances=2`.

use std::fmt::Write as _;

use serde_json::{Map, Value};

/// The longest list that an edit may grow: far more than a job has, and no way to fill the memory.
const MAX_INDEX: usize = 1000;

/// One change: a path and the value that it is to have.
///
/// The path is fields joined by dots, with `[n]` for an item of a list and `\.` for a dot within a name; it begins with
/// `spec` or `metadata`, and with anything else it counts from `spec`. The value is read as YAML: `2`, `true`,
/// `"2"`, `[a, b]`; an empty one removes the field.
///
/// ```
/// use ipu_k8s::crd::Edit;
///
/// let edit: Edit = "jobInstances=2".parse()?;
/// assert_eq!(edit.to_string(), "spec.jobInstances=2");
/// assert!("jobInstances".parse::<Edit>().is_err());
/// # Ok::<(), ipu_k8s::crd::EditError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct FieldEdit {
    path: Vec<PathSegment>,
    /// None removes the field.
    value: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PathSegment {
    Field(String),
    Item(usize),
}

/// Why an edit is none, or cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// Not of the form `path=value`.
    #[error("{text:?} is not of the form path=value, such as spec.jobInstances=2")]
    NoAssignment {
        /// What was given.
        text: String,
    },
    /// Not a path.
    #[error("{path:?} is not a path such as spec.launcher.command[0], with indices up to {MAX_INDEX}")]
    BadPath {
        /// What was given.
        path: String,
    },
    /// The path leads through something that has no parts of that kind.
    #[error("{path} cannot be set: what is at {at} is neither absent nor of that kind")]
    InTheWay {
        /// The whole path.
        path: String,
        /// As far as one can go.
        at: String,
    },
}

impl std::str::FromStr for FieldEdit {
    type Err = EditError;

    fn from_str(text: &str) -> Result<Self, EditError> {
        let (path, value) = text
            .split_once('=')
            .ok_or_else(|| EditError::NoAssignment { text: text.into() })?;
        let mut steps = steps(path).ok_or_else(|| EditError::BadPath { path: path.into() })?;
        let rooted = matches!(steps.first(), Some(PathSegment::Field(first)) if first == "spec" || first == "metadata");
        if !rooted {
            steps.insert(0, PathSegment::Field("spec".into()));
        }
        let value = match value.trim() {
            "" => None,
            value => Some(serde_saphyr::from_str(value).unwrap_or_else(|_| Value::from(value))),
        };
        Ok(Self { path: steps, value })
    }
}

impl std::fmt::Display for FieldEdit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&shown(&self.path))?;
        match &self.value {
            Some(value) => {
                f.write_char('=')?;
                for c in value.to_string().chars() {
                    // JSON lets these stand as they are; in YAML they have to be escaped.
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
    /// Makes the change, with everything on the way to it.
    pub(super) fn apply(&self, to: &mut Value) -> Result<(), EditError> {
        let mut at = to;
        let Some((last, way)) = self.path.split_last() else {
            return Ok(());
        };
        for (i, step) in way.iter().enumerate() {
            at = self.enter(at, step, i)?;
        }
        match (&self.value, last) {
            (Some(value), step) => *self.enter(at, step, way.len())? = value.clone(),
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

    /// What `step`, the one after `walked` others, leads to within `at`; made if absent.
    fn enter<'a>(
        &self,
        at: &'a mut Value,
        step: &PathSegment,
        walked: usize,
    ) -> Result<&'a mut Value, EditError> {
        if at.is_null() {
            *at = match step {
                PathSegment::Field(_) => Value::Object(Map::new()),
                PathSegment::Item(_) => Value::Array(Vec::new()),
            };
        }
        match (step, at) {
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
                path: shown(&self.path),
                at: shown(&self.path[..walked]),
            }),
        }
    }
}

fn shown(path: &[PathSegment]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            PathSegment::Field(name) => {
                let dot = if text.is_empty() { "" } else { "." };
                text.push_str(&format!("{dot}{}", name.replace('.', "\\.")));
            }
            PathSegment::Item(index) => text.push_str(&format!("[{index}]")),
        }
    }
    text
}

fn steps(path: &str) -> Option<Vec<PathSegment>> {
    let mut steps = Vec::new();
    // A character that names do not have stands for an escaped dot meanwhile.
    for part in path.trim().replace("\\.", "\0").split('.') {
        let (name, indices) = part
            .split_once('[')
            .map_or((part, None), |(name, rest)| (name, Some(rest)));
        if name.is_empty() {
            return None;
        }
        steps.push(PathSegment::Field(name.replace('\0', ".")));
        for index in indices.into_iter().flat_map(|rest| rest.split('[')) {
            let index: usize = index.strip_suffix(']')?.parse().ok()?;
            steps.push(PathSegment::Item(
                Some(index).filter(|index| *index <= MAX_INDEX)?,
            ));
        }
    }
    Some(steps)
}
