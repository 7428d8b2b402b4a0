//! Operator and proxy come and go while a job runs, and at last are removed.

use ipu_test_cluster::Cluster;
use serde_json::Value;

use crate::installation::{CONTROLLERS, Product, SYSTEM, eventually, installed_alone, repository};

const DEPLOYMENTS: [&str; 2] = ["ipu-operator-vipu-proxy", "ipu-operator-controller-manager"];
const NAMESPACE: &str = "goes-on";

/// The definition of the IPUJob.
const DEFINITION: &str = "customresourcedefinition.apiextensions.k8s.io/ipujobs.graphcore.ai";

/// Where the images of the next version are from.
const NEXT: &str = "registry.example.com";

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

    /// What is left of the installation outside of its namespace, and that.
    fn left(&self) -> Vec<String> {
        let kinds = "validatingwebhookconfigurations,mutatingwebhookconfigurations,clusterroles,clusterrolebindings,\
                     customresourcedefinitions,namespaces";
        let all = self.product.kubectl(&["get", kinds, "-o", "name"]);
        let is_of_it = |name: &&str| name.contains("ipu-operator") || name.contains("ipujob");
        all.lines().filter(is_of_it).map(str::to_owned).collect()
    }

    /// Waits until that is all that is left.
    fn leaves(&self, what: &[&str]) {
        eventually(&format!("only {what:?} are left"), || {
            let left = self.left();
            if left == what {
                Ok(())
            } else {
                Err(format!("{left:?}"))
            }
        });
    }

    fn is_installed_again(&self) {
        self.product
            .kubectl(&["apply", "-k", &repository("deploy/kubernetes")]);
        let patch = [
            "patch",
            "configmap",
            "ipu-operator-vipu-controllers",
            "--type=merge",
        ];
        self.in_system(&[&patch[..], &["-p", CONTROLLERS]].concat());
        self.are_out();
    }

    /// Everything is removed while the job is there, and nobody who could let go of it: it stays, and so does its definition.
    fn is_removed_under_the_job(&self) {
        let product = &self.product;
        let component = "app.kubernetes.io/component=controller-manager";
        self.in_system(&[
            "delete",
            "deployment",
            "-l",
            component,
            "--cascade=foreground",
            "--timeout=120s",
        ]);
        let manifests = repository("deploy/kubernetes");
        product.kubectl(&["delete", "-k", &manifests, "--ignore-not-found", "--wait=false"]);
        self.leaves(&[DEFINITION]);
        for kept in [
            &["crd/ipujobs.graphcore.ai"][..],
            &["-n", NAMESPACE, "ipujob/inference"],
        ] {
            let path = "jsonpath={.metadata.deletionTimestamp} {.metadata.finalizers}";
            let said = product.kubectl(&[&["get", "-o", path], kept].concat());
            assert!(said.contains(":") && said.contains("[\""), "{kept:?}: {said}");
        }
        assert!(self.workers().contains(&self.worker), "the worker runs on");
        assert!(self.at_vipu().contains(&self.partition), "{}", self.at_vipu());
    }

    /// The job goes, with all that it had, and then its definition.
    fn is_let_go(&self) {
        eventually("the definition goes", || {
            let left = self.left();
            if left.iter().any(|name| name == DEFINITION) {
                Err(format!("{left:?}"))
            } else {
                Ok(())
            }
        });
        eventually("its workers are gone", || {
            let workers = self.workers();
            if workers.is_empty() { Ok(()) } else { Err(workers) }
        });
        eventually("V-IPU has everything back", || {
            let made = self.at_vipu();
            if made.contains("p-inference") {
                Err(made)
            } else {
                Ok(())
            }
        });
    }

    /// The partitions that the controller has.
    fn at_vipu(&self) -> String {
        let path = "/api/v1/namespaces/vipu/services/http:vipu-server:8090/proxy/v1/partitions";
        self.product.kubectl(&["get", "--raw", path])
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

    /// Operator and proxy are replaced as the guide tells it: by an overlay with other images and other settings. Nobody is refused
    /// meanwhile.
    fn is_upgraded(&self) {
        let product = &self.product;
        for image in ["ipu-operator", "vipu-proxy"] {
            product.load_as(image, &format!("{NEXT}/{image}:9.9.9"));
        }
        let before = (self.authority(), self.leader());
        let overlay = overlay();
        let manifests = overlay.path().join("my-cluster").display().to_string();
        product.kubectl(&["apply", "-k", &manifests]);
        let submitted = std::thread::scope(|scope| {
            let replaced = scope
                .spawn(|| eventually("the last of those before has gone", || self.are_all_of_the_next()));
            let mut submitted = 0;
            while !replaced.is_finished() {
                self.submit_another(submitted);
                submitted += 1;
            }
            replaced.join().unwrap();
            submitted
        });
        self.others_are_looked_at(submitted);
        self.has_lost_nothing();
        assert_eq!(self.authority(), before.0, "who trusted it goes on to");
        let leader = self.leader();
        assert_ne!(leader, before.1);
        let pods = self.in_system(&["get", "pods", "-o", "name"]);
        let (pod, _) = leader.split_once('_').unwrap();
        assert!(pods.contains(&format!("pod/{pod}")), "{leader} is none of {pods}");
        // What it was told anew counts, and what it was told before has not been lost.
        let refused = product.submit_in_vain(NAMESPACE, "inference", |job| {
            job.replace("name: inference", "name: large")
                .replace("ipusPerJobInstance: \"1\"", "ipusPerJobInstance: \"16\"")
        });
        assert!(
            refused.contains("must be a power of two from 1 to 8"),
            "{refused}"
        );
        let again = product.kubectl(&["apply", "-k", &manifests]);
        for object in [
            "deployment.apps",
            "configmap",
            "validatingwebhookconfiguration.admission",
        ] {
            let mut lines = again.lines().filter(|line| line.starts_with(object)).peekable();
            assert!(lines.peek().is_some(), "{again}");
            assert!(lines.all(|line| line.ends_with(" unchanged")), "{again}");
        }
    }

    /// A job that holds nothing is taken at the first try.
    fn submit_another(&self, number: usize) {
        self.product.submit(NAMESPACE, "inference", |job| {
            let other = format!("name: other-{number}\n  labels: {{what: other}}");
            job.replacen("name: inference", &other, 1).replacen(
                "  jobInstances",
                "  suspend: true\n  jobInstances",
                1,
            )
        });
    }

    /// So many of these were submitted; they are all looked at, and deleted.
    fn others_are_looked_at(&self, submitted: usize) {
        let others = |words: &[&str]| {
            let what = ["-n", NAMESPACE, words[0], "ipujobs", "-l", "what=other"];
            self.product.kubectl(&[&what[..], &words[1..]].concat())
        };
        eventually("the next operator has looked at all of them", || {
            let phases = others(&["get", "-o", "jsonpath={.items[*].status.phase}"]);
            if phases == vec!["Suspended"; submitted].join(" ") {
                Ok(())
            } else {
                Err(phases)
            }
        });
        others(&["delete", "--timeout=120s"]);
    }

    /// Whether all of operator and proxy are of the next images, and said to be there.
    fn are_all_of_the_next(&self) -> Result<(), String> {
        let is_out = |deployment: &&str| {
            let deployment = format!("deployment/{deployment}");
            let words = ["rollout", "status", &deployment, "--watch=false"];
            self.in_system(&words).contains("successfully rolled out")
        };
        let images = "jsonpath={range .items[*]}{.spec.containers[0].image}{\"\\n\"}{end}";
        let images = self.in_system(&["get", "pods", "-o", images]);
        let next = images.lines().filter(|image| image.starts_with(NEXT)).count();
        if DEPLOYMENTS.iter().all(is_out) && next == DEPLOYMENTS.len() && images.lines().count() == next {
            Ok(())
        } else {
            Err(self.in_system(&["get", "pods"]))
        }
    }

    /// Who signed the certificate of the webhooks.
    fn authority(&self) -> String {
        let path = "jsonpath={.webhooks[0].clientConfig.caBundle}";
        let words = [
            "get",
            "validatingwebhookconfiguration",
            "ipu-operator-admission",
            "-o",
            path,
        ];
        let authority = self.product.kubectl(&words);
        assert!(!authority.is_empty());
        authority
    }

    /// Who works on jobs.
    fn leader(&self) -> String {
        let path = "jsonpath={.spec.holderIdentity}";
        self.in_system(&["get", "lease", "ee82fc7a.graphcore.ai", "-o", path])
    }

    fn in_system(&self, words: &[&str]) -> String {
        self.product.kubectl(&[&["-n", SYSTEM], words].concat())
    }
}

