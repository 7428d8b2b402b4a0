//! IPUJobs on a real node: an operator, and a proxy with V-IPU controllers that need no hardware, for one namespace.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipu_core::Topology;
use ipu_operator::{Operator, Settings};
use ipu_test_cluster::{Cluster, ClusterProfile, shared_with};
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use vipu_proxy::Proxy;
use vipu_sim::Simulator;

use crate::support::{apply, config, here, http, ready, settings, start, until};
use crate::webhooks::register;

/// How long something of a cluster may take on a machine that is busy with others.
const TIMEOUT: Duration = Duration::from_secs(240);

/// An operator of one namespace, a proxy, and behind that a simulated controller of 32 IPUs unless a test has its own.
pub(crate) struct ClusterFixture {
    pub(crate) cluster: &'static Cluster,
    pub(crate) namespace: &'static str,
    operator: Operator,
    proxy: Proxy,
    client: Client,
}

impl ClusterFixture {
    /// None if this machine cannot have a node.
    pub(crate) async fn start(test: &str, namespace: &'static str) -> Option<Self> {
        Self::start_with(test, namespace, |_, _| {}).await
    }

    /// The same with other settings of proxy and operator.
    pub(crate) async fn start_with(
        test: &str,
        namespace: &'static str,
        change: impl FnOnce(&mut vipu_proxy::Settings, &mut Settings),
    ) -> Option<Self> {
        let cluster = shared_with(test, ClusterProfile::Node)?;
        install(cluster).await;
        cluster.kubectl(&["create", "namespace", namespace]).unwrap();
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut of_proxy = vipu_proxy::Settings::default();
        of_proxy.sim = Some("1x8".into());
        of_proxy.sim_delay_ms = Some(0);
        of_proxy.sim_listen = Some(anywhere);
        of_proxy.listen = Some(anywhere);
        let mut of_operator = Settings::default();
        of_operator.watch_namespaces = Some(namespace.into());
        of_operator.host_network = Some(false);
        of_operator.launcher_image = Some(crate::guide::IMAGE.into());
        change(&mut of_proxy, &mut of_operator);
        let proxy = Proxy::start(of_proxy.check().unwrap()).await.unwrap();
        of_operator.vipu_proxy_svc = Some(format!("http://{}", here(proxy.addr())));
        let operator = start(cluster, of_operator.or(settings(namespace))).await;
        // Without it no Kubernetes Pod is accepted there.
        until("the namespace has its service account", async || {
            let words = ["-n", namespace, "get", "serviceaccount", "default"];
            cluster.kubectl(&words).is_ok()
        })
        .await;
        Some(Self {
            cluster,
            namespace,
            operator,
            proxy,
            client: Client::try_from(config(cluster).await).unwrap(),
        })
    }

    /// The same with admission webhooks, as in an installation.
    pub(crate) async fn start_admitting(test: &str, namespace: &'static str) -> Option<Self> {
        let host = shared_with(test, ClusterProfile::Node)?
            .host_address()
            .to_string();
        let served = Self::start_with(test, namespace, |_, operator| {
            operator.webhook_cert_names = Some(host.clone());
        })
        .await?;
        let address = format!("{host}:{}", served.operator.webhooks().port());
        register(served.cluster, namespace, &address);
        ready(&served.operator).await;
        let mut probe = worker_job("probe", "true");
        probe["metadata"]["namespace"] = namespace.into();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("probe.json");
        std::fs::write(&file, probe.to_string()).unwrap();
        let file = file.to_str().unwrap();
        let words = ["create", "--dry-run=server", "-o", "json", "-f", file];
        until("the API server asks the webhooks", async || {
            let shown = served.cluster.kubectl(&words);
            shown.is_ok_and(|shown| shown.contains("backOffLimit"))
        })
        .await;
        Some(served)
    }

    /// `kubectl` in the namespace.
    pub(crate) fn kubectl(&self, words: &[&str]) -> String {
        self.cluster
            .kubectl(&[&["-n", self.namespace], words].concat())
            .unwrap()
    }

    /// What it prints of `kubectl apply`.
    pub(crate) fn apply(&self, object: &Value) -> String {
        let mut object = object.clone();
        object["metadata"]["namespace"] = self.namespace.into();
        apply(self.cluster, &object)
    }

    /// An object as the API server has it; none if it has none.
    pub(crate) async fn find(&self, group: &str, version: &str, kind: &str, name: &str) -> Option<Value> {
        let api = self.api(group, version, kind);
        let found = api.get_opt(name).await.unwrap();
        found.map(|object| serde_json::to_value(&object).unwrap())
    }

    pub(crate) async fn job(&self, name: &str) -> Value {
        self.find("graphcore.ai", "v1alpha1", "IPUJob", name)
            .await
            .unwrap_or_default()
    }

    pub(crate) async fn pod(&self, name: &str) -> Value {
        self.find("", "v1", "Pod", name).await.unwrap_or_default()
    }

    /// The names of all Kubernetes Pods, in order.
    pub(crate) async fn pods(&self) -> Vec<String> {
        let all = self
            .api("", "v1", "Pod")
            .list(&ListParams::default())
            .await
            .unwrap();
        let mut names: Vec<String> = all
            .items
            .into_iter()
            .filter_map(|pod| pod.metadata.name)
            .collect();
        names.sort();
        names
    }

