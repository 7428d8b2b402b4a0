//! Files of manifests, and changes to them from the command line.

use ipu_core::{Limits, RawJob};
use ipu_k8s::crd::{Document, FieldEdit, IpuJob, Manifest, read_manifests};

use crate::error_messages::{said, said_of, text};

/// A line that begins so is a change (`ipuctl run --set`) and not part of the file.
const SET: &str = "#set ";

/// A file of manifests; lines that begin with `#set ` are changes to be made to its jobs.
///
/// # Panics
///
/// If a job is parsed that cannot be printed and read again, is refused without a word, or fails in another way.
pub fn manifest(bytes: &[u8]) {
    let text = text(bytes);
    let mut edits = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix(SET)) {
        match line.parse::<FieldEdit>() {
            Ok(edit) => {
                let printed = edit.to_string();
                assert_eq!(printed.parse::<FieldEdit>().as_ref(), Ok(&edit), "{printed}");
                edits.push(edit);
            }
            Err(error) => said_of(&error, line.len()),
        }
    }
    match read_manifests(&text, &edits) {
        Ok(documents) => {
            for document in documents {
                if let Document::IpuJob(manifest) = document {
                    job(&manifest, bytes.len());
                }
            }
        }
        Err(error) => said_of(&error, bytes.len()),
    }
}

fn job(manifest: &Manifest, input: usize) {
    let faulty = !manifest.faults().is_empty();
    match manifest.parse(&Limits::default()) {
        Ok(parsed) => {
            assert!(!faulty, "a job with faults was taken");
            parsed.warnings.iter().for_each(|warning| said(warning, input));
            let raw = manifest.job.to_raw();
            let json = serde_json::to_string(&raw).expect("a raw job is JSON");
            let again: RawJob = serde_json::from_str(&json).expect("what was printed is a raw job");
            assert_eq!(again, raw);
            let again = again.parse(&Limits::default()).expect("it was taken before");
            assert_eq!(again.spec, parsed.spec);
        }
        Err(violations) => {
            assert!(!violations.is_empty(), "refused without a word");
            violations.iter().for_each(|violation| said(violation, input));
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
            assert!(!violations.is_empty(), "no container, and no word about it");
            violations.iter().for_each(|violation| said(violation, input));
        }
    }
    let value = serde_json::to_value(&manifest.job).expect("an IPUJob is JSON");
    let (again, faults) = IpuJob::from_value(value);
    assert_eq!(again, manifest.job, "printed and read again");
    assert!(
        faulty || faults.is_empty(),
        "faults in what was printed: {faults:?}"
    );
}
