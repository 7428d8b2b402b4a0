//! Stored objects that today's CRD rejects.

use std::fs;

use serde_json::json;

use crate::cluster::{CRD_PATH, install, wait_for_ipujobs};

#[test]
fn a_stored_job_that_todays_crd_rejects_can_still_be_deleted() {
    let name = "a_stored_job_that_todays_crd_rejects_can_still_be_deleted";
    let Some(cluster) = ipu_test_cluster::private(name) else {
        return;
    };
    let apply = |text: &str| {
        let file = cluster.directory().join("applied.yaml");
        fs::write(&file, text).unwrap();
        cluster.kubectl(&["apply", "-f", file.to_str().unwrap()]).unwrap();
    };
    // The CRD without its validation rules, as an older one.
    let text = fs::read_to_string(CRD_PATH).unwrap();
    let permissive_schema =
        "schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}";
    let (head, rest) = text.split_once("    schema:\n").unwrap();
    let tail = &rest[rest.find("    served: true").unwrap()..];
    apply(&format!("{head}    {permissive_schema}\n{tail}"));
    wait_for_ipujobs(&cluster);
    let long = "x".repeat(60);
    let dotted = format!("a.b.{}", "x".repeat(60));
    let valid_spec = json!({"jobInstances": 1, "ipusPerJobInstance": "4", "workers": {}});
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
        (&long, valid_spec.clone()),
        (&dotted, valid_spec),
    ];
    let old = |name: &str| {
        json!({
            "apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob",
            "metadata": {"name": name, "finalizers": ["ipu.finalizers.graphcore.ai"]},
        })
    };
    for (name, spec) in &stored {
        let mut job = old(name);
        job["spec"] = spec.clone();
        apply(&job.to_string());
    }
    install(&cluster);
    let try_kubectl = |arguments: &[&str]| cluster.kubectl(arguments).map_err(|error| error.to_string());
    let mut errors = Vec::new();
    for name in stored.iter().map(|(name, _)| *name) {
        let remove_finalizers = r#"{"metadata": {"finalizers": null}}"#;
        let status = r#"{"status": {"lastMessage": "x"}}"#;
        for arguments in [
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
            &["patch", "ipujob", name, "--type=merge", "-p", remove_finalizers],
        ] {
            if let Err(error) = try_kubectl(arguments) {
                errors.push(format!("{arguments:?}: {error}"));
            }
        }
    }
    assert!(errors.is_empty(), "{errors:#?}");
    assert_eq!(cluster.kubectl(&["get", "ipujobs", "-o", "name"]).unwrap(), "");
}