    /// The header of `kubectl get ipujobs`, and the row of a job without its age.
    pub(crate) fn table(&self, name: &str) -> [Vec<String>; 2] {
        let table = self.kubectl(&["get", "ipujobs.graphcore.ai", name]);
        let mut lines = table.lines();
        let header = cells(lines.next().unwrap_or_default());
        let mut row = cells(lines.next().unwrap_or_default());
        row.pop();
        [header, row]
    }

    /// Waits until the job is in a phase.
    pub(crate) async fn is(&self, name: &str, phase: &str) -> Value {
        let what = format!("{name} is {phase}");
        self.comes_to(name, &what, |status| status["phase"] == phase)
            .await
    }

    /// Waits until the status of a job is so, and gives it.
    pub(crate) async fn comes_to(&self, name: &str, what: &str, so: impl Fn(&Value) -> bool) -> Value {
        let waiting = async {
            loop {
                let status = self.job(name).await["status"].take();
                if so(&status) {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        match tokio::time::timeout(TIMEOUT, waiting).await {
            Ok(status) => status,
            Err(_) => panic!(
                "never: {what}\n{}\n{}",
                self.kubectl(&["get", "pods", "-o", "wide"]),
                self.kubectl(&["describe", "ipujob", name])
            ),
        }
    }

    /// Waits until there are these Kubernetes Pods and no others.
    pub(crate) async fn has_pods(&self, names: &[&str]) {
        until(&format!("there are only {names:?}"), async || {
            self.pods().await == names
        })
        .await;
    }

    /// Where the proxy listens.
    pub(crate) const fn proxy(&self) -> SocketAddr {
        self.proxy.addr()
    }

    /// What the proxy answers to `GET` of this path.
    pub(crate) async fn ask(&self, path: &str) -> Value {
        let url = format!("http://{}{path}", here(self.proxy.addr()));
        http().get(&url).send().await.unwrap().json().await.unwrap()
    }

    /// Deletes a job, which is gone when this returns.
    pub(crate) fn delete(&self, name: &str) {
        self.kubectl(&["delete", "ipujob", name, "--timeout=120s"]);
    }

    /// Deletes all jobs; nothing of them is left in the cluster or in the ledger.
    pub(crate) async fn ends_without_a_trace(self) {
        self.kubectl(&["delete", "ipujobs", "--all", "--timeout=120s"]);
        assert_eq!(self.pods().await, [""; 0]);
        until("nothing is held", async || {
            self.ask("/v1/partitions").await["partitions"] == json!([])
        })
        .await;
        self.operator.shutdown().await;
        self.proxy.shutdown().await;
    }

    fn api(&self, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(self.client.clone(), self.namespace, &resource)
    }
}

/// A V-IPU controller of a test's own, which it can look into and break.
pub(crate) async fn simulator(topology: &str) -> Simulator {
    let topology: Topology = topology.parse().unwrap();
    Simulator::builder(topology).start().await.unwrap()
}

/// A list of controllers, with the labels of their nodes, in a file that a proxy follows.
pub(crate) struct List(tempfile::TempDir);

impl List {
    pub(crate) fn of(controllers: &[(&Simulator, &str)]) -> Self {
        let list = Self(tempfile::tempdir().unwrap());
        list.say(controllers);
        list
    }

    pub(crate) fn say(&self, controllers: &[(&Simulator, &str)]) {
        let one = |(controller, label): &(&Simulator, &str)| format!("{}:{label}", controller.addr());
        let all: Vec<String> = controllers.iter().map(one).collect();
        std::fs::write(self.path(), all.join(",")).unwrap();
    }

    /// Has a proxy find its controllers here instead of simulating one.
    pub(crate) fn serve(&self, proxy: &mut vipu_proxy::Settings) {
        proxy.sim = None;
        proxy.sim_delay_ms = None;
        proxy.sim_listen = None;
        proxy.store = Some("memory".into());
        proxy.controllers_file = Some(self.path());
        proxy.repair_interval = Some(1);
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("controllers.yaml")
    }
}

/// The cells of a line of a table, which have one space within at most.
fn cells(line: &str) -> Vec<String> {
    let cells = line.split("  ").map(str::trim);
    cells.filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
}

/// Defines IPUJobs.
pub(crate) async fn define(cluster: &Cluster) {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../deploy/crd/ipujobs.graphcore.ai.yaml"
    );
    cluster.kubectl(&["apply", "-f", file]).unwrap();
    // Before it has any condition, kubectl cannot wait for one.
    until("IPUJobs are served", async || {
        cluster.kubectl(&["get", "ipujobs"]).is_ok()
    })
    .await;
}

/// The resource as it is shipped, once for all tests of the cluster.
async fn install(cluster: &Cluster) {
    static INSTALLED: OnceCell<()> = OnceCell::const_new();
    INSTALLED.get_or_init(|| define(cluster)).await;
}

/// A job without a launcher, of one instance with one IPU and one worker, which runs a script.
pub(crate) fn worker_job(name: &str, script: &str) -> Value {
    json!({
        "apiVersion": "graphcore.ai/v1alpha1",
        "kind": "IPUJob",
        "metadata": {"name": name},
        "spec": {
            "jobInstances": 1,
            "ipusPerJobInstance": "1",
            "cleanPodPolicy": "None",
            "workers": {"template": {
                "metadata": {"labels": {"app": "inference-job"}},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [{
                    "name": "resnet",
                    "image": "local/busybox:1",
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["/bin/sh", "-c", "--"],
                    "args": [script],
                }]},
            }},
        },
    })
}

/// What a worker does that is to run until it is told to end.
pub(crate) const FOREVER: &str = "trap 'exit 0' TERM; while true; do sleep 1; done";
