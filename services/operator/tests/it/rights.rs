//! Rights of the account of a launcher, as the API server itself decides them.

use serde_json::{Value, json};

use crate::cluster_fixture::ClusterFixture;
use crate::guide::{job_with_launcher, load};
use crate::support::until;

/// Whether the account of the launcher of job `db` may do this in its namespace (a SubjectAccessReview).
fn may(served: &ClusterFixture, words: &[&str]) -> bool {
    let account = format!("--as=system:serviceaccount:{}:db-launcher", served.namespace);
    let all = [&["-n", served.namespace, "auth", "can-i", &account], words].concat();
    served.cluster.kubectl(&all).is_ok()
}

fn may_run_commands_in(served: &ClusterFixture, pod: &str) -> bool {
    let pod = format!("pods/{pod}");
    ["create", "get"]
        .iter()
        .any(|verb| may(served, &[verb, &pod, "--subresource=exec"]))
}

/// A Pod of another owner, such as a StatefulSet.
fn victim(name: &str) -> Value {
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
    let Some(served) = ClusterFixture::start(test, "rights").await else {
        return;
    };
    load(served.cluster).await;
    let worker = "db-worker-0";
    served.apply(&victim(worker));
    served.apply(&victim("postgres-0"));
    let mut job = job_with_launcher("db", "sleep 3600");
    job["spec"]["restartPolicy"] = json!({"type": "OnFailure", "backOffLimit": 3, "backOffSeconds": 1});
    served.apply(&job);
    let waits = |status: &Value| {
        let message = status["lastMessage"].as_str();
        message.is_some_and(|message| message.contains("NameTaken"))
    };
    served
        .comes_to("db", "it waits for the name of its worker", waits)
        .await;
    let account = served.find("", "v1", "ServiceAccount", "db-launcher").await;
    assert!(account.is_some(), "there is an account that any Pod may use");
    assert!(!may_run_commands_in(&served, worker));
    assert!(!may(&served, &["get", "pods/db-worker-0"]));

    served.kubectl(&["delete", "pod", worker, "--grace-period=0", "--force"]);
    served.is("db", "Running").await;
    assert!(may_run_commands_in(&served, worker));
    assert!(!may_run_commands_in(&served, "postgres-0"));
    assert!(!may(&served, &["get", "pods/postgres-0"]) && !may(&served, &["list", "pods"]));

    // The worker is removed by force, and another client takes its name before the operator can.
    served.kubectl(&[
        "delete",
        "pod",
        worker,
        "--grace-period=0",
        "--force",
        "--wait=false",
    ]);
    served.apply(&victim(worker));
    until("the right is revoked", async || {
        !may_run_commands_in(&served, worker)
    })
    .await;
    let is_the_victims = served.pod(worker).await["metadata"]["ownerReferences"].is_null();
    if is_the_victims {
        served.comes_to("db", "it waits for the name again", waits).await;
        assert!(!may_run_commands_in(&served, worker));
        served.kubectl(&["delete", "pod", worker, "--grace-period=0", "--force"]);
    }
    served.is("db", "Running").await;
    assert!(may_run_commands_in(&served, worker));

    // A worker with the token of that account could do the same, and is never made.
    let mut thief = job_with_launcher("use", "sleep 3600");
    thief["spec"]["workers"]["template"]["spec"]["serviceAccountName"] = "db-launcher".into();
    served.apply(&thief);
    served
        .comes_to("use", "it is refused", |status| {
            let message = status["lastMessage"].as_str();
            message.is_some_and(|message| message.contains("names that end in -launcher are reserved"))
        })
        .await;
    assert!(served.pod("use-worker-0").await.is_null());
    served.delete("use");

    served.delete("db");
    assert!(!may_run_commands_in(&served, worker));
    served.kubectl(&["delete", "pod", "postgres-0", "--grace-period=0", "--force"]);
    served.ends_without_a_trace().await;
}
