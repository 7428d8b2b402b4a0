//! Fixture for IPUJobs on a real node: an operator and a proxy with simulated V-IPU controllers, for one
//! namespace.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipu_core::hardware::Topology;
use ipu_operator::{Operator, Settings};
use ipu_test_cluster::{Cluster, ClusterProfile, shared_with};
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use vipu_proxy::Proxy;
use vipu_sim::Simulator;

use crate::support::{
    apply, config, http, local_address, pauses, settings, start, wait_until, wait_until_ready,
};
use crate::webhooks::register_webhooks;

/// Timeout for a status change on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(240);

/// Operator of one namespace, and a proxy with a simulated controller of 32 IPUs unless a test configures
/// its own.
pub(crate) struct ClusterFixture {
    pub(crate) cluster: &'static Cluster,
    pub(crate) namespace: &'static str,
    operator: Operator,
    operator_settings: Settings,
    proxy: Option<Proxy>,
    proxy_address: SocketAddr,
    client: Client,
}

impl ClusterFixture {
    /// Starts the fixture; returns `None` if this machine cannot run a node.
    pub(crate) async fn start(test: &str, namespace: &'static str) -> Option<Self> {
        Self::start_with(test, namespace, |_, _| {}).await
    }

    /// Starts the fixture with changed settings of proxy and operator.
    pub(crate) async fn start_with(
        test: &str,
        namespace: &'static str,
        change: impl FnOnce(&mut vipu_proxy::Settings, &mut Settings),
    ) -> Option<Self> {
        let cluster = shared_with(test, ClusterProfile::Node)?;
        install(cluster).await;
        cluster.kubectl(&["create", "namespace", namespace]).unwrap();
        let mut proxy_settings = vipu_proxy::Settings::simulated("1x8");
        let mut operator_settings = Settings::default();
        operator_settings.watch_namespaces = Some(namespace.into());
        operator_settings.host_network = Some(false);
        operator_settings.launcher_image = Some(crate::guide::IMAGE.into());
        change(&mut proxy_settings, &mut operator_settings);
        let proxy = Proxy::start(proxy_settings.check().unwrap()).await.unwrap();
        operator_settings.vipu_proxy_svc = Some(format!("http://{}", local_address(proxy.addr())));
        let operator_settings = operator_settings.or(settings(namespace));
        let operator = start(cluster, operator_settings.clone()).await;
        // Pods are rejected until the service account exists.
        wait_until("the namespace has its service account", async || {
            let arguments = ["-n", namespace, "get", "serviceaccount", "default"];
            cluster.kubectl(&arguments).is_ok()
        })
        .await;
        Some(Self {
            cluster,
            namespace,
            operator,
            operator_settings,
            proxy_address: proxy.addr(),
            proxy: Some(proxy),
            client: Client::try_from(config(cluster).await).unwrap(),
        })
    }

    /// Starts the fixture with admission webhooks, as in an installation.
    pub(crate) async fn start_with_webhooks(test: &str, namespace: &'static str) -> Option<Self> {
        let host = shared_with(test, ClusterProfile::Node)?
            .host_address()
            .to_string();
        let fixture = Self::start_with(test, namespace, |_, operator| {
            operator.webhook_cert_names = Some(host.clone());
        })
        .await?;
        let address = format!("{host}:{}", fixture.operator.webhooks().port());
        register_webhooks(fixture.cluster, namespace, &address);
        wait_until_ready(&fixture.operator).await;
        let mut probe = worker_job("probe", "true");
        probe["metadata"]["namespace"] = namespace.into();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("probe.json");
        std::fs::write(&file, probe.to_string()).unwrap();
        let file = file.to_str().unwrap();
        let arguments = ["create", "--dry-run=server", "-o", "json", "-f", file];
        wait_until("the API server calls the webhooks", async || {
            let shown = fixture.cluster.kubectl(&arguments);
            shown.is_ok_and(|shown| shown.contains("backOffLimit"))
        })
        .await;
        Some(fixture)
    }

    /// Starts another operator, and then ends the former one as a crash does.
    pub(crate) async fn crash_operator(&mut self) {
        self.operator = start(self.cluster, self.operator_settings.clone()).await;
    }

