//! The life of a release on a node, by both Helms: installation, upgrade, rollback, uninstallation and
//! reinstallation, while jobs run and others come and go.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::thread;
use std::time::Instant;

use ipu_test_cluster::{Tool, find_tools};
use serde_json::{Value, json};

use super::installation::CONTROLLERS;
use super::removal::{CRD, PARTITION_CRD};
use crate::figures::record;
use crate::installation::{SYSTEM, prepared_privately, repository, wait_until};
use crate::running_job::{NAMESPACE, REQUEST_INTERVAL, RunningJob};

/// Registry of the next version's images.
const NEXT_REGISTRY: &str = "registry.example.com/next";

/// Values of the next version.
const NEXT: [&str; 5] = [
    "controller.image.repository=registry.example.com/next/ipu-operator",
    "controller.image.tag=9.9.9",
    "vipuProxy.image.repository=registry.example.com/next/vipu-proxy",
    "vipuProxy.image.tag=9.9.9",
    "controller.logLevel=3",
];

/// Environment variable with the number of small jobs that run throughout, for a soak. The default is 2.
const JOBS: &str = "IPU_SYSTEM_UPGRADE_JOBS";

/// Largest number of jobs that fits the simulated controller of `deploy/simulator` with the other jobs.
const MAX_JOBS_OF_POD16: usize = 8;

#[test]
fn jobs_run_come_and_go_while_a_release_is_upgraded_rolled_back_and_installed_under_another_name() {
    let name =
        "jobs_run_come_and_go_while_a_release_is_upgraded_rolled_back_and_installed_under_another_name";
    let (Some(_), Some(product)) = (find_tools(name, &Tool::HELM), prepared_privately(name)) else {
        return;
    };
    if number_of_small_jobs() > MAX_JOBS_OF_POD16 {
        let patch = r#"[{"op": "replace", "path": "/spec/template/spec/containers/0/args/0", "value": "--topology=pod256"}]"#;
        let patch = ["patch", "deployment", "vipu-server", "--type=json", "-p", patch];
        product.kubectl(&[&["-n", "vipu"], &patch[..]].concat());
        product.wait_for_rollout("vipu", "vipu-server");
    }
    let started = Instant::now();
    product.install_chart(Tool::Helm3, "gc");
    let ready = started.elapsed();
    let job = RunningJob::start(product);
    record(&format!(
        "helm install --wait: {:.1} s until operator and proxy are ready, {:.1} s until the first job is Running",
        ready.as_secs_f64(),
        started.elapsed().as_secs_f64()
    ));
    let product = &job.product;
    // V-IPU guide §6.3.2.
    let pods = job.in_system(&["get", "pods", "-o", "name"]);
    for deployment in [
        "gc-ipu-operator-controller-manager-",
        "gc-ipu-operator-vipu-proxy-",
    ] {
        assert!(pods.contains(deployment), "{pods}");
    }
    for image in ["ipu-operator", "vipu-proxy"] {
        product.load_as(image, &format!("{NEXT_REGISTRY}/{image}:9.9.9"));
    }
    job.start_small_jobs();
    let mpi = product.has_mpi(name);
    if mpi {
        job.start_training();
    }
    let jobs = job.running_jobs();

    job.assert_no_difference(Tool::Helm3, "gc");
    job.rotate_certificate("gc");
    job.assert_no_difference(Tool::Helm3, "gc");
    thread::scope(|scope| {
        if mpi {
            scope.spawn(|| product.run_mpirun_in_an_interactive_job());
        }
        product.kill_a_worker_under_each_policy();
    });
    job.upgrade_and_roll_back(Tool::Helm3, "gc", &jobs);

    product.uninstall_chart(Tool::Helm3, "gc");
    job.wait_until_only_remain(&[CRD, PARTITION_CRD, "namespace/ipu-operator-system"]);
    // The next release must find the ledger, not make a new one.
    job.assert_kept_worker_and_partition();
    // The webhooks are removed, so the update needs no admission.
    job.in_jobs(&["label", "ipujob", "inference", "webhooks=removed"]);
    // It waits for the next operator.
    job.submit_another(0);

    product.install_chart(Tool::Helm4, "ipu-operator");
    job.wait_until_others_are_reconciled(1);
    job.upgrade_and_roll_back(Tool::Helm4, "ipu-operator", &jobs);
    job.assert_no_difference(Tool::Helm4, "ipu-operator");
    job.scale_to("2");
    job.assert_kept_worker_and_partition();
    if mpi {
        job.finish_training();
    }
    job.in_jobs(&["delete", "ipujobs", "-l", "group=small", "--timeout=300s"]);

    job.remove_everything(Tool::Helm4, "ipu-operator");
    product.install_chart(Tool::Helm4, "ipu-operator");
    job.wait_until_job_and_crd_are_deleted();
    product.uninstall_chart(Tool::Helm4, "ipu-operator");
    // The second installation has made it again.
    let system = format!("namespace/{SYSTEM}");
    product.kubectl(&["delete", PARTITION_CRD, &system, "--timeout=120s"]);
    job.wait_until_only_remain(&[]);
    product.kubectl(&["delete", "namespace", NAMESPACE, "--timeout=120s"]);
}

