//! Upgrade and crash of operator and proxy of the manifests while a job runs.

use crate::installation::{SYSTEM, prepared_privately, repository, wait_until};
use crate::running_job::{NAMESPACE, REQUEST_INTERVAL, RunningJob};

const DEPLOYMENTS: [&str; 2] = ["ipu-operator-vipu-proxy", "ipu-operator-controller-manager"];

/// Registry of the next version's images.
const NEXT_REGISTRY: &str = "registry.example.com";

impl RunningJob {
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
            while submitted == 0 || !upgrade_wait.is_finished() {
                self.submit_another(submitted);
                submitted += 1;
                std::thread::sleep(REQUEST_INTERVAL);
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
}

/// Creates the overlay of the next version, next to `deploy` as in the guide.
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
    let Some(product) = prepared_privately(name) else {
        return;
    };
    product.install_manifests();
    let job = RunningJob::start(product);
    let product = &job.product;
    let mpi = product.has_mpi(name);
    if mpi {
        job.start_training();
    }
    job.upgrade();
    job.assert_kept_worker_and_partition();

    let all = ["delete", "pods", "--all", "--grace-period=0", "--force"];
    product.kubectl(&[&["-n", SYSTEM], &all[..]].concat());
    job.wait_for_rollouts();
    job.scale_to("2");
    job.assert_kept_worker_and_partition();
    if mpi {
        job.finish_training();
    }
    job.delete_job();
}
