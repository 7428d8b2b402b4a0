//! The operator with its proxy, and its IPUJobs on simulated nodes.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ipu_operator::{Operator, Settings};
use ipu_test_cluster::{ContainerEnd, FakeOptions};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{ANY_PORT, NAMESPACE};
use crate::cluster::{Cluster, PROXY_ARGUMENTS, PROXY_TEST};
use crate::soak::mixed::{OtherOwner, Request};

/// Annotation of the Pods of the test with the time of their containers, in milliseconds.
const LIFE: &str = "test/life";

pub(super) async fn client(kubeconfig: &Path) -> Client {
    Client::try_from(config(kubeconfig).await).unwrap()
}

async fn config(kubeconfig: &Path) -> Config {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap()
}

/// Returns nodes whose containers run as long as their Pod says.
pub(super) fn node_options() -> FakeOptions {
    let mut options = FakeOptions::default();
    options.labels = BTreeMap::from([("vipu-ctrl".into(), "vctl1".into())]);
    options.container_end = Arc::new(|pod| match pod["metadata"]["annotations"][LIFE].as_str() {
        Some(life) => ContainerEnd::After {
            time: Duration::from_millis(life.parse().unwrap()),
            exit_code: 0,
        },
        None => ContainerEnd::Never,
    });
    options
}

/// The operator and its proxy.
pub(super) struct Installation {
    /// Port of the proxy on the loopback address.
    pub(super) proxy_port: u16,
    _operator: Operator,
    proxy: Child,
}

impl Drop for Installation {
    fn drop(&mut self) {
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
    }
}

/// Starts the operator, and a proxy in a process of its own.
pub(super) async fn start_operator(kubernetes: &ipu_test_cluster::Cluster) -> Installation {
    let arguments = format!(
        "--store kubernetes --namespace {NAMESPACE} --controllers-configmap ipu-operator-vipu-controllers --auth \
         none --listen {ANY_PORT}"
    );
    let mut proxy = Command::new(std::env::current_exe().unwrap())
        .args([PROXY_TEST, "--exact", "--nocapture"])
        .env(PROXY_ARGUMENTS, arguments)
        .env("KUBECONFIG", kubernetes.kubeconfig())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(proxy.stdout.take().unwrap()).lines();
    let address = lines
        .by_ref()
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("vipu-proxy serves on ").map(str::to_owned))
        .unwrap();
    // A process whose output has no reader ends.
    std::thread::spawn(move || lines.for_each(drop));
    let mut settings = Settings::default();
    settings.vipu_proxy_svc = Some(format!("http://{address}"));
    settings.namespace = Some(NAMESPACE.into());
    settings.leader_elect = Some(false);
    settings.host_network = Some(false);
    settings.webhooks_port = Some(0);
    settings.metrics_bind_address = Some(ANY_PORT.to_string());
    settings.health_probe_bind_address = Some(ANY_PORT.to_string());
    let config = config(&kubernetes.kubeconfig()).await;
    let operator = Operator::start(settings.check(NAMESPACE).unwrap(), config);
    Installation {
        proxy_port: address.rsplit_once(':').unwrap().1.parse().unwrap(),
        _operator: operator.await.unwrap(),
        proxy,
    }
}

fn job_resource() -> ApiResource {
    ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("graphcore.ai", "v1alpha1", "IPUJob"),
        "ipujobs",
    )
}

/// The IPUJobs of the operator.
pub(super) struct OperatorJobs<'a> {
    runtime: &'a Runtime,
    jobs: Api<DynamicObject>,
    submitted: usize,
    /// Number of jobs that exist.
    present: usize,
    completed: usize,
}

impl<'a> OperatorJobs<'a> {
    pub(super) fn new(runtime: &'a Runtime, client: Client) -> Self {
        Self {
            runtime,
            jobs: Api::namespaced_with(client, "default", &job_resource()),
            submitted: 0,
            present: 0,
            completed: 0,
        }
    }

    /// Checks that all jobs have completed.
    pub(super) fn assert_all_completed(&self) {
        assert!(self.submitted > 0, "all requests are jobs of Slurm");
        assert_eq!(self.completed, self.submitted);
    }
}

impl OtherOwner for OperatorJobs<'_> {
    fn submit(&mut self, _: &Cluster, number: usize, request: &Request) {
        let life = request.life.as_millis().to_string();
        let job = json!({
            "apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob",
            "metadata": {"name": format!("mnist-{number}")},
            "spec": {
                "jobInstances": 1,
                "ipusPerJobInstance": request.size.to_string(),
                "restartPolicy": {"type": "Never"},
                "workers": {"replicas": 1, "template": {
                    "metadata": {"annotations": {LIFE: life}},
                    "spec": {"containers": [{"name": "mnist", "image": "local/none:1", "command": ["work"]}]},
                }},
            },
        });
        let job = serde_json::from_value(job).unwrap();
        self.runtime
            .block_on(self.jobs.create(&PostParams::default(), &job))
            .unwrap();
        self.submitted += 1;
        self.present += 1;
    }

    /// Deletes the jobs that have completed. None may fail or start again.
    fn step(&mut self, _: &Cluster, _: &[Value]) {
        self.runtime.block_on(async {
            let list = self.jobs.list(&ListParams::default()).await.unwrap();
            self.present = list.items.len();
            for job in &list.items {
                let status = &job.data["status"];
                match status["phase"].as_str() {
                    Some("Completed") if job.metadata.deletion_timestamp.is_none() => {
                        let instances = status["instances"].as_array().into_iter().flatten();
                        let starts: Vec<&Value> = instances.map(|instance| &instance["restarts"]).collect();
                        assert!(
                            starts.iter().all(|restarts| restarts.as_u64().unwrap_or(0) == 0),
                            "{status}"
                        );
                        let name = job.metadata.name.as_deref().unwrap();
                        self.jobs.delete(name, &DeleteParams::default()).await.unwrap();
                        self.completed += 1;
                    }
                    Some("Failed") => panic!("{status}"),
                    _ => {}
                }
            }
        });
    }

    fn jobs(&self) -> usize {
        self.present
    }
}
