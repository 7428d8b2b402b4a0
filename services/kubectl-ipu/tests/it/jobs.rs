//! The commands about jobs.

use std::io::{BufRead as _, BufReader, Read as _};

use ipu_test_cluster::shared;
use serde_json::{Value, json};

use crate::harness::{install_crd, program, run, set_status};

/// A valid job.
pub(crate) const JOB: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../examples/kubernetes/training.yaml"
);

#[test]
fn a_job_is_submitted_shown_explained_and_scaled() {
    let Some(cluster) = shared("a_job_is_submitted_shown_explained_and_scaled") else {
        return;
    };
    install_crd(cluster);
    let none = run(cluster, &["get"]);
    assert_eq!((none.code, none.out.as_str()), (0, ""), "{}", none.err);

    let submitted = run(cluster, &["submit", JOB]);
    assert_eq!(submitted.out, "ipujob/training submitted\n", "{}", submitted.err);
    let again = run(cluster, &["submit", JOB]);
    assert_eq!(again.code, 65, "{}", again.err);
    assert!(again.err.contains("already exists"), "{}", again.err);

    let new = run(cluster, &["why", "training"]);
    assert!(
        new.out.contains("the operator has not reconciled the job"),
        "{}",
        new.out
    );

    let failure = json!({
        "instance": 0, "attempt": 0, "worker": 1, "name": "training-worker-0-1", "kind": "Worker", "node": "node-a",
        "exitCode": 3, "reason": "exited with code 3", "log": "loading\nout of memory\n",
    });
    let status = json!({"status": {
        "launcherStatus": "Pending", "phase": "Pending", "currentReplicas": 0, "desiredReplicas": 1, "ipusHeld": 4,
        "lastMessage": "Waiting for IPUs: 0 IPUs are free", "firstFailure": failure,
        "instances": [{"index": 0, "state": "Waiting", "attempt": 1, "reason": "0 IPUs are free, position 2"}],
    }});
    set_status(cluster, "default", "ipujob/training", &status);
    let listed = run(cluster, &["get", "-A"]).out;
    // Other tests have jobs in other namespaces.
    let row = listed.lines().find(|line| line.starts_with("default "));
    let row: Vec<&str> = row.into_iter().flat_map(str::split_whitespace).collect();
    assert_eq!(
        row.get(..7),
        Some(&["default", "training", "Pending", "0", "1", "0", "4"][..]),
        "{listed}"
    );

    let why = run(cluster, &["why", "training"]).out;
    for expected in [
        "default/training is Pending: Waiting for IPUs: 0 IPUs are free",
        "IPUs held: 4",
        "Instance 0 is Waiting: 0 IPUs are free, position 2",
        "First failure: worker training-worker-0-1 on node node-a: exited with code 3",
        "  | out of memory",
    ] {
        assert!(why.contains(expected), "{why}");
    }
    let why: Value = serde_json::from_str(&run(cluster, &["why", "training", "-o", "json"]).out).unwrap();
    assert_eq!(why["status"]["firstFailure"]["exitCode"], 3);
    let logs = run(cluster, &["logs", "training"]);
    assert_eq!(logs.out, "loading\nout of memory\n", "{}", logs.err);

    let scaled = run(cluster, &["scale", "training", "--replicas", "1"]);
    assert_eq!(scaled.out, "ipujob/training scaled to 1\n", "{}", scaled.err);
    let shown = run(cluster, &["get", "training", "-o", "yaml"]).out;
    assert!(shown.contains("ipusPerJobInstance: \"4\""), "{shown}");
    let absent = run(cluster, &["why", "other"]);
    assert_eq!(absent.code, 66, "{}", absent.err);
}

