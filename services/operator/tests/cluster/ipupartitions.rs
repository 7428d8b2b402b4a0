//! Tests of IPUPartitions with Pods of other controllers on a real node.

use std::collections::BTreeMap;

use ipu_testkit::Random;
use serde_json::{Value, json};

use crate::cluster_fixture::{ClusterFixture, RUN_UNTIL_SIGTERM};
use crate::support::wait_until;

/// Number of random actions: half a minute.
const ROUNDS: u32 = 60;
/// Number of IPUPartitions that are made, deleted and reset at random.
const NAMES: u32 = 8;

fn partition(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUPartition", "metadata": {"name": name}, "spec": spec})
}

/// Returns a Pod template whose container runs a script with the variables of a partition.
pub(crate) fn template(partition: &str, script: &str, restart: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": partition}},
        "spec": {"restartPolicy": restart, "terminationGracePeriodSeconds": 1, "containers": [{
            "name": "main", "image": "local/busybox:1", "imagePullPolicy": "IfNotPresent",
            "command": ["/bin/sh", "-c", script],
            "envFrom": [{"configMapRef": {"name": format!("{partition}-ipuof")}}],
        }]},
    })
}

fn deployment(partition: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": partition},
        "spec": {
            "selector": {"matchLabels": {"app": partition}},
            "template": template(partition, RUN_UNTIL_SIGTERM, "Always"),
        },
    })
}

impl ClusterFixture {
    /// Waits until the status of an IPUPartition meets a condition, and returns it.
    async fn partition(&self, name: &str, description: &str, is_met: impl Fn(&Value) -> bool) -> Value {
        let description = format!("{name} {description}");
        self.wait_for_status_of("IPUPartition", name, &description, is_met)
            .await
    }

    async fn active(&self, name: &str, attempt: u32) -> Value {
        self.partition(name, &format!("is active for attempt {attempt}"), |status| {
            status["phase"] == "Active"
                && status["attempt"].as_u64().unwrap_or(0) == u64::from(attempt)
                && status["conditions"][0]["status"] == "True"
        })
        .await
    }

    /// Waits until the one Pod of a Deployment runs, and returns its name.
    async fn running_pod(&self, app: &str) -> String {
        let selector = format!("--selector=app={app}");
        let path =
            "jsonpath={range .items[?(@.status.containerStatuses[0].ready==true)]}{.metadata.name} {end}";
        let read = || self.kubectl(&["get", "pods", &selector, "-o", path]);
        wait_until(&format!("a Pod of {app} runs"), async || {
            read().split(' ').count() == 2
        })
        .await;
        read().trim().to_owned()
    }

