//! Training jobs with a launcher that runs `mpirun` (V-IPU guide §6.6).

use serde_json::json;

use crate::installation::installed_with_mpi;

/// Settings that the restricted Pod Security Standard requires of a Pod template.
const RESTRICTED: &str = "      spec:
        securityContext:
          runAsNonRoot: true
          runAsUser: 1000
          seccompProfile: {type: RuntimeDefault}
";
const RESTRICTED_CONTAINER: &str = "        - name: training
          securityContext:
            allowPrivilegeEscalation: false
            capabilities: {drop: [ALL]}
";

#[test]
fn a_training_job_of_four_workers_runs_an_mpi_program_and_completes() {
    let name = "a_training_job_of_four_workers_runs_an_mpi_program_and_completes";
    let Some(product) = installed_with_mpi(name) else {
        return;
    };
    product.kubectl(&["create", "namespace", "training"]);
    product.submit("training", "training", str::to_owned);
    let status = product.wait_for_phase("training", "training", "Completed");
    assert_eq!(status["lastMessage"], "All instances done", "{status}");
    assert_eq!(status["exitCode"], 0, "{status}");
    let log = product.kubectl(&["-n", "training", "logs", "training-launcher"]);
    for rank in 0..4 {
        let line = format!("rank {rank} of 4 on GCD {rank} of p-training-0-");
        let suffix = format!("received {}, the sum is 6", (rank + 3) % 4);
        assert!(
            log.lines()
                .any(|logged| logged.starts_with(&line) && logged.ends_with(&suffix)),
            "{log}"
        );
    }
    // By default, all Pods use the node's network.
    let path = "jsonpath={.items[*].spec.hostNetwork}";
    let selector = "graphcore.ai/ipujob-name=training";
    let network = product.kubectl(&["-n", "training", "get", "pods", "-l", selector, "-o", path]);
    assert_eq!(network, "true true true true true");
    // The job has events.
    let events = product.kubectl(&[
        "-n",
        "training",
        "get",
        "events",
        "--field-selector=involvedObject.kind=IPUJob",
    ]);
    assert!(events.contains("ipujob/training"), "{events}");
    product.delete("training", "training");
}

#[test]
fn a_failed_rank_fails_the_job_with_its_exit_code_and_worker() {
    let name = "a_failed_rank_fails_the_job_with_its_exit_code_and_worker";
    let Some(product) = installed_with_mpi(name) else {
        return;
    };
    product.kubectl(&["create", "namespace", "failing"]);
    product.submit("failing", "training", |job| {
        job.replace("    - ring\n", "    - ring\n    - \"17\"\n")
    });
    let status = product.wait_for_phase("failing", "training", "Failed");
    assert_eq!(status["exitCode"], 17, "{status}");
    let failure = &status["firstFailure"];
    assert_eq!(
        (&failure["name"], &failure["kind"], &failure["exitCode"]),
        (&json!("training-worker-3"), &json!("Worker"), &json!(17)),
        "{status}"
    );
    product.delete("failing", "training");
}

#[test]
fn a_training_job_without_host_network_runs_in_a_restricted_namespace() {
    let name = "a_training_job_without_host_network_runs_in_a_restricted_namespace";
    let Some(product) = installed_with_mpi(name) else {
        return;
    };
    product.kubectl(&["create", "namespace", "restricted"]);
    let profile = "pod-security.kubernetes.io/enforce=restricted";
    product.kubectl(&["label", "namespace", "restricted", profile]);
    product.submit("restricted", "training", |job| {
        job.replace("  workers:\n", "  workers:\n    hostNetwork: false\n")
            .replace("      spec:\n", RESTRICTED)
            .replace("        - name: training\n", RESTRICTED_CONTAINER)
    });
    product.wait_for_phase("restricted", "training", "Completed");
    product.delete("restricted", "training");
}