/// The next version, as far as its manifests tell: beside `deploy`, as in the guide.
fn overlay() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(repository("deploy"), folder.path().join("deploy")).unwrap();
    let overlay = folder.path().join("my-cluster");
    std::fs::create_dir(&overlay).unwrap();
    let text = format!(
        r#"apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../deploy/kubernetes]
images:
- {{name: ipu-operator, newName: {NEXT}/ipu-operator, newTag: 9.9.9}}
- {{name: vipu-proxy, newName: {NEXT}/vipu-proxy, newTag: 9.9.9}}
patches:
- patch: |
    apiVersion: v1
    kind: ConfigMap
    metadata: {{name: ipu-operator-vipu-controllers, namespace: {SYSTEM}}}
    data: {{controllers.yaml: "vipu-server.vipu.svc.cluster.local:8090:vipu-ctrl=vctl1"}}
- patch: |
    apiVersion: apps/v1
    kind: Deployment
    metadata: {{name: ipu-operator-controller-manager, namespace: {SYSTEM}}}
    spec:
      template:
        spec:
          containers:
          - name: manager
            env:
            - {{name: IPU_OPERATOR_MAX_IPUS_PER_INSTANCE, value: "8"}}
"#
    );
    std::fs::write(overlay.join("kustomization.yaml"), text).unwrap();
    folder
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
    running.is_upgraded();
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
    running.leaves(&[DEFINITION, "namespace/ipu-operator-system"]);
    // Nobody is asked any more.
    let labelled = ["-n", NAMESPACE, "label", "ipujob", "inference"];
    product.kubectl(&[&labelled[..], &["nobody=asked"]].concat());

    running.is_installed_again();
    running.scale_to("2");
    running.has_lost_nothing();

    running.is_removed_under_the_job();
    running.is_installed_again();
    running.is_let_go();
    // There is no definition any more.
    let words = ["delete", "-k", &manifests, "--ignore-not-found", "--timeout=120s"];
    product.kubectl(&words);
    running.leaves(&[]);
    product.kubectl(&["delete", "namespace", NAMESPACE, "--timeout=120s"]);
}
