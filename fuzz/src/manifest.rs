//! Manifest files, and edits from the command line.

use ipu_core::job::Limits;
use ipu_k8s::crd::{Document, FieldEdit, IpuJob, Manifest, read_manifests};

use crate::error_messages::{check_error, check_message, text};

/// Prefix of a line with an edit (`ipuctl run --set`), which is not part of the file.
const SET_PREFIX: &str = "#set ";

/// Input: a manifest file. Lines that begin with `#set ` are edits of its jobs.
///
/// # Panics
///
/// If a parsed job does not round-trip, a refusal has no violation, or the parser panics.
pub fn manifest(bytes: &[u8]) {
    let text = text(bytes);
    let mut edits = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix(SET_PREFIX)) {
        match line.parse::<FieldEdit>() {
            Ok(edit) => {
                let printed = edit.to_string();
                assert_eq!(printed.parse::<FieldEdit>().as_ref(), Ok(&edit), "{printed}");
                edits.push(edit);
            }
            Err(error) => check_error(&error, line.len()),
        }
    }
    match read_manifests(&text, &edits) {
        Ok(documents) => {
            for document in documents {
                if let Document::IpuJob(manifest) = document {
                    check_job(&manifest, bytes.len());
                }
            }
        }
        Err(error) => check_error(&error, bytes.len()),
    }
}

fn check_job(manifest: &Manifest, input: usize) {
    let faulty = !manifest.violations().is_empty();
    match manifest.parse(&Limits::default()) {
        Ok(parsed) => {
            assert!(!faulty, "a job with faults was accepted");
            parsed
                .warnings
                .iter()
                .for_each(|warning| check_message(warning, input));
        }
        Err(violations) => {
            assert!(!violations.is_empty(), "refused without a violation");
            violations
                .iter()
                .for_each(|violation| check_message(violation, input));
        }
    }
    match manifest.job.host_view() {
        Ok(view) => {
            let program = view.container.program();
            assert_ne!(program, Some(Vec::new()));
            for var in &view.container.env {
                assert!(!var.name.is_empty() && !var.name.contains(['=', '\0']) && !var.value.contains('\0'));
            }
        }
        Err(violations) => {
            assert!(!violations.is_empty(), "no container and no violation");
            violations
                .iter()
                .for_each(|violation| check_message(violation, input));
        }
    }
    let value = serde_json::to_value(&manifest.job).expect("an IPUJob serializes");
    let (reparsed, faults) = IpuJob::from_value(value);
    assert_eq!(reparsed, manifest.job, "round trip");
    assert!(
        faulty || faults.is_empty(),
        "faults after a round trip: {faults:?}"
    );
}
