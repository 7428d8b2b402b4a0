//! Reader of manifest files: YAML or JSON documents, some of which are IPUJobs.

use ipu_core::job::{ErrorList, Limits, ParsedJob, Violation, Warning};
use serde_json::Value;
use serde_saphyr::{Spanned, UserMessageFormatter};

use super::check::{Faults, read};
use super::edit::{EditError, FieldEdit};
use super::spec::IpuJob;

/// Maximum size of a manifest file in bytes. A Kubernetes object has at most 1.5 MiB; a file contains a few
/// of them.
pub const MAX_MANIFEST_BYTES: usize = 4 << 20;

/// Maximum number of violations that are reported for one job: more than a user reads, and few enough to be
/// compared with one another.
const MAX_VIOLATIONS: usize = 100;

/// One document of a file.
#[derive(Clone, Debug, PartialEq)]
pub enum Document {
    /// An IPUJob.
    IpuJob(Box<Manifest>),
    /// Another object, such as a PersistentVolume, which is skipped.
    Skipped(SkippedDocument),
}

/// An IPUJob of a manifest file.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// The readable part of the job.
    pub job: IpuJob,
    /// First line of the document, from 1.
    pub line: u64,
    /// Faults against the schema. [`Manifest::parse`] reports them.
    faults: Faults,
}

/// A document that is not an IPUJob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedDocument {
    /// Kind of the object; empty if it has none.
    pub kind: String,
    /// Name of the object; empty if it has none.
    pub name: String,
    /// First line of the document, from 1.
    pub line: u64,
}

/// Error of a text that is not a manifest file with an IPUJob.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// The file is too large.
    #[error("the file has {bytes} bytes; at most {MAX_MANIFEST_BYTES} are read")]
    TooLarge {
        /// Size in bytes.
        bytes: usize,
    },
    /// The file is neither YAML nor JSON.
    #[error("line {line}, column {column}: {message}")]
    Syntax {
        /// Line, from 1.
        line: u64,
        /// Column, from 1.
        column: u64,
        /// Message of the parser.
        message: String,
    },
    /// No document is an IPUJob.
    #[error(
        "no IPUJob in the file{}: a job starts with `apiVersion: {}` and `kind: {}`",
        others(found),
        IpuJob::API_VERSION,
        IpuJob::KIND
    )]
    NoIpuJob {
        /// Other documents of the file.
        found: Vec<SkippedDocument>,
    },
    /// A requested edit cannot be applied.
    #[error("the edit cannot be applied to the job in line {line}")]
    Edit {
        /// First line of the job.
        line: u64,
        /// Cause of the failure.
        source: EditError,
    },
}

fn others(found: &[SkippedDocument]) -> String {
    if found.is_empty() {
        return ", which is empty".into();
    }
    let found = found.iter().map(|other| format!("{} {}", other.kind, other.name));
    format!(", which has {}", found.collect::<Vec<_>>().join(", "))
}

impl Manifest {
    /// Reads an IPUJob from `value`, whatever its kind is.
    pub(crate) fn from_value(line: u64, value: Value) -> Self {
        let (job, faults) = read(value);
        Self { job, line, faults }
    }

    /// Parses the job as [`IpuJob::parse`] does. Fill in `job.metadata` (uid, name) before.
    ///
    /// # Errors
    ///
    /// Returns all violations: unknown fields, values of a wrong kind, and broken rules.
    pub fn parse(&self, limits: &Limits) -> Result<ParsedJob, ErrorList<Violation>> {
        let violations = match self.job.parse(limits) {
            Ok(mut parsed) if self.violations().is_empty() => {
                parsed.warnings.extend_from_slice(&self.faults.warnings);
                return Ok(parsed);
            }
            parsed => parsed.err(),
        };
        // A field that could not be read is not reported as absent too.
        let covers = |fault: &Violation, field: &str| {
            let fault = &fault.field;
            fault == field
                || fault.starts_with(&format!("{field}["))
                || field.starts_with(&format!("{fault}."))
        };
        let is_new = |violation: &Violation| {
            !self
                .violations()
                .iter()
                .any(|fault| covers(fault, &violation.field))
        };
        let rest = violations.into_iter().flatten().filter(is_new);
        let all = self.violations().iter().cloned().chain(rest);
        Err(all.take(MAX_VIOLATIONS).collect::<Vec<_>>().into())
    }