#[test]
fn a_waiting_submit_ends_with_the_exit_code_of_the_job() {
    let Some(cluster) = shared("a_waiting_submit_ends_with_the_exit_code_of_the_job") else {
        return;
    };
    install_crd(cluster);
    cluster.kubectl(&["create", "namespace", "waiting"]).unwrap();
    let arguments = ["-n", "waiting", "submit", JOB, "--wait"];
    let mut child = program(&cluster.kubeconfig(), &arguments).spawn().unwrap();
    let mut progress = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    progress.read_line(&mut line).unwrap();
    assert!(
        line.starts_with("Warning: spec.launcher.command = mpirun"),
        "{line}"
    );
    line.clear();
    progress.read_line(&mut line).unwrap();
    assert_eq!(line, "ipujob/training submitted\n");
    let status = |phase: &str, message: &str| {
        json!({"status": {"launcherStatus": phase, "phase": phase, "currentReplicas": 1, "desiredReplicas": 1,
            "lastMessage": message, "exitCode": 3}})
    };
    set_status(
        cluster,
        "waiting",
        "ipujob/training",
        &status("Failed", "worker 1 failed"),
    );
    let mut rest = String::new();
    progress.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "Failed: worker 1 failed\n");
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn an_invalid_manifest_is_not_submitted() {
    let Some(cluster) = shared("an_invalid_manifest_is_not_submitted") else {
        return;
    };
    install_crd(cluster);
    let invalid = run(cluster, &["submit", JOB, "--set", "spec.ipusPerJobInstance=3"]);
    assert_eq!(invalid.code, 65, "{}", invalid.err);
    assert!(
        invalid.err.contains("line 9, column 3: spec.ipusPerJobInstance"),
        "{}",
        invalid.err
    );
    // The API server refuses fields of the Pod template that Kubernetes does not know.
    let text = std::fs::read_to_string(JOB).unwrap();
    let misspelt = text
        .replace("name: training", "name: misspelt")
        .replace("          image:", "          imge: a\n          image:")
        .replace(
            "        containers:",
            "        nodeSelectr: {a: b}\n        containers:",
        );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jobs.yaml");
    let text = format!("{}---\n{misspelt}", text.replace("name: training", "name: right"));
    std::fs::write(&file, &text).unwrap();
    let strict = run(cluster, &["submit", file.to_str().unwrap()]);
    assert_eq!((strict.code, strict.out.as_str()), (65, ""), "{}", strict.err);
    for (name, field, column) in [
        ("nodeSelectr", "nodeSelectr", 9),
        ("imge", "containers[0].imge", 11),
    ] {
        let line = 1 + text.lines().position(|line| line.contains(name)).unwrap();
        let field = format!("spec.workers.template.spec.{field}");
        let expected = format!("line {line}, column {column}: unknown field {field}: correct or remove it");
        assert!(strict.err.contains(&expected), "{expected}: {}", strict.err);
    }
    let none = run(cluster, &["get", "right"]);
    assert_eq!(none.code, 66, "{}", none.out);
    let absent = run(cluster, &["submit", "/does/not/exist.yaml"]);
    assert_eq!(absent.code, 66, "{}", absent.err);
}

#[test]
fn of_several_jobs_none_is_created_if_one_is_refused() {
    let Some(cluster) = shared("of_several_jobs_none_is_created_if_one_is_refused") else {
        return;
    };
    install_crd(cluster);
    cluster.kubectl(&["create", "namespace", "several"]).unwrap();
    let text = std::fs::read_to_string(JOB).unwrap();
    let named = |name: &str| text.replace("name: training", &format!("name: {name}"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jobs.yaml");
    let submit = |names: &[&str], format: &str| {
        let jobs: Vec<String> = names.iter().map(|name| named(name)).collect();
        std::fs::write(&file, jobs.join("\n---\n")).unwrap();
        run(
            cluster,
            &["-n", "several", "submit", file.to_str().unwrap(), "-o", format],
        )
    };
    let existing = submit(&["b"], "table");
    assert_eq!(existing.out, "ipujob/b submitted\n", "{}", existing.err);
    let refused = submit(&["a", "b", "c"], "table");
    assert_eq!((refused.code, refused.out.as_str()), (65, ""), "{}", refused.err);
    assert!(refused.err.contains("already exists"), "{}", refused.err);
    let created = submit(&["a", "c"], "table");
    let expected = "ipujob/a submitted\nipujob/c submitted\n";
    assert_eq!(created.out, expected, "{}", created.err);
    let several = submit(&["e", "f"], "yaml").out;
    let list: Value = serde_saphyr::from_str(&several).unwrap();
    assert_eq!(list["items"][1]["metadata"]["name"], "f", "{several}");
    let one: Value = serde_json::from_str(&submit(&["g"], "json").out).unwrap();
    assert_eq!(one["kind"], "IPUJob");
    std::fs::write(&file, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n").unwrap();
    let none = run(cluster, &["submit", file.to_str().unwrap()]);
    assert_eq!(none.code, 65, "{}", none.err);
    assert!(none.err.contains("no IPUJob in the file"), "{}", none.err);
}
