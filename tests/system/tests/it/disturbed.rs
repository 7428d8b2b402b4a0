//! Operator and proxy come and go while a job runs, and at last are removed.

use ipu_test_cluster::Cluster;
use serde_json::Value;

use crate::product::{CONTROLLERS, Product, SYSTEM, eventually, installed_alone, repository};

const DEPLOYMENTS: [&str; 2] = ["ipu-operator-vipu-proxy", "ipu-operator-controller-manager"];
const NAMESPACE: &str = "goes-on";

/// A job of one worker that runs, and what it has from the beginning.
struct Running {
    product: Product<Box<Cluster>>,
    worker: String,
    partition: String,
}

impl Running {
    fn start(product: Product<Box<Cluster>>) -> Self {
        product.kubectl(&["create", "namespace", NAMESPACE]);
        // It needs no Open MPI.
        product.submit(NAMESPACE, "inference", |job| {
            job.replace("mpi-example:1", "local/busybox:1")
        });
        product.until(NAMESPACE, "inference", "Running");
        let job: Value = serde_json::from_str(&product.kubectl(&[
            "-n",
            NAMESPACE,
            "get",
            "ipujob",
            "inference",
            "-o",
            "json",
        ]))
        .unwrap();
        let partition = job["status"]["instances"][0]["partition"].as_str().unwrap();
        let partition = partition.to_owned();
        let mut running = Self {
            product,
            worker: String::new(),
            partition,
        };
        running.worker = running.workers();
        running
    }

    /// The uids of the workers.
    fn workers(&self) -> String {
        let path = "jsonpath={.items[*].metadata.uid}";
        let selector = "graphcore.ai/ipujob-name=inference";
        self.product
            .kubectl(&["-n", NAMESPACE, "get", "pods", "-l", selector, "-o", path])
    }

    /// The whole ledger.
    fn ledger(&self) -> String {
        let configmap = ["get", "configmap", "ipu-partitions-tracker"];
        let words = [&["-n", SYSTEM], &configmap[..], &["-o", "jsonpath={.data}"]];
        self.product.kubectl(&words.concat())
    }

    fn scale_to(&self, replicas: &str) {
        let scale = ["scale", "ipujob/inference", "--replicas", replicas];
        self.product.kubectl(&[&["-n", NAMESPACE], &scale[..]].concat());
        eventually("it is scaled", || {
            let path = "jsonpath={.status.currentReplicas} {.status.phase}";
            let said = self
                .product
                .kubectl(&["-n", NAMESPACE, "get", "ipujob", "inference", "-o", path]);
            if said == format!("{replicas} Running") {
                Ok(())
            } else {
                Err(said)
            }
        });
    }

    /// It has all that it began with.
    fn has_lost_nothing(&self) {
        self.product.until(NAMESPACE, "inference", "Running");
        assert!(self.workers().contains(&self.worker), "the worker runs on");
        assert!(self.ledger().contains(&self.partition), "{}", self.ledger());
    }

    /// The job is deleted, and nothing is held.
    fn ends(&self) {
        self.product.delete(NAMESPACE, "inference");
        eventually("nothing is held", || {
            let ledger = self.ledger();
            if ledger.contains("p-inference") {
                Err(ledger)
            } else {
                Ok(())
            }
        });
    }

    fn are_out(&self) {
        for deployment in DEPLOYMENTS {
            self.product.is_out(SYSTEM, deployment);
        }
    }
}