    /// Waits until a Pod waits for the ConfigMap of its partition.
    async fn waiting_pod(&self, app: &str) {
        let selector = format!("--selector=app={app}");
        let path = "jsonpath={.items[*].status.containerStatuses[0].state.waiting.reason}";
        wait_until(&format!("a Pod of {app} waits for its variables"), async || {
            let reasons = self.kubectl(&["get", "pods", &selector, "-o", path]);
            reasons.contains("CreateContainerConfigError")
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_job_waits_for_its_partition_and_runs_with_its_variables() {
    let test = "a_plain_job_waits_for_its_partition_and_runs_with_its_variables";
    let Some(fixture) = ClusterFixture::start(test, "plain-job").await else {
        return;
    };
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"},
        "spec": {"template": template("train", "echo $IPUOF_VIPU_API_PARTITION_ID of $IPUOF_VIPU_API_HOST", "Never")},
    });
    fixture.apply(&job);
    fixture.waiting_pod("train").await;
    fixture.apply(&partition("train", json!({"size": 8, "gcds": 2})));
    let status = fixture.active("train", 0).await;
    fixture.kubectl(&["wait", "--for=condition=Complete", "job/train", "--timeout=180s"]);
    let log = fixture.kubectl(&["logs", "job/train"]);
    assert_eq!(log.split(' ').next(), status["partition"].as_str(), "{log}");
    let held = fixture.get_from_proxy("/v1/partitions").await;
    assert_eq!(held["partitions"][0]["owner"]["kind"], "IPUPartition", "{held}");
    assert_eq!(held["partitions"][0]["gcds"], 2, "{held}");
    // Its Pod has ended.
    fixture.kubectl(&["delete", "ipupartition", "train", "--timeout=60s"]);
    fixture.kubectl(&["delete", "job", "train"]);
    fixture.delete_all_and_shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reset_and_deletion_wait_for_the_pods_and_no_container_starts_meanwhile() {
    let test = "reset_and_deletion_wait_for_the_pods_and_no_container_starts_meanwhile";
    let Some(fixture) = ClusterFixture::start(test, "in-use").await else {
        return;
    };
    fixture.apply(&partition("serve", json!({"size": 4})));
    fixture.apply(&deployment("serve"));
    let first = fixture.running_pod("serve").await;
    let is_in_use = |phase: &'static str| {
        move |status: &Value| {
            let message = status["reason"]["message"].as_str().unwrap_or_default();
            status["phase"] == phase && status["reason"]["code"] == "InUse" && message.contains(" uses ")
        }
    };

    fixture.kubectl(&[
        "patch",
        "ipupartition",
        "serve",
        "--type=merge",
        "-p",
        r#"{"spec": {"attempt": 1}}"#,
    ]);
    let status = fixture
        .partition("serve", "waits for its Pod", is_in_use("Active"))
        .await;
    let message = status["reason"]["message"].as_str().unwrap();
    assert_eq!(
        message,
        format!("Pod {first} uses the partition, which is reset when it has ended")
    );
    assert_eq!(status["conditions"][0]["status"], "False", "{status}");
    let held = fixture.get_from_proxy("/v1/partitions").await;
    assert_eq!(held["partitions"][0]["attempt"], 0, "{held}");
    fixture.kubectl(&["delete", "pod", &first]);
    fixture.active("serve", 1).await;
    let second = fixture.running_pod("serve").await;
    assert_ne!(first, second);

    fixture.kubectl(&["delete", "ipupartition", "serve", "--wait=false"]);
    fixture
        .partition("serve", "waits for its Pod", is_in_use("Terminating"))
        .await;
    // The Deployment starts another Pod, which gets no variables.
    fixture.kubectl(&["delete", "pod", &second]);
    fixture.kubectl(&["wait", "--for=delete", "ipupartition/serve", "--timeout=60s"]);
    fixture.waiting_pod("serve").await;
    wait_until("the partition is released", async || {
        fixture.get_from_proxy("/v1/partitions").await["partitions"] == json!([])
    })
    .await;
    fixture.kubectl(&["delete", "deployment", "serve"]);
    fixture.kubectl(&[
        "wait",
        "--for=delete",
        "pod",
        "--selector=app=serve",
        "--timeout=60s",
    ]);
    fixture.delete_all_and_shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preempted_partition_loses_its_pods_and_is_queued_again() {
    let test = "a_preempted_partition_loses_its_pods_and_is_queued_again";
    // The proxy answers a release before the controller has ended it.
    let enable = |proxy: &mut vipu_proxy::Settings, _: &mut ipu_operator::Settings| {
        proxy.preemption = Some(true);
        proxy.sim_delay_ms = Some(3_000);
    };
    let Some(fixture) = ClusterFixture::start_with(test, "preempted", enable).await else {
        return;
    };
    fixture.apply(&partition("low", json!({"size": 16, "preemptible": true})));
    fixture.apply(&deployment("low"));
    let first = fixture.running_pod("low").await;
    fixture.apply(&partition("high", json!({"size": 32, "priority": 5})));
    fixture.active("high", 0).await;
    let waits = |status: &Value| status["phase"] == "Waiting" && status["reason"]["code"] == "NotEnoughFree";
    let status = fixture.partition("low", "is queued again", waits).await;
    assert_eq!(status["preemptionCount"], 1, "{status}");
    assert_eq!(status["blockers"], json!(["preempted/high"]), "{status}");
    fixture.waiting_pod("low").await;
    fixture.kubectl(&["delete", "ipupartition", "high", "--timeout=60s"]);
    fixture.active("low", 1).await;
    assert_ne!(fixture.running_pod("low").await, first);
    fixture.kubectl(&["delete", "deployment", "low"]);
    fixture.kubectl(&[
        "wait",
        "--for=delete",
        "pod",
        "--selector=app=low",
        "--timeout=60s",
    ]);
    fixture.delete_all_and_shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_partition_is_deleted_and_an_impossible_one_says_why() {
    let test = "an_expired_partition_is_deleted_and_an_impossible_one_says_why";
    let Some(fixture) = ClusterFixture::start(test, "expired").await else {
        return;
    };
    fixture.apply(&partition("short", json!({"size": 1, "ttlSeconds": 2})));
    fixture.active("short", 0).await;
    fixture.kubectl(&["wait", "--for=delete", "ipupartition/short", "--timeout=60s"]);
    fixture.apply(&partition("huge", json!({"size": 64})));
    let is_too_large = |status: &Value| status["reason"]["code"] == "TooLarge";
    fixture.partition("huge", "is too large", is_too_large).await;
    fixture.apply(&partition(
        "elsewhere",
        json!({"size": 1, "controller": "nowhere:1"}),
    ));
    let is_unknown = |status: &Value| status["reason"]["code"] == "ControllerUnavailable";
    fixture
        .partition("elsewhere", "has no controller", is_unknown)
        .await;
    // A ConfigMap of the user is never replaced or deleted.
    fixture.kubectl(&["create", "configmap", "taken-ipuof", "--from-literal=mine=1"]);
    fixture.apply(&partition("taken", json!({"size": 1})));
    let is_taken = |status: &Value| status["reason"]["code"] == "NameTaken";
    fixture.partition("taken", "has no ConfigMap", is_taken).await;
    fixture.kubectl(&["delete", "ipupartition", "taken", "--timeout=60s"]);
    fixture.kubectl(&["get", "configmap", "taken-ipuof"]);
    fixture.delete_all_and_shut_down().await;
}

/// Judge of the containers that run on partitions, by repeated looks at Kubernetes and the proxy.
#[derive(Default)]
pub(crate) struct Judge {
    /// Running containers by id, with the attempt of their partition at the first look.
    running: BTreeMap<String, u64>,
    looks: u32,
}

impl Judge {
    /// Returns the ids of the running containers, each with the name of its partition.
    async fn containers(fixture: &ClusterFixture) -> BTreeMap<String, String> {
        let mut running = BTreeMap::new();
        for pod in fixture.list("", "v1", "Pod").await {
            let container = &pod["status"]["containerStatuses"][0];
            let app = pod["metadata"]["labels"]["app"].as_str();
            if let (true, Some(app)) = (container["state"]["running"].is_object(), app) {
                running.insert(container["containerID"].to_string(), app.to_owned());
            }
        }
        running
    }

    /// Returns the number of containers that were seen.
    pub(crate) fn seen(&self) -> usize {
        self.running.len()
    }

    /// A container that runs before and after a look at the proxy has used its partition meanwhile: it must
    /// be held, for the attempt in which the container was first seen.
    pub(crate) async fn look(&mut self, fixture: &ClusterFixture) {
        let before = Self::containers(fixture).await;
        let held = fixture.get_from_proxy("/v1/partitions").await;
        let after = Self::containers(fixture).await;
        let attempt_of = |name: &str| {
            let mut all = held["partitions"].as_array().unwrap().iter();
            let own = all.find(|held| held["owner"]["name"] == name)?;
            matches!(own["state"].as_str(), Some("active")).then(|| own["attempt"].as_u64().unwrap())
        };
        for (container, name) in before
            .iter()
            .filter(|(container, _)| after.contains_key(*container))
        {
            let attempt = attempt_of(name);
            let attempt = attempt.unwrap_or_else(|| panic!("a container of {name} runs without it: {held}"));
            let first = *self.running.entry(container.clone()).or_insert(attempt);
            assert_eq!(first, attempt, "{name} was reset under a container");
        }
        self.looks += 1;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_container_loses_its_partition_while_operators_crash_and_users_act_at_random() {
    let test = "no_container_loses_its_partition_while_operators_crash_and_users_act_at_random";
    let enable =
        |proxy: &mut vipu_proxy::Settings, _: &mut ipu_operator::Settings| proxy.preemption = Some(true);
    let Some(mut fixture) = ClusterFixture::start_with(test, "random", enable).await else {
        return;
    };
    let mut random = Random::new(42);
    let (mut judge, mut rounds) = (Judge::default(), 0);
    // On a busy machine, few containers start in the first rounds.
    while rounds < ROUNDS || judge.seen() <= 3 && rounds < 5 * ROUNDS {
        rounds += 1;
        let number = random.below(NAMES);
        let some = format!("p{number}");
        match random.below(6) {
            // It may exist.
            0 | 1 => {
                let spec = json!({"size": 4 << (number % 3), "preemptible": !number.is_multiple_of(3), "priority": number % 2});
                let _ = fixture.create(&partition(&some, spec));
                fixture.apply(&deployment(&some));
            }
            2 => {
                fixture.kubectl(&[
                    "delete",
                    "ipupartition",
                    &some,
                    "--wait=false",
                    "--ignore-not-found",
                ]);
            }
            3 => {
                let attempt = json!({"spec": {"attempt": judge.looks}}).to_string();
                let patch = [
                    "-n",
                    fixture.namespace,
                    "patch",
                    "ipupartition",
                    &some,
                    "--type=merge",
                    "-p",
                    &attempt,
                ];
                // It may be deleted.
                let _ = fixture.cluster.kubectl(&patch);
            }
            4 => {
                fixture.kubectl(&[
                    "delete",
                    "pod",
                    "--selector",
                    &format!("app={some}"),
                    "--wait=false",
                ]);
            }
            _ => fixture.crash_operator().await,
        }
        for _ in 0..random.below(8) {
            judge.look(&fixture).await;
        }
    }
    assert!(
        judge.seen() > 3,
        "{} containers in {} looks",
        judge.seen(),
        judge.looks
    );
    fixture.kubectl(&["delete", "ipupartitions", "--all", "--wait=false"]);
    fixture.kubectl(&["delete", "deployments", "--all"]);
    fixture.kubectl(&["wait", "--for=delete", "pod", "--all", "--timeout=120s"]);
    judge.look(&fixture).await;
    fixture.delete_all_and_shut_down().await;
}
