//! Pods that other clients delete, jobs that are deleted in every way, lost and drained nodes, and lost
//! records, on fake nodes: each outcome is recorded, and no partition is released while a process may use it.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use ipu_operator::{Operator, Settings};
use ipu_test_cluster::{Cluster, ClusterProfile, FakeNodes, FakeOptions, private_with};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use vipu_proxy::Proxy;
use vipu_sim::Simulator;

use crate::cluster_fixture::{ControllersFile, install_crd, simulator, worker_job};
use crate::guide::job_with_launcher;
use crate::support::{LIFE, apply, config, container_end, http, local_address, settings, start, wait_until};

/// A cluster with three fake nodes, an operator, a proxy, and a simulated controller of 32 IPUs.
struct Fixture {
    cluster: Cluster,
    nodes: FakeNodes,
    simulator: Simulator,
    controllers: ControllersFile,
    proxy: Option<Proxy>,
    operator: Option<Operator>,
    address: SocketAddr,
}

impl Fixture {
    async fn start(test: &str) -> Option<Self> {
        let cluster = private_with(test, ClusterProfile::Controllers)?;
        install_crd(&cluster).await;
        let mut fake = FakeOptions::default();
        // If all nodes are unreachable, Kubernetes evicts no Pod.
        fake.nodes = 3;
        fake.labels.insert("pod".into(), "a".into());
        fake.container_end = Arc::new(container_end);
        let client = Client::try_from(config(&cluster).await).unwrap();
        let nodes = FakeNodes::start(client, fake).await.unwrap();
        let simulator = simulator("1x8").await;
        let controllers = ControllersFile::new(&[(&simulator, "pod=a")]);
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let proxy = start_proxy(&controllers, any_port).await;
        let mut fixture = Self {
            address: proxy.addr(),
            cluster,
            nodes,
            simulator,
            controllers,
            proxy: Some(proxy),
            operator: None,
        };
        fixture.start_operator().await;
        Some(fixture)
    }

    async fn start_operator(&mut self) {
        let mut own = Settings::default();
        own.vipu_proxy_svc = Some(format!("http://{}", local_address(self.address)));
        self.operator = Some(start(&self.cluster, own.or(settings("pods"))).await);
    }

    async fn stop_operator(&mut self) {
        self.operator.take().unwrap().shutdown().await;
    }

    /// Replaces the proxy, with its ledger in memory, by one with an empty ledger.
    async fn lose_ledger(&mut self) {
        self.proxy.take().unwrap().shutdown().await;
        self.proxy = Some(start_proxy(&self.controllers, self.address).await);
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        self.cluster.kubectl(arguments).unwrap()
    }