fn number_of_small_jobs() -> usize {
    std::env::var(JOBS).map_or(2, |number| number.parse().unwrap())
}

/// Running jobs: their Pods with uids, and their attempts with partitions.
#[derive(Debug, PartialEq)]
struct RunningJobs {
    pods: BTreeMap<String, String>,
    jobs: BTreeMap<String, Value>,
}

impl RunningJob {
    /// Starts the jobs of [`JOBS`], and waits until all of them run.
    fn start_small_jobs(&self) {
        let number = number_of_small_jobs();
        let example = std::fs::read_to_string(repository("examples/kubernetes/inference.yaml")).unwrap();
        let example = example.replace("mpi-example:1", "local/busybox:1");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("jobs.yaml");
        let mut text = String::new();
        for job in 0..number {
            let metadata = format!("name: small-{job}\n  labels: {{group: small}}");
            write!(text, "---\n{}", example.replacen("name: inference", &metadata, 1)).unwrap();
        }
        std::fs::write(&file, text).unwrap();
        self.in_jobs(&["apply", "-f", &file.display().to_string()]);
        let condition = "--for=jsonpath={.status.phase}=Running";
        self.in_jobs(&[
            "wait",
            "ipujobs",
            "-l",
            "group=small",
            condition,
            "--timeout=1800s",
        ]);
    }

    /// Returns the present jobs except those of [`Self::run_job`]. All of them must run.
    fn running_jobs(&self) -> RunningJobs {
        let list = |kind: &str| -> Vec<Value> {
            let list: Value = serde_json::from_str(&self.in_jobs(&["get", kind, "-o", "json"])).unwrap();
            list["items"].as_array().unwrap().clone()
        };
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
        let mut jobs = BTreeMap::new();
        for job in list("ipujobs")
            .iter()
            .filter(|job| !name(job).starts_with("short-"))
        {
            let status = &job["status"];
            assert_eq!(status["phase"], "Running", "{job}");
            let partitions = status["instances"].as_array().unwrap().iter();
            let partitions: Vec<&Value> = partitions.map(|instance| &instance["partition"]).collect();
            jobs.insert(
                name(job),
                json!({"restarts": status["restartCount"], "partitions": partitions}),
            );
        }
        let mut pods = BTreeMap::new();
        for pod in &list("pods") {
            let job = pod["metadata"]["labels"]["graphcore.ai/ipujob-name"]
                .as_str()
                .unwrap();
            if jobs.contains_key(job) {
                pods.insert(name(pod), pod["metadata"]["uid"].as_str().unwrap().to_owned());
            }
        }
        assert!(jobs.contains_key("inference"), "{jobs:?}");
        assert!(pods.len() >= jobs.len(), "{jobs:?}: {pods:?}");
        RunningJobs { pods, jobs }
    }

