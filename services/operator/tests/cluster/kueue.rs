//! Tests with Kueue and JobSet, which their own charts install, on a real node.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use ipu_operator::Settings;
use ipu_test_cluster::{Cluster, ClusterProfile, Tool, find_tools, install_kueue, restart_pods, shared_with};
use ipu_testkit::Random;
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard, OnceCell};
use vipu_sim::Simulator;

use crate::cluster_fixture::{ClusterFixture, ControllersFile, RUN_UNTIL_SIGTERM, simulator, worker_job};
use crate::crash::processes::{ChildProcess, Role};
use crate::ipupartitions::{Judge, template};
use crate::support::{apply, wait_until};

/// Number of jobs of the storm, unless `IPU_OPERATOR_STORM_JOBS` is set: two minutes.
const JOBS: u32 = 40;

/// Installs Kueue and JobSet once, with a check of the operator and IPUs on the node.
async fn install(test: &str) -> Option<&'static Cluster> {
    static INSTALLED: OnceCell<()> = OnceCell::const_new();
    let tools = find_tools(test, &[&Tool::KUEUE[..], &Tool::HELM].concat())?;
    let cluster = shared_with(test, ClusterProfile::Node)?;
    let install = async || {
        install_kueue(cluster, &tools).unwrap();
        let label = ["label", "nodes", "--all", "kueue-controller=one"];
        cluster.kubectl(&label).unwrap();
    };
    INSTALLED.get_or_init(install).await;
    Some(cluster)
}

fn kueue(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// A test's operator, proxy and V-IPU controller of 16 IPUs.
struct KueueFixture {
    fixture: ClusterFixture,
    _controller: Simulator,
    _controllers: ControllersFile,
    /// Settings of the proxy.
    settings: Value,
    ledger: tempfile::TempDir,
    /// One test at a time: another restarts Kueue.
    _turn: MutexGuard<'static, ()>,
}

impl Deref for KueueFixture {
    type Target = ClusterFixture;

    fn deref(&self) -> &ClusterFixture {
        &self.fixture
    }
}

impl DerefMut for KueueFixture {
    fn deref_mut(&mut self) -> &mut ClusterFixture {
        &mut self.fixture
    }
}

/// Starts operator, proxy and controller, and a queue `ipus` with this quota in the namespace.
async fn start(test: &str, namespace: &'static str, quota: u32) -> Option<KueueFixture> {
    static ONE: Mutex<()> = Mutex::const_new(());
    let turn = ONE.lock().await;
    let cluster = install(test).await?;
    let (controller, ledger) = (simulator("1x4").await, tempfile::tempdir().unwrap());
    let controllers = ControllersFile::new(&[(&controller, "kueue-controller=one")]);
    let store = format!("file:{}", ledger.path().join("ledger.db").display());
    let settings = json!({"controllers-file": controllers.path(), "store": store, "repair-interval": 1});
    let configure = |proxy: &mut vipu_proxy::Settings, operator: &mut Settings| {
        let listen = proxy.listen.take();
        *proxy = serde_json::from_value(settings.clone()).unwrap();
        proxy.listen = listen;
        operator.kueue = Some(true);
    };
    let fixture = ClusterFixture::start_with(test, namespace, configure).await?;
    cluster
        .kubectl(&["label", "namespace", namespace, "queues=kueue"])
        .unwrap();
    let resources = json!([
        {"name": "graphcore.ai/ipu", "nominalQuota": quota}, {"name": "cpu", "nominalQuota": 1000},
        {"name": "memory", "nominalQuota": "1000Gi"},
    ]);
    let covered = json!(["graphcore.ai/ipu", "cpu", "memory"]);
    let spec = json!({
        "namespaceSelector": {},
        "resourceGroups": [{"coveredResources": covered, "flavors": [{"name": "ipu", "resources": resources}]}],
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "admissionChecksStrategy": {"admissionChecks": [{"name": "ipu-partition"}]},
    });
    apply(cluster, &kueue("ClusterQueue", namespace, spec));
    fixture.apply(&kueue("LocalQueue", "ipus", json!({"clusterQueue": namespace})));
    Some(KueueFixture {
        fixture,
        _controller: controller,
        _controllers: controllers,
        settings,
        ledger,
        _turn: turn,
    })
}

/// Returns a Job in the queue that uses the partition of its name.
fn job(name: &str, ipus: u32, script: &str) -> Value {
    let mut template = template(name, script, "Never");
    template["spec"]["containers"][0]["resources"] = json!({"limits": {"graphcore.ai/ipu": ipus}});
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "ipus"}},
        "spec": {"suspend": true, "backoffLimit": 0, "template": template},
    })
}

