//! Upgrade, crash, removal and reinstallation of operator and proxy while a job runs.

use ipu_test_cluster::Cluster;
use serde_json::Value;

use crate::installation::{CONTROLLERS, Product, SYSTEM, installed_privately, repository, wait_until};

const DEPLOYMENTS: [&str; 2] = ["ipu-operator-vipu-proxy", "ipu-operator-controller-manager"];
const NAMESPACE: &str = "disruptions";

/// The CRD of the IPUJob.
const CRD: &str = "customresourcedefinition.apiextensions.k8s.io/ipujobs.graphcore.ai";

/// Registry of the next version's images.
const NEXT_REGISTRY: &str = "registry.example.com";

/// A running job of one worker, with its initial worker and partition.
struct RunningJob {
    product: Product<Box<Cluster>>,
    worker: String,
    partition: String,
}

impl RunningJob {
    fn start(product: Product<Box<Cluster>>) -> Self {
        product.kubectl(&["create", "namespace", NAMESPACE]);
        // The job needs no Open MPI.
        product.submit(NAMESPACE, "inference", |job| {
            job.replace("mpi-example:1", "local/busybox:1")
        });
        product.wait_for_phase(NAMESPACE, "inference", "Running");
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

    /// Returns the uids of the workers.
    fn workers(&self) -> String {
        let path = "jsonpath={.items[*].metadata.uid}";
        let selector = "graphcore.ai/ipujob-name=inference";
        self.product
            .kubectl(&["-n", NAMESPACE, "get", "pods", "-l", selector, "-o", path])
    }

    /// Returns the whole ledger.
    fn ledger(&self) -> String {
        let configmap = ["get", "configmap", "ipu-partitions-tracker"];
        let arguments = [&["-n", SYSTEM], &configmap[..], &["-o", "jsonpath={.data}"]];
        self.product.kubectl(&arguments.concat())
    }

    fn scale_to(&self, replicas: &str) {
        let scale = ["scale", "ipujob/inference", "--replicas", replicas];
        self.product.kubectl(&[&["-n", NAMESPACE], &scale[..]].concat());
        wait_until("the job is scaled", || {
            let path = "jsonpath={.status.currentReplicas} {.status.phase}";
            let output = self
                .product
                .kubectl(&["-n", NAMESPACE, "get", "ipujob", "inference", "-o", path]);
            if output == format!("{replicas} Running") {
                Ok(())
            } else {
                Err(output)
            }
        });
    }

    /// Asserts that the job runs with its initial worker and partition.
    fn assert_kept_worker_and_partition(&self) {
        self.product.wait_for_phase(NAMESPACE, "inference", "Running");
        assert!(self.workers().contains(&self.worker), "the worker keeps running");
        assert!(self.ledger().contains(&self.partition), "{}", self.ledger());
    }

    /// Returns the remaining cluster-scoped objects and namespaces of the installation.
    fn remaining_objects(&self) -> Vec<String> {
        let kinds = "validatingwebhookconfigurations,mutatingwebhookconfigurations,clusterroles,clusterrolebindings,\
                     customresourcedefinitions,namespaces";
        let all = self.product.kubectl(&["get", kinds, "-o", "name"]);
        let belongs_to_installation = |name: &&str| name.contains("ipu-operator") || name.contains("ipujob");
        all.lines()
            .filter(belongs_to_installation)
            .map(str::to_owned)
            .collect()
    }

    /// Waits until exactly these objects remain.
    fn wait_until_only_remain(&self, expected: &[&str]) {
        wait_until(&format!("only {expected:?} remain"), || {
            let remaining_objects = self.remaining_objects();
            if remaining_objects == expected {
                Ok(())
            } else {
                Err(format!("{remaining_objects:?}"))
            }
        });
    }

    fn reinstall(&self) {
        self.product
            .kubectl(&["apply", "-k", &repository("deploy/kubernetes")]);
        let patch = [
            "patch",
            "configmap",
            "ipu-operator-vipu-controllers",
            "--type=merge",
        ];
        self.in_system(&[&patch[..], &["-p", CONTROLLERS]].concat());
        self.wait_for_rollouts();
    }

    /// Removes everything while the job exists. Without an operator, nothing removes the job's finalizer:
    /// job and CRD remain.
    fn remove_everything(&self) {
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
        self.wait_until_only_remain(&[CRD]);
        for arguments in [
            &["crd/ipujobs.graphcore.ai"][..],
            &["-n", NAMESPACE, "ipujob/inference"],
        ] {
            let path = "jsonpath={.metadata.deletionTimestamp} {.metadata.finalizers}";
            let output = product.kubectl(&[&["get", "-o", path], arguments].concat());
            assert!(
                output.contains(":") && output.contains("[\""),
                "{arguments:?}: {output}"
            );
        }
        assert!(self.workers().contains(&self.worker), "the worker keeps running");
        assert!(
            self.controller_partitions().contains(&self.partition),
            "{}",
            self.controller_partitions()
        );
    }

    /// Waits until the job is deleted with all its resources, and then the CRD.
    fn wait_until_job_and_crd_are_deleted(&self) {
        wait_until("the CRD is deleted", || {
            let remaining_objects = self.remaining_objects();
            if remaining_objects.iter().any(|name| name == CRD) {
                Err(format!("{remaining_objects:?}"))
            } else {
                Ok(())
            }
        });
        wait_until("the workers are deleted", || {
            let workers = self.workers();
            if workers.is_empty() { Ok(()) } else { Err(workers) }
        });
        wait_until("V-IPU has no partition of the job", || {
            let partitions = self.controller_partitions();
            if partitions.contains("p-inference") {
                Err(partitions)
            } else {
                Ok(())
            }
        });
    }

    /// Returns the partitions of the controller.
    fn controller_partitions(&self) -> String {
        let path = "/api/v1/namespaces/vipu/services/http:vipu-server:8090/proxy/v1/partitions";
        self.product.kubectl(&["get", "--raw", path])
    }

    /// Deletes the job, and waits until the ledger holds nothing for it.
    fn delete_job(&self) {
        self.product.delete(NAMESPACE, "inference");
        wait_until("the ledger holds nothing", || {
            let ledger = self.ledger();
            if ledger.contains("p-inference") {
                Err(ledger)
            } else {
                Ok(())
            }
        });
    }

    fn wait_for_rollouts(&self) {
        for deployment in DEPLOYMENTS {
            self.product.wait_for_rollout(SYSTEM, deployment);
        }
    }

    /// Upgrades operator and proxy as the guide describes: by an overlay with other images and settings. No
    /// request is refused meanwhile.
    fn upgrade(&self) {
        let product = &self.product;
        for image in ["ipu-operator", "vipu-proxy"] {
            product.load_as(image, &format!("{NEXT_REGISTRY}/{image}:9.9.9"));
        }
        let before = (self.authority(), self.leader());
        let overlay = overlay();
        let manifests = overlay.path().join("my-cluster").display().to_string();
        product.kubectl(&["apply", "-k", &manifests]);
        let submitted = std::thread::scope(|scope| {
            let upgrade_wait =
                scope.spawn(|| wait_until("all Pods are upgraded", || self.check_all_upgraded()));
            let mut submitted = 0;
            while !upgrade_wait.is_finished() {
                self.submit_another(submitted);
                submitted += 1;
            }
            upgrade_wait.join().unwrap();
            submitted
        });
        self.wait_until_others_are_reconciled(submitted);
        self.assert_kept_worker_and_partition();
        assert_eq!(self.authority(), before.0, "the CA bundle is kept");
        let leader = self.leader();
        assert_ne!(leader, before.1);
        let pods = self.in_system(&["get", "pods", "-o", "name"]);
        let (pod, _) = leader.split_once('_').unwrap();
        assert!(
            pods.contains(&format!("pod/{pod}")),
            "{leader} is not among {pods}"
        );
        // The new setting applies, and the earlier settings are kept.
        let refused = product.submit_refused(NAMESPACE, "inference", |job| {
            job.replace("name: inference", "name: large")
                .replace("ipusPerJobInstance: \"1\"", "ipusPerJobInstance: \"16\"")
        });
        assert!(
            refused.contains("must be a power of two from 1 to 8"),
            "{refused}"
        );
        let reapplied = product.kubectl(&["apply", "-k", &manifests]);
        for object in [
            "deployment.apps",
            "configmap",
            "validatingwebhookconfiguration.admission",
        ] {
            let mut lines = reapplied
                .lines()
                .filter(|line| line.starts_with(object))
                .peekable();
            assert!(lines.peek().is_some(), "{reapplied}");
            assert!(lines.all(|line| line.ends_with(" unchanged")), "{reapplied}");
        }
    }

    /// Submits a suspended job, which must be accepted at the first attempt.
    fn submit_another(&self, number: usize) {
        self.product.submit(NAMESPACE, "inference", |job| {
            let other = format!("name: other-{number}\n  labels: {{group: other}}");
            job.replacen("name: inference", &other, 1).replacen(
                "  jobInstances",
                "  suspend: true\n  jobInstances",
                1,
            )
        });
    }

    /// Waits until all `submitted` jobs are reconciled, and deletes them.
    fn wait_until_others_are_reconciled(&self, submitted: usize) {
        let kubectl_others = |arguments: &[&str]| {
            let prefix = ["-n", NAMESPACE, arguments[0], "ipujobs", "-l", "group=other"];
            self.product.kubectl(&[&prefix[..], &arguments[1..]].concat())
        };
        wait_until("the next operator has reconciled all jobs", || {
            let phases = kubectl_others(&["get", "-o", "jsonpath={.items[*].status.phase}"]);
            if phases == vec!["Suspended"; submitted].join(" ") {
                Ok(())
            } else {
                Err(phases)
            }
        });
        kubectl_others(&["delete", "--timeout=120s"]);
    }

    /// Checks that all Pods of operator and proxy use the next images and are rolled out.
    fn check_all_upgraded(&self) -> Result<(), String> {
        let is_rolled_out = |deployment: &&str| {
            let deployment = format!("deployment/{deployment}");
            let arguments = ["rollout", "status", &deployment, "--watch=false"];
            self.in_system(&arguments).contains("successfully rolled out")
        };
        let images = "jsonpath={range .items[*]}{.spec.containers[0].image}{\"\\n\"}{end}";
        let images = self.in_system(&["get", "pods", "-o", images]);
        let next = images
            .lines()
            .filter(|image| image.starts_with(NEXT_REGISTRY))
            .count();
        if DEPLOYMENTS.iter().all(is_rolled_out)
            && next == DEPLOYMENTS.len()
            && images.lines().count() == next
        {
            Ok(())
        } else {
            Err(self.in_system(&["get", "pods"]))
        }
    }

    /// Returns the CA bundle of the webhooks.
    fn authority(&self) -> String {
        let path = "jsonpath={.webhooks[0].clientConfig.caBundle}";
        let arguments = [
            "get",
            "validatingwebhookconfiguration",
            "ipu-operator-admission",
            "-o",
            path,
        ];
        let authority = self.product.kubectl(&arguments);
        assert!(!authority.is_empty());
        authority
    }

    /// Returns the leader of the operator.
    fn leader(&self) -> String {
        let path = "jsonpath={.spec.holderIdentity}";
        self.in_system(&["get", "lease", "ee82fc7a.graphcore.ai", "-o", path])
    }

    fn in_system(&self, arguments: &[&str]) -> String {
        self.product.kubectl(&[&["-n", SYSTEM], arguments].concat())
    }
}

/// Creates the overlay of the next version, beside `deploy` as in the guide.
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
- {{name: ipu-operator, newName: {NEXT_REGISTRY}/ipu-operator, newTag: 9.9.9}}
- {{name: vipu-proxy, newName: {NEXT_REGISTRY}/vipu-proxy, newTag: 9.9.9}}
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
fn a_job_keeps_running_and_others_are_accepted_while_operator_and_proxy_are_upgraded_and_killed() {
    let name = "a_job_keeps_running_and_others_are_accepted_while_operator_and_proxy_are_upgraded_and_killed";
    let Some(product) = installed_privately(name) else {
        return;
    };
    let job = RunningJob::start(product);
    let product = &job.product;
    let mpi = product.has_mpi(name);
    if mpi {
        product.submit(NAMESPACE, "training", |job| {
            let waiting_script = "    - sh\n    - -c\n    - until [ -e /tmp/go ]; do sleep 1; done; ring\n";
            job.replace("    - ring\n", waiting_script)
        });
        product.wait_for_phase(NAMESPACE, "training", "Running");
    }
    job.upgrade();
    job.assert_kept_worker_and_partition();

    let all = ["delete", "pods", "--all", "--grace-period=0", "--force"];
    product.kubectl(&[&["-n", SYSTEM], &all[..]].concat());
    job.wait_for_rollouts();
    job.scale_to("2");
    job.assert_kept_worker_and_partition();
    if mpi {
        for worker in 0..4 {
            let worker = format!("training-worker-{worker}");
            product.kubectl(&["-n", NAMESPACE, "exec", &worker, "--", "touch", "/tmp/go"]);
        }
        let status = product.wait_for_phase(NAMESPACE, "training", "Completed");
        assert_eq!(status["restartCount"], 0, "{status}");
        let log = product.kubectl(&["-n", NAMESPACE, "logs", "training-launcher"]);
        assert_eq!(log.matches("the sum is 6").count(), 4, "{log}");
        product.delete(NAMESPACE, "training");
    }
    job.delete_job();
}

#[test]
fn a_removal_blocks_nothing_and_a_reinstallation_continues_with_the_ledger() {
    let name = "a_removal_blocks_nothing_and_a_reinstallation_continues_with_the_ledger";
    let Some(product) = installed_privately(name) else {
        return;
    };
    let job = RunningJob::start(product);
    let product = &job.product;
    let manifests = repository("deploy/kubernetes");
    let component = "app.kubernetes.io/component";
    product.kubectl(&["delete", "-k", &manifests, "-l", component, "--timeout=120s"]);
    job.assert_kept_worker_and_partition();
    job.wait_until_only_remain(&[CRD, "namespace/ipu-operator-system"]);
    // The webhooks are removed, so the update needs no admission.
    let labelled = ["-n", NAMESPACE, "label", "ipujob", "inference"];
    product.kubectl(&[&labelled[..], &["webhooks=removed"]].concat());

    job.reinstall();
    job.scale_to("2");
    job.assert_kept_worker_and_partition();

    job.remove_everything();
    job.reinstall();
    job.wait_until_job_and_crd_are_deleted();
    // The CRD is deleted already.
    let arguments = ["delete", "-k", &manifests, "--ignore-not-found", "--timeout=120s"];
    product.kubectl(&arguments);
    job.wait_until_only_remain(&[]);
    product.kubectl(&["delete", "namespace", NAMESPACE, "--timeout=120s"]);
}