    /// Like [`Self::crash_operator`], with changed settings.
    pub(crate) async fn crash_operator_with(&mut self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.operator_settings);
        self.crash_operator().await;
    }

    /// Ends the proxy, so that the test runs one of its own at the returned address.
    pub(crate) async fn stop_proxy(&mut self) -> SocketAddr {
        self.proxy.take().unwrap().shutdown().await;
        self.proxy_address
    }

    /// Runs `kubectl` in the namespace.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        self.cluster
            .kubectl(&[&["-n", self.namespace], arguments].concat())
            .unwrap()
    }

    /// Applies an object, and returns the output of `kubectl apply`.
    pub(crate) fn apply(&self, object: &Value) -> String {
        let mut object = object.clone();
        object["metadata"]["namespace"] = self.namespace.into();
        apply(self.cluster, &object)
    }

    /// Creates an object; returns whether the API server accepted it.
    pub(crate) fn create(&self, object: &Value) -> bool {
        self.create_with(object, &[])
    }

    /// Returns whether the API server would accept an object.
    pub(crate) fn create_dry(&self, object: &Value) -> bool {
        self.create_with(object, &["--dry-run=server"])
    }

    fn create_with(&self, object: &Value, options: &[&str]) -> bool {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("object.json");
        std::fs::write(&file, object.to_string()).unwrap();
        let arguments = ["-n", self.namespace, "create", "-f", file.to_str().unwrap()];
        self.cluster.kubectl(&[&arguments, options].concat()).is_ok()
    }

    /// Reads an object from the API server; returns `None` if it does not exist.
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

    /// Returns all objects of a kind.
    pub(crate) async fn list(&self, group: &str, version: &str, kind: &str) -> Vec<Value> {
        let all = self.api(group, version, kind).list(&ListParams::default()).await;
        let all = all.unwrap().items.into_iter();
        all.map(|object| serde_json::to_value(object).unwrap()).collect()
    }

    /// Returns the sorted names of all Pods.
    pub(crate) async fn pods(&self) -> Vec<String> {
        let all = self.list("", "v1", "Pod").await.into_iter();
        let mut names: Vec<String> = all
            .map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    }

    /// Returns the header of `kubectl get ipujobs`, and the row of a job without its age.
    pub(crate) fn table(&self, name: &str) -> [Vec<String>; 2] {
        let table = self.kubectl(&["get", "ipujobs.graphcore.ai", name]);
        let mut lines = table.lines();
        let header = cells(lines.next().unwrap_or_default());
        let mut row = cells(lines.next().unwrap_or_default());
        row.pop();
        [header, row]
    }

    /// Waits until the job is in a phase.
    pub(crate) async fn wait_for_phase(&self, name: &str, phase: &str) -> Value {
        let description = format!("{name} is {phase}");
        self.wait_for_status(name, &description, |status| status["phase"] == phase)
            .await
    }

    /// Waits until the status of a job meets a condition, and returns it.
    pub(crate) async fn wait_for_status(
        &self,
        name: &str,
        description: &str,
        condition: impl Fn(&Value) -> bool,
    ) -> Value {
        self.wait_for_status_of("IPUJob", name, description, condition)
            .await
    }

    /// Waits until the status of an object of this kind meets a condition, and returns it.
    pub(crate) async fn wait_for_status_of(
        &self,
        kind: &str,
        name: &str,
        description: &str,
        condition: impl Fn(&Value) -> bool,
    ) -> Value {
        let waiting = async {
            let mut status = Value::Null;
            for pause in pauses() {
                let found = self.find("graphcore.ai", "v1alpha1", kind, name).await;
                status = found.unwrap_or_default()["status"].take();
                if condition(&status) {
                    break;
                }
                tokio::time::sleep(pause).await;
            }
            status
        };
        match tokio::time::timeout(TIMEOUT, waiting).await {
            Ok(status) => status,
            Err(_) => panic!(
                "timed out: {description}\n{}\n{}",
                self.kubectl(&["get", "pods", "-o", "wide"]),
                self.kubectl(&["describe", kind, name])
            ),
        }
    }

    /// Waits until exactly these Pods exist.
    pub(crate) async fn wait_for_pods(&self, names: &[&str]) {
        wait_until(&format!("the Pods are {names:?}"), async || {
            self.pods().await == names
        })
        .await;
    }

    /// Returns the address of the proxy.
    pub(crate) fn proxy(&self) -> SocketAddr {
        self.proxy_address
    }

    /// Sends a `GET` request to the proxy.
    pub(crate) async fn get_from_proxy(&self, path: &str) -> Value {
        let url = format!("http://{}{path}", local_address(self.proxy()));
        http().get(&url).send().await.unwrap().json().await.unwrap()
    }

    /// Deletes a job, and waits until it no longer exists.
    pub(crate) fn delete(&self, name: &str) {
        self.kubectl(&["delete", "ipujob", name, "--timeout=120s"]);
    }

    /// Deletes all jobs, checks that no Pod and no partition is left, and shuts down.
    pub(crate) async fn delete_all_and_shut_down(self) {
        self.kubectl(&["delete", "ipujobs,ipupartitions", "--all", "--timeout=120s"]);
        assert_eq!(self.pods().await, [""; 0]);
        wait_until("all partitions are released", async || {
            self.get_from_proxy("/v1/partitions").await["partitions"] == json!([])
        })
        .await;
        self.operator.shutdown().await;
        if let Some(proxy) = self.proxy {
            proxy.shutdown().await;
        }
    }

    fn api(&self, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(self.client.clone(), self.namespace, &resource)
    }
}