#[test]
fn a_job_goes_on_and_others_are_taken_while_operator_and_proxy_are_replaced_and_killed() {
    let name = "a_job_goes_on_and_others_are_taken_while_operator_and_proxy_are_replaced_and_killed";
    let Some(product) = installed_alone(name) else {
        return;
    };
    let running = Running::start(product);
    let product = &running.product;
    let mpi = product.has_mpi(name);
    if mpi {
        product.submit(NAMESPACE, "training", |job| {
            let waits = "    - sh\n    - -c\n    - until [ -e /tmp/go ]; do sleep 1; done; ring\n";
            job.replace("    - ring\n", waits)
        });
        product.until(NAMESPACE, "training", "Running");
    }
    for deployment in DEPLOYMENTS {
        let restarted = format!("deployment/{deployment}");
        product.kubectl(&["-n", SYSTEM, "rollout", "restart", &restarted]);
    }
    let is_out = |deployment: &&str| {
        let deployment = format!("deployment/{deployment}");
        let words = ["-n", SYSTEM, "rollout", "status", &deployment, "--watch=false"];
        product.kubectl(&words).contains("successfully rolled out")
    };
    let pods = || {
        let pods = product.kubectl(&["-n", SYSTEM, "get", "pods", "-o", "name"]);
        pods.lines().count()
    };
    eventually("the last of those before has gone", || {
        // The webhooks are asked of a dry run, too; there is always one who answers.
        let job = repository("examples/kubernetes/interactive.yaml");
        let words = ["create", "-f", &job, "--dry-run=server", "-o", "name"];
        product.kubectl(&[&["-n", NAMESPACE], &words[..]].concat());
        if DEPLOYMENTS.iter().all(is_out) && pods() == DEPLOYMENTS.len() {
            Ok(())
        } else {
            Err(product.kubectl(&["-n", SYSTEM, "get", "pods"]))
        }
    });
    running.has_lost_nothing();

    let all = ["delete", "pods", "--all", "--grace-period=0", "--force"];
    product.kubectl(&[&["-n", SYSTEM], &all[..]].concat());
    running.are_out();
    running.scale_to("2");
    running.has_lost_nothing();
    if mpi {
        for worker in 0..4 {
            let worker = format!("training-worker-{worker}");
            product.kubectl(&["-n", NAMESPACE, "exec", &worker, "--", "touch", "/tmp/go"]);
        }
        let status = product.until(NAMESPACE, "training", "Completed");
        assert_eq!(status["restartCount"], 0, "{status}");
        let log = product.kubectl(&["-n", NAMESPACE, "logs", "training-launcher"]);
        assert_eq!(log.matches("the sum is 6").count(), 4, "{log}");
        product.delete(NAMESPACE, "training");
    }
    running.ends();
}

#[test]
fn what_is_removed_blocks_nothing_and_what_is_installed_again_goes_on_with_the_ledger() {
    let name = "what_is_removed_blocks_nothing_and_what_is_installed_again_goes_on_with_the_ledger";
    let Some(product) = installed_alone(name) else {
        return;
    };
    let running = Running::start(product);
    let product = &running.product;
    let manifests = repository("deploy/kubernetes");
    let component = "app.kubernetes.io/component";
    product.kubectl(&["delete", "-k", &manifests, "-l", component, "--timeout=120s"]);
    running.has_lost_nothing();
    // Nobody is asked any more.
    let labelled = ["-n", NAMESPACE, "label", "ipujob", "inference"];
    product.kubectl(&[&labelled[..], &["nobody=asked"]].concat());

    product.kubectl(&["apply", "-k", &manifests]);
    let configmap = ["patch", "configmap", "ipu-operator-vipu-controllers"];
    product.kubectl(
        &[
            &["-n", SYSTEM],
            &configmap[..],
            &["--type=merge", "-p", CONTROLLERS],
        ]
        .concat(),
    );
    running.are_out();
    running.scale_to("2");
    running.has_lost_nothing();
    running.ends();

    product.kubectl(&["delete", "-k", &manifests, "--timeout=120s"]);
    let kinds = "validatingwebhookconfigurations,mutatingwebhookconfigurations,clusterroles,clusterrolebindings,\
                 customresourcedefinitions,namespaces";
    let left = product.kubectl(&["get", kinds, "-o", "name"]);
    assert!(
        !left.contains("ipu-operator") && !left.contains("ipujob"),
        "{left}"
    );
    product.kubectl(&["delete", "namespace", NAMESPACE, "--timeout=120s"]);
}