/// Returns an IPUJob in the queue.
fn queued(name: &str, ipus: u32, priority: i32, script: &str) -> Value {
    let mut job = worker_job(name, script);
    job["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "ipus"});
    job["spec"]["ipusPerJobInstance"] = ipus.into();
    job["spec"]["priority"] = priority.into();
    job["spec"]["cleanPodPolicy"] = "All".into();
    job["spec"]["workers"]["template"]["metadata"]["labels"]["app"] = name.into();
    job
}

impl ClusterFixture {
    /// Returns the Workload of the owner of this name.
    async fn workload(&self, owner: &str) -> Value {
        let all = self.list("kueue.x-k8s.io", "v1beta2", "Workload").await;
        let is_own = |workload: &&Value| workload["metadata"]["ownerReferences"][0]["name"] == owner;
        all.iter().find(is_own).cloned().unwrap_or_default()
    }

    /// Waits until the Workload of an owner has a condition, and returns it.
    async fn workload_is(&self, owner: &str, kind: &str) -> Value {
        let description = format!("the Workload of {owner} is {kind}");
        wait_until(&description, async || is(&self.workload(owner).await, kind)).await;
        self.workload(owner).await
    }
}

impl KueueFixture {
    /// Deletes everything, and checks that nothing is left, in Kueue neither.
    async fn clear(self) {
        let kinds = "jobs,jobsets,ipujobs,ipupartitions";
        self.kubectl(&["delete", kinds, "--all", "--timeout=180s"]);
        wait_until("no Workload is left", async || {
            self.list("kueue.x-k8s.io", "v1beta2", "Workload")
                .await
                .is_empty()
        })
        .await;
        wait_until("no Pod is left", async || self.pods().await.is_empty()).await;
        self.cluster
            .kubectl(&["delete", "clusterqueue", self.namespace, "--timeout=60s"])
            .unwrap();
        self.fixture.delete_all_and_shut_down().await;
    }
}

fn is(object: &Value, kind: &str) -> bool {
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == kind && condition["status"] == "True")
}

/// Returns whether a condition has the text, to which Kueue moves the message of a check.
fn has_text(workload: &Value, text: &str) -> bool {
    workload["status"]["conditions"].to_string().contains(text)
}

