//! What was stored under another definition, and is refused today.

use std::fs;

use serde_json::json;

use crate::cluster::{DEFINITION, install, wait_for_ipujobs};

#[test]
fn a_job_that_was_stored_with_what_is_refused_today_can_still_be_deleted() {
    let name = "a_job_that_was_stored_with_what_is_refused_today_can_still_be_deleted";
    let Some(cluster) = ipu_test_cluster::private(name) else {
        return;
    };
    let apply = |text: &str| {
        let file = cluster.directory().join("applied.yaml");
        fs::write(&file, text).unwrap();
        cluster.kubectl(&["apply", "-f", file.to_str().unwrap()]).unwrap();
    };
    // The definition without its rules, as an older one.
    let text = fs::read_to_string(DEFINITION).unwrap();
    let whole = "schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}";
    let (head, rest) = text.split_once("    schema:\n").unwrap();
    let tail = &rest[rest.find("    served: true").unwrap()..];
    apply(&format!("{head}    {whole}\n{tail}"));
    wait_for_ipujobs(&cluster);
    let long = "x".repeat(60);
    let dotted = format!("a.b.{}", "x".repeat(60));
    let right = json!({"jobInstances": 1, "ipusPerJobInstance": "4", "workers": {}});
    let stored = [
        (
            "no-power",
            json!({"jobInstances": 1, "ipusPerJobInstance": "3", "workersPerJobInstance": "2", "workers": {}}),
        ),
        ("empty", json!({})),
        (
            "no-workers",
            json!({"jobInstances": 1, "ipusPerJobInstance": 4, "workersPerJobInstance": 1}),
        ),
        ("null", json!(null)),
        (&long, right.clone()),
        (&dotted, right),
    ];
    let old = |name: &str| {
        json!({
            "apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob",
            "metadata": {"name": name, "finalizers": ["ipu.finalizers.graphcore.ai"]},
        })
    };
    apply(&old("none").to_string());
    for (name, spec) in &stored {
        let mut job = old(name);
        job["spec"] = spec.clone();
        apply(&job.to_string());
    }
    install(&cluster);
    let tried = |words: &[&str]| cluster.kubectl(words).map_err(|error| error.to_string());
    let mut kept = Vec::new();
    for name in stored.iter().map(|(name, _)| *name).chain(["none"]) {
        let free = r#"{"metadata": {"finalizers": null}}"#;
        let status = r#"{"status": {"lastMessage": "x"}}"#;
        for words in [
            &["label", "ipujob", name, "seen=true"][..],
            &[
                "patch",
                "ipujob",
                name,
                "--type=merge",
                "--subresource=status",
                "-p",
                status,
            ],
            &["label", "ipujob", name, "seen=twice", "--overwrite"],
            &[
                "patch",
                "ipujob",
                name,
                "--type=merge",
                "--subresource=status",
                "-p",
                &status.replace('x', "y"),
            ],
            &["delete", "ipujob", name, "--wait=false"],
            &["patch", "ipujob", name, "--type=merge", "-p", free],
        ] {
            if let Err(error) = tried(words) {
                kept.push(format!("{words:?}: {error}"));
            }
        }
    }
    assert!(kept.is_empty(), "{kept:#?}");
    assert_eq!(cluster.kubectl(&["get", "ipujobs", "-o", "name"]).unwrap(), "");
}
