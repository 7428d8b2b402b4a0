//! Reading a file of manifests: YAML documents or JSON, of which those that are IPUJobs are wanted.

use ipu_core::{JobOrigin, Limits, ParsedJob, Violation, Warning};
use serde_json::Value;
use serde_saphyr::Spanned;

use super::ipujob::IpuJob;
use super::schema::{IPU_JOB, prune};
use super::set_field::{EditError, FieldEdit};

/// The most bytes of a file of manifests. An object of Kubernetes has at most 1.5 MiB; a file holds a few of them.
pub const MAX_MANIFEST_BYTES: usize = 4 << 20;

/// One document of a file.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Document {
    /// An IPUJob.
    IpuJob(Box<Manifest>),
    /// Anything else, such as a PersistentVolume: not for us, and worth a word.
    Skipped(SkippedDocument),
}

/// An IPUJob as a file has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// What could be read of it.
    pub job: IpuJob,
    /// The line of the file that it begins in, from 1.
    pub line: u64,
    /// Fields that an IPUJob does not have, and values of a wrong kind. [`Manifest::parse`] reports them.
    faults: Vec<Violation>,
}

/// A document that is not an IPUJob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedDocument {
    /// Its kind; empty if it has none.
    pub kind: String,
    /// Its name; empty if it has none.
    pub name: String,
    /// The line of the file that it begins in, from 1.
    pub line: u64,
}

/// Why a text is not a file of manifests with an IPUJob.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// Too large.
    #[error("the file has {bytes} bytes; at most {MAX_MANIFEST_BYTES} are read")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// Neither YAML nor JSON.
    #[error("line {line}, column {column}: {message}")]
    Syntax {
        /// From 1.
        line: u64,
        /// From 1.
        column: u64,
        /// What is wrong there.
        message: String,
    },
    /// No document of it is an IPUJob.
    #[error(
        "no IPUJob in the file{}: a job begins with `apiVersion: {}` and `kind: {}`",
        others(found),
        IpuJob::API_VERSION,
        IpuJob::KIND
    )]
    NoIpuJob {
        /// What it has instead.
        found: Vec<SkippedDocument>,
    },
    /// A change that was asked for cannot be made.
    #[error("the change cannot be made to the job of line {line}")]
    Edit {
        /// Where the job begins.
        line: u64,
        /// Why not.
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
    /// The IPUJob that is `value`, whatever else it is.
    #[cfg(feature = "webhook")]
    pub(crate) fn of(value: Value) -> Self {
        let (job, faults) = IpuJob::from_value(value);
        Self { job, line: 1, faults }
    }

    /// The job that the manifest describes, by the core's rules. Fill in `job.metadata` (uid, name) before.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with it: fields that are none, values of a wrong kind, and broken rules.
    pub fn parse(&self, limits: &Limits) -> Result<ParsedJob, Vec<Violation>> {
        let (parsed, mut violations) = match self.job.to_raw().parse(limits) {
            Ok(parsed) => (Some(parsed), Vec::new()),
            Err(violations) => (None, violations),
        };
        let idle = self.job.without_containers();
        let (refused, tolerated) = match limits.origin() {
            JobOrigin::Stored => (None, idle),
            _ => (idle, None),
        };
        violations.extend(refused);
        violations.extend(self.job.launcher_accounts());
        match parsed {
            Some(mut parsed) if self.faults.is_empty() && violations.is_empty() => {
                parsed.warnings.extend(tolerated.map(Warning::from));
                Ok(parsed)
            }
            _ => {
                let mut all = self.faults.clone();
                // A field that could not be read is not absent as well.
                let named = |violation: &Violation| {
                    self.faults
                        .iter()
                        .any(|fault| covers(&fault.field, &violation.field))
                };
                all.extend(violations.into_iter().filter(|violation| !named(violation)));
                Err(all)
            }
        }
    }

    /// Fields that an IPUJob does not have, and values of a wrong kind.
    #[must_use]
    pub fn faults(&self) -> &[Violation] {
        &self.faults
    }
}

/// Whether a fault at `fault` may be why `field` seems absent.
fn covers(fault: &str, field: &str) -> bool {
    fault == field || fault.starts_with(&format!("{field}[")) || field.starts_with(&format!("{fault}."))
}

impl IpuJob {
    /// What can be read of `value`, and what cannot: fields that an IPUJob does not have, and values of a wrong kind.
    #[must_use]
    pub fn from_value(value: Value) -> (Self, Vec<Violation>) {
        let mut faults = Vec::new();
        let Value::Object(mut object) = value else {
            let fault = Violation::new(
                "",
                Some(&value.to_string()),
                "must be an object",
                "write its fields",
            );
            return (Self::default(), [fault].into());
        };
        prune(&mut object, "", IPU_JOB, &mut faults);
        let job: Self = match serde_json::from_value(Value::Object(object)) {
            Ok(job) => job,
            Err(error) => {
                // The table and the types disagree: a fault of ours that is better named than hidden.
                faults.push(Violation::new(
                    "",
                    None,
                    error.to_string(),
                    "report this as a defect",
                ));
                Self::default()
            }
        };
        for (field, value, right) in [
            ("apiVersion", &job.api_version, Self::API_VERSION),
            ("kind", &job.kind, Self::KIND),
        ] {
            if value != right && !faults.iter().any(|fault| fault.field == field) {
                let value = (!value.is_empty()).then_some(value.as_str());
                faults.push(Violation::new(
                    field,
                    value,
                    format!("must be {right}"),
                    format!("write {right}"),
                ));
            }
        }
        (job, faults)
    }
}

/// Reads the documents of `text`, in order, and makes `edits` to each IPUJob among them. `kind: List` counts as its
/// items.
///
/// # Errors
///
/// The text is too large, neither YAML nor JSON, or has no IPUJob; or an edit does not fit. What is wrong with an IPUJob
/// is not an error here: [`Manifest::parse`] says it.
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

/// The documents of `text` with the line that each begins in.
fn values(text: &str) -> Result<Vec<(u64, Value)>, ManifestError> {
    // Several JSON documents in a row are no YAML, and kubectl takes them.
    if text.trim_start().starts_with('{') {
        let stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        if let Ok(values) = stream.collect::<Result<Vec<_>, _>>() {
            return Ok(values.into_iter().map(|value| (1, value)).collect());
        }
    }
    // Twice the bytes that are read: aliases may repeat text, but not to fill the memory.
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
    let whole = error.to_string();
    // The place is told apart from the message, which may repeat it.
    let message = whole
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
    let word = |value: &Value, pointer: &str| {
        let text = value.pointer(pointer).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let kind = word(&value, "/kind");
    if let ("List" | "IPUJobList", Some(Value::Array(items))) = (kind.as_str(), value.get_mut("items")) {
        for item in std::mem::take(items) {
            classify(line, item, edits, to)?;
        }
        return Ok(());
    }
    if !kind.eq_ignore_ascii_case(IpuJob::KIND) {
        let name = word(&value, "/metadata/name");
        to.push(Document::Skipped(SkippedDocument { kind, name, line }));
        return Ok(());
    }
    for edit in edits {
        edit.apply(&mut value)
            .map_err(|source| ManifestError::Edit { line, source })?;
    }
    let (job, faults) = IpuJob::from_value(value);
    to.push(Document::IpuJob(Box::new(Manifest { job, line, faults })));
    Ok(())
}