fn message_of_check(workload: &Value) -> &str {
    workload["status"]["admissionChecks"][0]["message"]
        .as_str()
        .unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admitted_job_has_its_partition_and_one_that_can_have_none_says_why() {
    let test = "an_admitted_job_has_its_partition_and_one_that_can_have_none_says_why";
    let Some(fixture) = start(test, "checks", 64).await else {
        return;
    };
    fixture.apply(&job("train", 8, "echo $IPUOF_VIPU_API_PARTITION_ID; sleep 1"));
    let workload = fixture.workload_is("train", "Finished").await;
    assert_eq!(message_of_check(&workload), "IPUPartition train is active");
    let log = fixture.kubectl(&["logs", "job/train"]);
    assert!(log.starts_with("p-"), "{log}: {workload}");
    let selector = [
        "get",
        "job",
        "train",
        "-o",
        "jsonpath={.spec.template.spec.nodeSelector}",
    ];
    // Kueue takes it away again when the job is suspended, and leaves it to a finished one.
    let selector = fixture.kubectl(&selector);
    assert!(selector.contains(r#""kueue-controller":"one""#), "{selector}");
    // The Workload has finished.
    wait_until("the partition is released", async || {
        fixture.get_from_proxy("/v1/partitions").await["partitions"] == json!([])
    })
    .await;

    // The quota has 32 IPUs, and the IPU-POD does not.
    fixture.apply(&job("large", 32, "true"));
    wait_until("the check says why", async || {
        let workload = fixture.workload("large").await;
        workload["spec"]["active"] == false && has_text(&workload, "TooLarge")
    })
    .await;
    fixture.apply(&job("odd", 3, "true"));
    wait_until("a size that no partition has is rejected", async || {
        let workload = fixture.workload("odd").await;
        workload["spec"]["active"] == false && has_text(&workload, "must be a power of two")
    })
    .await;
    let mut without = job("without", 4, "true");
    without["spec"]["template"]["spec"]["containers"][0]["envFrom"] = json!([]);
    fixture.apply(&without);
    wait_until("a Job without the variables is rejected", async || {
        let workload = fixture.workload("without").await;
        workload["spec"]["active"] == false && has_text(&workload, "add envFrom")
    })
    .await;

    // A JobSet of two Jobs, each on a partition of its own.
    let replicated = |name: &str, ipus| {
        let spec = job(name, ipus, "echo $IPUOF_VIPU_API_PARTITION_ID")["spec"].clone();
        json!({"name": name, "replicas": 1, "template": {"spec": {
            "parallelism": 1, "completions": 1, "backoffLimit": 0, "template": spec["template"],
        }}})
    };
    fixture.apply(&json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": {"name": "both", "labels": {"kueue.x-k8s.io/queue-name": "ipus"}},
        "spec": {"suspend": true, "replicatedJobs": [replicated("left", 4), replicated("right", 8)]},
    }));
    fixture.workload_is("both", "Finished").await;
    let ids = ["left", "right"].map(|name| fixture.kubectl(&["logs", &format!("job/both-{name}-0")]));
    assert!(
        ids[0] != ids[1] && ids.iter().all(|id| id.starts_with("p-")),
        "{ids:?}"
    );
    fixture.clear().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ipujob_waits_for_its_quota_is_preempted_and_runs_again() {
    let test = "an_ipujob_waits_for_its_quota_is_preempted_and_runs_again";
    let Some(fixture) = start(test, "queued", 8).await else {
        return;
    };
    fixture.apply(&queued("low", 8, 0, RUN_UNTIL_SIGTERM));
    fixture.wait_for_phase("low", "Running").await;
    fixture.workload_is("low", "PodsReady").await;
    fixture.apply(&queued("same", 4, 0, "true"));
    let says_why = |status: &Value| {
        let message = status["lastMessage"].as_str().unwrap_or_default();
        message.contains("Kueue: ") && message.contains("insufficient unused quota")
    };
    fixture
        .wait_for_status("same", "names Kueue's reason", says_why)
        .await;

    fixture.apply(&queued("high", 8, 10, "sleep 2"));
    fixture
        .wait_for_status("low", "says that it was evicted", |status| {
            let message = status["lastMessage"].as_str().unwrap_or_default();
            status["phase"] == "Suspended" && message.contains("Kueue")
        })
        .await;
    fixture.wait_for_phase("high", "Completed").await;
    let workload = fixture.workload_is("high", "Finished").await;
    assert_eq!(workload["spec"]["podSets"][0]["count"], 1, "{workload}");
    fixture.wait_for_phase("low", "Running").await;
    // Its user takes it out of the queue.
    let patch = |suspend: bool| {
        let patch = json!({"spec": {"suspend": suspend}}).to_string();
        fixture.kubectl(&["patch", "ipujob", "low", "--type=merge", "-p", &patch]);
    };
    patch(true);
    fixture.wait_for_phase("same", "Completed").await;
    assert_eq!(fixture.workload("low").await, Value::Null);
    patch(false);
    fixture.wait_for_phase("low", "Running").await;
    // A job that changes is queued again, even one that changes back meanwhile.
    let scale = |instances: u32| {
        let patch = json!({"spec": {"jobInstances": instances}}).to_string();
        fixture.kubectl(&["patch", "ipujob", "low", "--type=merge", "-p", &patch]);
    };
    scale(2);
    fixture.wait_for_phase("low", "Suspended").await;
    scale(1);
    fixture.wait_for_phase("low", "Running").await;
    // An administrator of Kueue stops it.
    let name = fixture.workload("low").await["metadata"]["name"].clone();
    let stop = r#"{"spec": {"active": false}}"#;
    fixture.kubectl(&[
        "patch",
        "workload",
        name.as_str().unwrap(),
        "--type=merge",
        "-p",
        stop,
    ]);
    fixture.wait_for_phase("low", "Suspended").await;
    wait_until("its IPUs and its quota are free", async || {
        let held = fixture.get_from_proxy("/v1/partitions").await;
        held["partitions"] == json!([]) && !is(&fixture.workload("low").await, "QuotaReserved")
    })
    .await;
    fixture.clear().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_admitted_again_while_the_operator_is_away_gets_another_partition() {
    let test = "a_job_that_is_admitted_again_while_the_operator_is_away_gets_another_partition";
    let Some(mut fixture) = start(test, "again", 16).await else {
        return;
    };
    let mut train = job("train", 4, RUN_UNTIL_SIGTERM);
    train["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 5.into();
    fixture.apply(&train);
    let ready = [
        "wait",
        "job/train",
        "--for=jsonpath={.status.ready}=1",
        "--timeout=240s",
    ];
    fixture.kubectl(&ready);
    let uid = ["get", "ipupartition", "train", "-o", "jsonpath={.metadata.uid}"];
    let first = fixture.kubectl(&uid);
    fixture
        .crash_operator_with(|settings| settings.kueue = Some(false))
        .await;
    let stop = |policy: &str| {
        let patch = json!({"spec": {"stopPolicy": policy}}).to_string();
        let patch = [
            "patch",
            "clusterqueue",
            fixture.namespace,
            "--type=merge",
            "-p",
            &patch,
        ];
        fixture.cluster.kubectl(&patch).unwrap();
    };
    stop("HoldAndDrain");
    wait_until("the quota is released", async || {
        let workload = fixture.workload("train").await;
        is(&workload, "Evicted") && !is(&workload, "QuotaReserved")
    })
    .await;
    stop("None");
    fixture.workload_is("train", "QuotaReserved").await;
    fixture
        .crash_operator_with(|settings| settings.kueue = Some(true))
        .await;
    fixture.workload_is("train", "Admitted").await;
    assert_ne!(fixture.kubectl(&uid), first);
    fixture.kubectl(&ready);
    fixture.clear().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_jobs_ends_with_nothing_stuck_while_kueue_operator_and_proxy_are_killed() {
    let test = "a_storm_of_jobs_ends_with_nothing_stuck_while_kueue_operator_and_proxy_are_killed";
    let Some(mut fixture) = start(test, "storm", 16).await else {
        return;
    };
    let (address, log) = (fixture.stop_proxy().await, fixture.ledger.path().join("log"));
    let settings = fixture.settings.to_string();
    let proxy = ChildProcess::start(Role::Proxy, address, &settings, None, log).await;
    let (mut random, mut judge) = (Random::new(7), Judge::default());
    let mut owners: BTreeMap<String, &str> = BTreeMap::new();
    let jobs = std::env::var("IPU_OPERATOR_STORM_JOBS").map_or(JOBS, |text| text.parse().unwrap());
    for number in 0..jobs {
        let (name, ipus) = (format!("j{number}"), 1 << random.below(5));
        let script = ["true", "sleep 2"][usize::from(random.chance(30))];
        if random.chance(50) {
            let priority = i32::try_from(random.below(3)).unwrap();
            fixture.apply(&queued(&name, ipus, priority, script));
            owners.insert(name, "ipujob");
        } else {
            fixture.apply(&job(&name, ipus, script));
            owners.insert(name, "job");
        }
        match random.below(20) {
            0 => {
                restart_pods(fixture.cluster, "kueue").unwrap();
                // Its webhooks refuse Jobs meanwhile.
                wait_until("Kueue's webhooks answer", async || {
                    fixture.create_dry(&job("probe", 1, "true"))
                })
                .await;
            }
            1 | 2 => fixture.crash_operator().await,
            3 => {
                proxy
                    .crash(Duration::from_millis(u64::from(random.below(1_500))))
                    .await
            }
            _ => {}
        }
        judge.look(&fixture).await;
    }
    let mut evicted = 0;
    for (name, kind) in &owners {
        let workload = fixture.workload_is(name, "Finished").await;
        let reasons = workload["status"]["conditions"].as_array().unwrap();
        let finished = reasons
            .iter()
            .find(|condition| condition["type"] == "Finished")
            .unwrap();
        assert_eq!(finished["reason"], "Succeeded", "{kind} {name}: {workload}");
        let evictions = workload["status"]["schedulingStats"]["evictions"].as_array();
        evicted += evictions.map_or(0, Vec::len);
        judge.look(&fixture).await;
    }
    assert!(
        evicted > 0 && judge.seen() > 3,
        "{evicted} evicted, {} seen",
        judge.seen()
    );
    wait_until("no IPU is held", async || {
        fixture.get_from_proxy("/v1/partitions").await["partitions"] == json!([])
    })
    .await;
    fixture.clear().await;
}
