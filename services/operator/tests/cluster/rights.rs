//! RBAC permissions of a launcher's service account, as evaluated by the API server.

use serde_json::{Value, json};

use crate::cluster_fixture::ClusterFixture;
use crate::guide::{job_with_launcher, load_image};
use crate::support::wait_until;

/// Returns whether the launcher account of job `db` may do this in its namespace (a SubjectAccessReview).
fn can_i(fixture: &ClusterFixture, arguments: &[&str]) -> bool {
    let account = format!("--as=system:serviceaccount:{}:db-launcher", fixture.namespace);
    let all = [&["-n", fixture.namespace, "auth", "can-i", &account], arguments].concat();
    fixture.cluster.kubectl(&all).is_ok()
}

fn can_exec(fixture: &ClusterFixture, pod: &str) -> bool {
    let pod = format!("pods/{pod}");
    ["create", "get"]
        .iter()
        .any(|verb| can_i(fixture, &[verb, &pod, "--subresource=exec"]))
}

/// Returns a Pod of another owner, such as a StatefulSet.
fn foreign_pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "c", "image": "local/busybox:1", "command": ["/bin/sh", "-c", "trap exit TERM; sleep 3600 & wait"],
            }],
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launcher_may_run_commands_in_its_own_workers_and_never_in_a_pod_of_another_owner() {
    let test = "a_launcher_may_run_commands_in_its_own_workers_and_never_in_a_pod_of_another_owner";
    let Some(fixture) = ClusterFixture::start(test, "rights").await else {
        return;
    };
    load_image(fixture.cluster).await;
    let worker = "db-worker-0";
    fixture.apply(&foreign_pod(worker));
    fixture.apply(&foreign_pod("postgres-0"));
    let mut job = job_with_launcher("db", "sleep 3600");
    job["spec"]["restartPolicy"] = json!({"type": "OnFailure", "backOffLimit": 3, "backOffSeconds": 1});
    fixture.apply(&job);
    let waits = |status: &Value| {
        let message = status["lastMessage"].as_str();
        message.is_some_and(|message| message.contains("NameTaken"))
    };
    fixture
        .wait_for_status("db", "the job waits for the name of its worker", waits)
        .await;
    let account = fixture.find("", "v1", "ServiceAccount", "db-launcher").await;
    assert!(account.is_some(), "the account exists and any Pod may use it");
    assert!(!can_exec(&fixture, worker));
    assert!(!can_i(&fixture, &["get", "pods/db-worker-0"]));

    fixture.kubectl(&["delete", "pod", worker, "--grace-period=0", "--force"]);
    fixture.wait_for_phase("db", "Running").await;
    assert!(can_exec(&fixture, worker));
    assert!(!can_exec(&fixture, "postgres-0"));
    assert!(!can_i(&fixture, &["get", "pods/postgres-0"]) && !can_i(&fixture, &["list", "pods"]));

    // The worker is removed by force, and another client may take its name before the operator can. The name
    // is free only after the permission is revoked.
    let uid = fixture.pod(worker).await["metadata"]["uid"].clone();
    fixture.kubectl(&[
        "delete",
        "pod",
        worker,
        "--grace-period=0",
        "--force",
        "--wait=false",
    ]);
    wait_until("another Pod has the name", async || {
        let now = fixture.pod(worker).await["metadata"]["uid"].clone();
        fixture.create(&foreign_pod(worker)) || now.is_string() && now != uid
    })
    .await;
    let is_foreign = fixture.pod(worker).await["metadata"]["ownerReferences"].is_null();
    if is_foreign {
        assert!(!can_exec(&fixture, worker));
        fixture
            .wait_for_status("db", "the job waits for the name again", waits)
            .await;
        assert!(!can_exec(&fixture, worker));
        fixture.kubectl(&["delete", "pod", worker, "--grace-period=0", "--force"]);
    }
    fixture.wait_for_phase("db", "Running").await;
    assert!(can_exec(&fixture, worker));

    // A worker with the token of that account would have the same permissions, and is never created.
    let mut job_with_launcher_account = job_with_launcher("use", "sleep 3600");
    job_with_launcher_account["spec"]["workers"]["template"]["spec"]["serviceAccountName"] =
        "db-launcher".into();
    fixture.apply(&job_with_launcher_account);
    fixture
        .wait_for_status("use", "the job is rejected", |status| {
            let message = status["lastMessage"].as_str();
            message.is_some_and(|message| message.contains("names that end in -launcher are reserved"))
        })
        .await;
    assert!(fixture.pod("use-worker-0").await.is_null());
    fixture.delete("use");

    fixture.delete("db");
    assert!(!can_exec(&fixture, worker));
    fixture.kubectl(&["delete", "pod", "postgres-0", "--grace-period=0", "--force"]);
    fixture.delete_all_and_shut_down().await;
}