/// Starts a V-IPU controller for one test, which can inspect it and inject faults.
pub(crate) async fn simulator(topology: &str) -> Simulator {
    let topology: Topology = topology.parse().unwrap();
    Simulator::builder(topology).start().await.unwrap()
}

/// File with a list of controllers and the labels of their nodes, which a proxy watches.
pub(crate) struct ControllersFile(tempfile::TempDir);

impl ControllersFile {
    pub(crate) fn new(controllers: &[(&Simulator, &str)]) -> Self {
        let list = Self(tempfile::tempdir().unwrap());
        list.write(controllers);
        list
    }

    pub(crate) fn write(&self, controllers: &[(&Simulator, &str)]) {
        let one = |(controller, label): &(&Simulator, &str)| format!("{}:{label}", controller.addr());
        let all: Vec<String> = controllers.iter().map(one).collect();
        std::fs::write(self.path(), all.join(",")).unwrap();
    }

    /// Configures a proxy to read its controllers from this file instead of simulating one.
    pub(crate) fn configure(&self, proxy: &mut vipu_proxy::Settings) {
        proxy.sim = None;
        proxy.sim_delay_ms = None;
        proxy.sim_listen = None;
        proxy.store = Some("memory".into());
        proxy.controllers_file = Some(self.path());
        proxy.repair_interval = Some(1);
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("controllers.yaml")
    }
}

/// Splits a table row into cells; cells contain single spaces only.
fn cells(line: &str) -> Vec<String> {
    let cells = line.split("  ").map(str::trim);
    cells.filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
}

/// Installs the CRDs.
pub(crate) async fn install_crd(cluster: &Cluster) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/crd");
    cluster.kubectl(&["apply", "-k", folder]).unwrap();
    // kubectl cannot wait for a condition before the first one is set.
    wait_until("IPUJobs and IPUPartitions are served", async || {
        cluster.kubectl(&["get", "ipujobs,ipupartitions"]).is_ok()
    })
    .await;
}

/// Installs the shipped CRD once for all tests of the cluster.
async fn install(cluster: &Cluster) {
    static INSTALLED: OnceCell<()> = OnceCell::const_new();
    INSTALLED.get_or_init(|| install_crd(cluster)).await;
}

/// Returns a job without a launcher: one instance with one IPU and one worker, which runs a script.
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

/// Script of a worker that runs until SIGTERM.
pub(crate) const RUN_UNTIL_SIGTERM: &str = "trap 'exit 0' TERM; while true; do sleep 1; done";