    /// Returns the unknown fields, and the values of a wrong kind.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.faults.violations
    }

    /// Returns values that only a host accepts, and fields of other versions of Kubernetes. [`Self::parse`]
    /// returns them too if there is no violation.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.faults.warnings
    }
}

/// Reads the documents of `text`, in order, and applies `edits` to each IPUJob among them. `kind: List`
/// counts as its items.
///
/// # Errors
///
/// The text is too large, neither YAML nor JSON, or has no IPUJob; or an edit cannot be applied. Violations
/// of an IPUJob are not errors here: [`Manifest::parse`] returns them.
pub fn read_manifests(text: &str, edits: &[FieldEdit]) -> Result<Vec<Document>, ManifestError> {
    if text.len() > MAX_MANIFEST_BYTES {
        return Err(ManifestError::TooLarge { bytes: text.len() });
    }
    let mut documents = Vec::new();
    for (line, value) in values(text)? {
        classify(line, value, edits, &mut documents)?;
    }
    let mut found = Vec::new();
    for document in &documents {
        match document {
            Document::IpuJob(_) => return Ok(documents),
            Document::Skipped(other) => found.push(other.clone()),
        }
    }
    Err(ManifestError::NoIpuJob { found })
}

/// Returns the documents of `text` with the first line of each.
fn values(text: &str) -> Result<Vec<(u64, Value)>, ManifestError> {
    // A sequence of JSON documents is not YAML, but kubectl accepts it.
    if text.trim_start().starts_with('{') {
        let stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        if let Ok(values) = stream.collect::<Result<Vec<_>, _>>() {
            return Ok(values.into_iter().map(|value| (1, value)).collect());
        }
    }
    // Twice the maximum size: aliases may repeat text, but must not exhaust the memory.
    let options = serde_saphyr::options! {
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_total_scalar_bytes: 2 * MAX_MANIFEST_BYTES,
        },
    };
    let values: Vec<Spanned<Value>> =
        serde_saphyr::from_multiple_with_options(text, options).map_err(|error| syntax(&error))?;
    Ok(values
        .into_iter()
        .map(|document| (document.defined.line(), document.value))
        .collect())
}

fn syntax(error: &serde_saphyr::Error) -> ManifestError {
    let location = error.location();
    let text = error.render_with_formatter(&UserMessageFormatter);
    // The location is reported separately; the message may repeat it.
    let message = text
        .lines()
        .next()
        .unwrap_or_default()
        .split(" at line ")
        .next()
        .unwrap_or_default();
    ManifestError::Syntax {
        line: location.map_or(1, |location| location.line()),
        column: location.map_or(1, |location| location.column()),
        message: message.to_owned(),
    }
}

fn classify(
    line: u64,
    mut value: Value,
    edits: &[FieldEdit],
    to: &mut Vec<Document>,
) -> Result<(), ManifestError> {
    let string_at = |value: &Value, pointer: &str| {
        let text = value.pointer(pointer).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let kind = string_at(&value, "/kind");
    if let ("List" | "IPUJobList", Some(Value::Array(items))) = (kind.as_str(), value.get_mut("items")) {
        for item in std::mem::take(items) {
            classify(line, item, edits, to)?;
        }
        return Ok(());
    }
    if !kind.eq_ignore_ascii_case(IpuJob::KIND) {
        let name = string_at(&value, "/metadata/name");
        to.push(Document::Skipped(SkippedDocument { kind, name, line }));
        return Ok(());
    }
    for edit in edits {
        edit.apply(&mut value)
            .map_err(|source| ManifestError::Edit { line, source })?;
    }
    to.push(Document::IpuJob(Box::new(Manifest::from_value(line, value))));
    Ok(())
}