    /// Upgrades a release to the next version and rolls it back, while the jobs run, and other jobs come and
    /// go.
    fn upgrade_and_roll_back(&self, helm: Tool, release: &str, jobs: &RunningJobs) {
        let chart = repository("deploy/helm/ipu-operator");
        let wait = ["--wait", "--timeout", "300s"];
        let values: Vec<&str> = NEXT.iter().flat_map(|value| ["--set", *value]).collect();
        let upgrade = [
            &["upgrade", release, &chart, "--reset-then-reuse-values"],
            &values[..],
            &wait,
        ]
        .concat();
        let rollback = [&["rollback", release, "1"], &wait[..]].concat();
        for (change, arguments, images) in [
            ("upgrade", upgrade, vec![NEXT_REGISTRY; 2]),
            ("rollback", rollback, vec!["ipu-operator:", "vipu-proxy:"]),
        ] {
            let started = Instant::now();
            let (run, admitted) = self.submit_during(|| self.product.helm(helm, &arguments));
            record(&format!(
                "{helm:?} {change} with {} running jobs: {:.1} s; {run} other jobs ran meanwhile, {admitted} more were admitted",
                jobs.jobs.len(),
                started.elapsed().as_secs_f64()
            ));
            let path = "jsonpath={range .items[*]}{.spec.template.spec.containers[0].image}{\"\\n\"}{end}";
            let installed = self.in_system(&["get", "deployments", "-o", path]);
            assert_eq!(installed.lines().count(), images.len(), "{installed}");
            for (image, expected) in installed.lines().zip(images) {
                assert!(image.starts_with(expected), "{installed}");
            }
            assert_eq!(self.running_jobs(), *jobs, "{helm:?} {change}");
            for partition in jobs
                .jobs
                .values()
                .flat_map(|job| job["partitions"].as_array().unwrap())
            {
                let partition = partition.as_str().unwrap();
                assert!(
                    self.ledger().contains(partition),
                    "{partition}: {}",
                    self.ledger()
                );
                assert!(
                    self.product.controller_partitions().contains(partition),
                    "{partition}"
                );
            }
        }
    }

    /// Submits jobs until the change has ended; none may be refused. Some run to their end, without a
    /// restart, and are deleted. The others are only admitted. Returns both numbers.
    fn submit_during(&self, change: impl FnOnce() + Send) -> (usize, usize) {
        thread::scope(|scope| {
            let change = scope.spawn(change);
            let numbers = thread::scope(|scope| {
                let short_jobs = scope.spawn(|| {
                    let mut run = 0;
                    while run == 0 || !change.is_finished() {
                        self.run_job(run);
                        run += 1;
                    }
                    run
                });
                let mut admitted = 0;
                while admitted == 0 || !change.is_finished() {
                    self.product.admit(NAMESPACE, "inference", |job| {
                        job.replacen("name: inference", "name: admitted", 1)
                    });
                    admitted += 1;
                    thread::sleep(REQUEST_INTERVAL);
                }
                (short_jobs.join().unwrap(), admitted)
            });
            change.join().unwrap();
            numbers
        })
    }

    /// Runs a short job to its end, and deletes it.
    fn run_job(&self, number: usize) {
        let name = format!("short-{number}");
        self.product.submit(NAMESPACE, "inference", |job| {
            job.replacen("name: inference", &format!("name: {name}"), 1)
                .replace("mpi-example:1", "local/busybox:1")
                .replace("while true; do sleep 30000; done", "true")
        });
        let status = self.product.wait_for_phase(NAMESPACE, &name, "Completed");
        assert_eq!(status["restartCount"], 0, "{status}");
        self.in_jobs(&["delete", "ipujob", &name, "--timeout=120s"]);
    }

    /// Lets the operator make a new certificate of the webhooks, and waits until they trust it.
    fn rotate_certificate(&self, release: &str) {
        let configuration = format!("validatingwebhookconfiguration/{release}-ipu-operator-admission");
        let bundle = || {
            let path = "jsonpath={.webhooks[0].clientConfig.caBundle}";
            self.product.kubectl(&["get", &configuration, "-o", path])
        };
        let before = bundle();
        let secret = format!("{release}-ipu-operator-admission");
        self.in_system(&["delete", "secret", &secret]);
        wait_until("the webhooks trust the new certificate", || {
            let present = bundle();
            let is_new = !present.is_empty() && present != before;
            if is_new { Ok(()) } else { Err(present) }
        });
    }

    fn assert_no_difference(&self, helm: Tool, release: &str) {
        let chart = repository("deploy/helm/ipu-operator");
        let arguments = [release, &chart, "--set", CONTROLLERS];
        self.product.assert_no_difference(helm, &arguments);
    }
}