    fn object(&self, kind: &str, name: &str) -> Value {
        let text = self.kubectl(&["get", kind, name, "--output=json", "--ignore-not-found"]);
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Returns the name of the node of a Pod.
    fn node(&self, pod: &str) -> String {
        self.object("pod", pod)["spec"]["nodeName"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    fn status(&self, job: &str) -> Value {
        self.object("ipujob", job)["status"].clone()
    }

    async fn wait_for(&self, job: &str, description: &str, condition: impl Fn(&Value) -> bool) -> Value {
        wait_until(&format!("{job}: {description}"), async || {
            condition(&self.status(job))
        })
        .await;
        self.status(job)
    }

    async fn wait_for_phase(&self, job: &str, phase: &str) -> Value {
        self.wait_for(job, phase, |status| status["phase"] == phase).await
    }

    async fn wait_until_absent(&self, kind: &str, name: &str) {
        wait_until(&format!("{kind} {name} is gone"), async || {
            self.object(kind, name).is_null()
        })
        .await;
    }

    /// Returns the states of all partitions at the proxy.
    async fn partitions(&self) -> BTreeSet<String> {
        let url = format!("http://{}/v1/partitions", local_address(self.address));
        let list: Value = http().get(&url).send().await.unwrap().json().await.unwrap();
        let all = list["partitions"].as_array().unwrap().iter();
        all.map(|partition| partition["state"].as_str().unwrap().to_owned())
            .collect()
    }

    async fn wait_until_released(&self) {
        wait_until("all partitions are released", async || {
            self.partitions().await.is_empty() && self.simulator.state().unwrap().partitions.is_empty()
        })
        .await;
    }

    async fn shut_down(mut self) {
        self.stop_operator().await;
        self.proxy.take().unwrap().shutdown().await;
        self.simulator.shutdown().await;
    }
}

async fn start_proxy(controllers: &ControllersFile, address: SocketAddr) -> Proxy {
    let mut settings = vipu_proxy::Settings::default();
    controllers.configure(&mut settings);
    settings.listen = Some(address.into());
    Proxy::start(settings.check().unwrap()).await.unwrap()
}

/// Returns a job of one worker that exits after `life`, or never.
fn job(name: &str, life: Option<&str>) -> Value {
    let mut job = worker_job(name, "never executed");
    if let Some(life) = life {
        job["spec"]["workers"]["template"]["metadata"]["annotations"] = json!({LIFE: life});
    }
    job
}

const FORCE: [&str; 3] = ["--grace-period=0", "--force", "--wait=false"];

#[tokio::test(flavor = "multi_thread")]
async fn the_outcome_of_a_pod_that_is_deleted_before_an_operator_observes_it_is_recorded() {
    let test = "the_outcome_of_a_pod_that_is_deleted_before_an_operator_observes_it_is_recorded";
    let Some(mut fixture) = Fixture::start(test).await else {
        return;
    };
    for (name, life) in [("failing", "10000:7"), ("succeeding", "10000:0")] {
        let mut job = job(name, Some(life));
        job["spec"]["workers"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(1);
        apply(&fixture.cluster, &job);
    }
    for name in ["forced", "removed"] {
        apply(&fixture.cluster, &job(name, None));
    }
    for name in ["failing", "succeeding", "forced", "removed"] {
        fixture.wait_for_phase(name, "Running").await;
    }
    fixture.stop_operator().await;
    for (name, phase) in [("failing", "Failed"), ("succeeding", "Succeeded")] {
        let pod = format!("{name}-worker-0");
        wait_until("the worker has ended", async || {
            fixture.object("pod", &pod)["status"]["phase"] == phase
        })
        .await;
    }
    // An exit within the grace period, here one second, before a deletion counts as caused by it.
    let exited = |name: &str| -> Timestamp {
        let pod = fixture.object("pod", name);
        let exit = &pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"];
        exit.as_str().unwrap().parse().unwrap()
    };
    let last = exited("failing-worker-0").max(exited("succeeding-worker-0"));
    wait_until("the grace period has passed", async || {
        Timestamp::now().as_second() - last.as_second() >= 3
    })
    .await;
    for (name, options) in [
        ("failing", &FORCE[..]),
        ("succeeding", &FORCE[..]),
        ("forced", &FORCE[..]),
        ("removed", &FORCE[2..]),
    ] {
        let pod = format!("{name}-worker-0");
        fixture.kubectl(&[&["delete", "pod", &pod], options].concat());
    }
    for name in ["failing", "succeeding", "forced", "removed"] {
        let pod = fixture.object("pod", &format!("{name}-worker-0"));
        assert!(!pod.is_null(), "{name}: a Pod without a recorded outcome is kept");
    }
    fixture.start_operator().await;
    let status = fixture.wait_for_phase("failing", "Failed").await;
    assert_eq!(status["firstFailure"]["exitCode"], 7, "{status}");
    let status = fixture.wait_for_phase("succeeding", "Completed").await;
    assert_eq!(status["exitCode"], 0, "{status}");
    for name in ["forced", "removed"] {
        let status = fixture
            .wait_for(name, "it runs again on a reset partition", |status| {
                status["phase"] == "Running" && status["instances"][0]["attempt"] == 1
            })
            .await;
        assert_eq!(status["restartCount"], 0, "{status}");
        assert!(status["firstFailure"].is_null(), "{status}");
    }
    // Their outcome is recorded: nothing keeps them.
    for name in ["failing-worker-0", "succeeding-worker-0"] {
        fixture.wait_until_absent("pod", name).await;
    }
    fixture.kubectl(&["delete", "ipujobs", "--all", "--timeout=120s"]);
    fixture.wait_until_released().await;
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_is_kept_until_a_pod_that_is_deleted_in_any_way_has_ended() {
    let test = "a_partition_is_kept_until_a_pod_that_is_deleted_in_any_way_has_ended";
    let Some(fixture) = Fixture::start(test).await else {
        return;
    };
    let jobs = [("orphaned", 1, "orphan"), ("hurried", 0, "background")];
    for (name, grace, _) in jobs {
        let mut job = job(name, None);
        job["spec"]["workers"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(grace);
        apply(&fixture.cluster, &job);
    }
    for (name, ..) in jobs {
        fixture.wait_for_phase(name, "Running").await;
        fixture
            .nodes
            .fall_silent(&fixture.node(&format!("{name}-worker-0")));
    }
    for (name, _, cascade) in jobs {
        let cascade = format!("--cascade={cascade}");
        fixture.kubectl(&["delete", "ipujob", name, &cascade, "--wait=false"]);
    }
    wait_until("the worker is neither tracked nor controlled", async || {
        let metadata = fixture.object("pod", "orphaned-worker-0")["metadata"].clone();
        metadata["ownerReferences"].is_null()
            && metadata["finalizers"].is_null()
            && metadata["deletionTimestamp"].is_string()
    })
    .await;
    for (name, ..) in jobs {
        let status = fixture
            .wait_for(name, "the deletion of the worker is overdue", |status| {
                let message = status["lastMessage"].as_str();
                message.is_some_and(|message| message.contains("DeletionOverdue"))
            })
            .await;
        assert_eq!(status["phase"], "Terminating", "{status}");
        assert_eq!(status["instances"][0]["state"], "Stopping", "{status}");
    }
    assert_eq!(fixture.partitions().await, BTreeSet::from(["active".to_owned()]));
    assert_eq!(fixture.simulator.state().unwrap().partitions.len(), 2);
    for (name, ..) in jobs {
        let pod = format!("{name}-worker-0");
        fixture.kubectl(&[&["delete", "pod", &pod], &FORCE[..]].concat());
        fixture.wait_until_absent("ipujob", name).await;
    }
    fixture.wait_until_released().await;
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_reports_its_unreachable_node_and_restarts_on_another_once_its_worker_is_deleted() {
    let test = "a_job_reports_its_unreachable_node_and_restarts_on_another_once_its_worker_is_deleted";
    let Some(fixture) = Fixture::start(test).await else {
        return;
    };
    let toleration =
        |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1});
    let mut job = job("serving", None);
    job["spec"]["workers"]["template"]["spec"]["tolerations"] = json!([
        toleration("node.kubernetes.io/unreachable"),
        toleration("node.kubernetes.io/not-ready"),
    ]);
    apply(&fixture.cluster, &job);
    let message = |status: &Value| status["lastMessage"].as_str().unwrap_or_default().to_owned();
    fixture.wait_for_phase("serving", "Running").await;
    let node = fixture.node("serving-worker-0");

    fixture.nodes.fall_silent(&node);
    let not_ready = "it reports the worker that is not ready, and its node";
    fixture
        .wait_for("serving", not_ready, |status| {
            message(status).contains("serving-worker-0: NotReady: since ")
                && message(status).contains(&format!(" on node {node}"))
        })
        .await;
    let overdue = "serving-worker-0: DeletionOverdue: its deletion was due by ";
    let status = fixture
        .wait_for("serving", "it reports the overdue deletion", |status| {
            message(status).contains(overdue)
        })
        .await;
    assert_eq!(status["phase"], "Running", "{status}");
    assert_eq!(status["ipusHeld"], 1, "the process may still run: {status}");

    fixture.kubectl(&["delete", "pod", "serving-worker-0", "--grace-period=0", "--force"]);
    let runs_again = async |attempt: u32| {
        fixture
            .wait_for("serving", "it runs again on a reset partition", |status| {
                status["phase"] == "Running" && status["instances"][0]["attempt"] == attempt
            })
            .await
    };
    runs_again(1).await;
    let next = fixture.node("serving-worker-0");
    assert_ne!(next, node);

    fixture.kubectl(&["drain", &next, "--timeout=60s"]);
    let status = runs_again(2).await;
    let last = fixture.node("serving-worker-0");
    assert!(last != node && last != next, "{last}");
    assert_eq!(status["restartCount"], 0, "{status}");
    assert!(!message(&status).contains("serving-worker-0"), "{status}");
    fixture.kubectl(&["delete", "ipujob", "serving", "--timeout=60s"]);
    fixture.wait_until_released().await;
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_deleted_in_any_way_leaves_no_pod_and_no_partition() {
    let test = "a_job_that_is_deleted_in_any_way_leaves_no_pod_and_no_partition";
    let Some(mut fixture) = Fixture::start(test).await else {
        return;
    };
    let cascades = ["background", "foreground", "orphan"];
    for cascade in cascades {
        apply(&fixture.cluster, &job(cascade, None));
        fixture.wait_for_phase(cascade, "Running").await;
        let option = format!("--cascade={cascade}");
        fixture.kubectl(&["delete", "ipujob", cascade, &option, "--timeout=60s"]);
        fixture
            .wait_until_absent("pod", &format!("{cascade}-worker-0"))
            .await;
        fixture.wait_until_released().await;
    }

    // A namespace with a running and a finished job.
    fixture.kubectl(&["create", "namespace", "team"]);
    wait_until("the namespace has its service account", async || {
        fixture
            .cluster
            .kubectl(&["-n", "team", "get", "serviceaccount", "default"])
            .is_ok()
    })
    .await;
    for (name, life) in [("running", None), ("finished", Some("0:0"))] {
        let mut job = job(name, life);
        job["metadata"]["namespace"] = "team".into();
        apply(&fixture.cluster, &job);
    }
    wait_until("the jobs run and end", async || {
        let phases = "--output=jsonpath={.items[*].status.phase}";
        fixture.kubectl(&["-n", "team", "get", "ipujobs", phases]) == "Completed Running"
    })
    .await;
    fixture.kubectl(&["delete", "namespace", "team", "--timeout=120s"]);
    fixture.wait_until_released().await;

    // The finalizer of a job is removed by hand while no operator runs.
    apply(&fixture.cluster, &job("forced", None));
    fixture.wait_for_phase("forced", "Running").await;
    fixture.stop_operator().await;
    let free = r#"{"metadata": {"finalizers": null}}"#;
    fixture.kubectl(&["patch", "ipujob", "forced", "--type=merge", "-p", free]);
    fixture.kubectl(&["delete", "ipujob", "forced", "--timeout=60s"]);
    fixture.start_operator().await;
    fixture.wait_until_absent("pod", "forced-worker-0").await;
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_runs_on_while_the_proxy_does_not_know_its_partition() {
    let test = "a_job_runs_on_while_the_proxy_does_not_know_its_partition";
    let Some(mut fixture) = Fixture::start(test).await else {
        return;
    };
    apply(&fixture.cluster, &job("serving", None));
    fixture.wait_for_phase("serving", "Running").await;
    let uid = || fixture.object("pod", "serving-worker-0")["metadata"]["uid"].clone();
    let before = uid();
    fixture.lose_ledger().await;
    wait_until("the ledger has the partition without an owner", async || {
        fixture.partitions().await == BTreeSet::from(["quarantined".to_owned()])
    })
    .await;
    // The change makes the operator reconcile the job.
    fixture.kubectl(&[
        "patch",
        "ipujob",
        "serving",
        "--type=merge",
        "-p",
        r#"{"spec": {"priority": 1}}"#,
    ]);
    let status = fixture
        .wait_for("serving", "the change is observed", |status| {
            status["observedGeneration"] == 2
        })
        .await;
    assert_eq!(status["phase"], "Running", "{status}");
    assert_eq!(status["iPUPartitionCreated"], true, "{status}");
    assert_eq!(status["instances"][0]["state"], "Running", "{status}");
    let after = fixture.object("pod", "serving-worker-0")["metadata"]["uid"].clone();
    assert_eq!(after, before);
    fixture.kubectl(&["delete", "ipujob", "serving", "--timeout=60s"]);
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_states_of_instances_and_the_texts_of_the_status_say_what_happens() {
    let test = "the_states_of_instances_and_the_texts_of_the_status_say_what_happens";
    let Some(fixture) = Fixture::start(test).await else {
        return;
    };
    let state = |status: &Value| status["instances"][0]["state"].clone();
    let message = |status: &Value| status["lastMessage"].as_str().unwrap_or_default().to_owned();
    // 32 IPUs are there.
    let sized = |name: &str, ipus: &str| {
        let mut job = job(name, None);
        job["spec"]["ipusPerJobInstance"] = ipus.into();
        job
    };
    apply(&fixture.cluster, &sized("huge", "64"));
    let status = fixture
        .wait_for("huge", "it says that it never starts", |status| {
            message(status).contains("can never start")
        })
        .await;
    assert_eq!(state(&status), "Waiting", "{status}");
    let warnings = "--field-selector=regarding.name=huge,type=Warning,reason=TooLarge";
    wait_until("a Warning says so", async || {
        !fixture
            .kubectl(&["get", "events.events.k8s.io", warnings, "--output=name"])
            .is_empty()
    })
    .await;

    fixture.kubectl(&["delete", "ipujob", "huge", "--timeout=60s"]);

    apply(&fixture.cluster, &sized("whole", "32"));
    fixture.wait_for_phase("whole", "Running").await;
    apply(&fixture.cluster, &sized("next", "32"));
    let status = fixture
        .wait_for("next", "it says what it waits for", |status| {
            message(status).contains("blocked by")
        })
        .await;
    assert!(
        message(&status).contains("position 1 in the queue; blocked by default/whole (32 IPUs)"),
        "{status}"
    );
    fixture.kubectl(&["delete", "ipujob", "next", "--timeout=60s"]);

    let suspend = r#"{"spec": {"suspend": true}}"#;
    fixture.kubectl(&["patch", "ipujob", "whole", "--type=merge", "-p", suspend]);
    fixture
        .wait_for("whole", "it is suspended", |status| state(status) == "Suspended")
        .await;
    fixture.wait_until_absent("pod", "whole-worker-0").await;

    apply(&fixture.cluster, &job("done", Some("0:0")));
    let status = fixture.wait_for_phase("done", "Completed").await;
    let conditions = status["conditions"].as_array().unwrap();
    let completed = conditions
        .iter()
        .find(|condition| condition["type"] == "Completed")
        .unwrap();
    assert_eq!(
        completed["message"], "IPUJob default/done has completed. It holds 1 IPU until it is deleted.",
        "{status}"
    );
    assert_eq!(message(&status), "All instances done");

    // An object of another owner has the name of one of the job.
    fixture.kubectl(&["create", "configmap", "taken-config", "--from-literal=a=theirs"]);
    apply(&fixture.cluster, &job_with_launcher("taken", "true"));
    fixture
        .wait_for("taken", "it reports the name", |status| {
            message(status).contains("NameTaken: ConfigMap taken-config exists and is not owned by this job")
        })
        .await;
    assert_eq!(
        fixture.object("configmap", "taken-config")["data"],
        json!({"a": "theirs"})
    );
    fixture.kubectl(&["delete", "ipujobs", "--all", "--timeout=120s"]);
    fixture.wait_until_released().await;
    fixture.shut_down().await;
}

/// Reports the end of the container `main` of a Pod while its container `proxy` runs on.
fn end_main_container(fixture: &Fixture, pod: &str, exit_code: u8) {
    let end = json!({"exitCode": exit_code, "reason": "Completed", "startedAt": now(), "finishedAt": now()});
    let status = |name: &str, state: Value| json!({"name": name, "image": "a", "imageID": "", "restartCount": 0, "ready": name == "proxy", "state": state});
    let statuses = json!([
        status("main", json!({"terminated": end})),
        status("proxy", json!({"running": {"startedAt": now()}})),
    ]);
    let patch = json!({"status": {"containerStatuses": statuses}}).to_string();
    let patch = [
        "patch",
        "pod",
        pod,
        "--subresource=status",
        "--type=merge",
        "-p",
        &patch,
    ];
    fixture.kubectl(&patch);
}

fn now() -> String {
    format!("{:.0}", Timestamp::now())
}

/// Returns a job in whose Pods an injector has put a sidecar in front of the container of the job.
fn job_with_sidecar(name: &str) -> Value {
    let mut job = job(name, None);
    let template = &mut job["spec"]["workers"]["template"];
    template["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/default-container": "main"});
    template["spec"]["containers"] = json!([{"name": "proxy", "image": "a"}, {"name": "main", "image": "a"}]);
    job
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_ends_with_the_container_of_the_job_and_its_pod_holds_the_ipus() {
    let test = "a_worker_ends_with_the_container_of_the_job_and_its_pod_holds_the_ipus";
    let Some(fixture) = Fixture::start(test).await else {
        return;
    };
    apply(&fixture.cluster, &job_with_sidecar("done"));
    fixture.wait_for_phase("done", "Running").await;
    end_main_container(&fixture, "done-worker-0", 0);
    fixture.wait_for_phase("done", "Completed").await;
    let status = fixture
        .wait_for("done", "the container is named", |status| {
            let message = status["lastMessage"].as_str();
            message.is_some_and(|message| message.contains("container proxy has not"))
        })
        .await;
    assert_eq!(status["workersStatus"]["succeeded"], 1, "{status}");
    assert_eq!(status["ipusHeld"], 1, "{status}");
    assert_eq!(fixture.partitions().await, BTreeSet::from(["active".to_owned()]));
    fixture.kubectl(&["delete", "ipujob", "done", "--timeout=60s"]);
    fixture.wait_until_released().await;

    // The next attempt begins once the sidecar of the failed one has ended, too.
    let mut failing = job_with_sidecar("failing");
    failing["spec"]["restartPolicy"] = json!({"type": "OnFailure", "backOffLimit": 1, "backOffSeconds": 0});
    apply(&fixture.cluster, &failing);
    fixture.wait_for_phase("failing", "Running").await;
    let first = fixture.object("pod", "failing-worker-0")["metadata"]["uid"].clone();
    end_main_container(&fixture, "failing-worker-0", 7);
    let status = fixture
        .wait_for("failing", "the second attempt runs", |status| {
            (&status["phase"], &status["restartCount"]) == (&json!("Running"), &json!(1))
        })
        .await;
    assert_eq!(status["firstFailure"]["exitCode"], 7, "{status}");
    assert_ne!(
        fixture.object("pod", "failing-worker-0")["metadata"]["uid"],
        first
    );
    // With the policy All, the Pod and its sidecar end with the job.
    let all = json!({"spec": {"cleanPodPolicy": "All"}}).to_string();
    fixture.kubectl(&["patch", "ipujob", "failing", "--type=merge", "-p", &all]);
    end_main_container(&fixture, "failing-worker-0", 0);
    fixture.wait_for_phase("failing", "Completed").await;
    fixture.wait_until_released().await;
    fixture.shut_down().await;
}
