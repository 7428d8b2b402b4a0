//! Installation of the chart on a node.

use std::process::Command;

use ipu_test_cluster::{Cluster, Tool, find_tools};

use crate::installation::{Product, SYSTEM, repository, wait_until};

/// The V-IPU controller of `deploy/simulator`, as an administrator names it.
pub(super) const CONTROLLERS: &str =
    "global.vipuControllers=vipu-server.vipu.svc.cluster.local:8090:vipu-ctrl=vctl1";

impl<C: std::ops::Deref<Target = Cluster>> Product<C> {
    /// Installs the chart, and waits until operator and proxy are ready. The operator creates the CRD.
    pub(crate) fn install_chart(&self, helm: Tool, release: &str) {
        let chart = repository("deploy/helm/ipu-operator");
        self.install_chart_with(helm, &[release, &chart, "--set", CONTROLLERS]);
    }

    /// Like [`Self::install_chart`], with an account that may change the ledger.
    pub(crate) fn install_chart_with_administrator(&self, helm: Tool, release: &str) {
        let chart = repository("deploy/helm/ipu-operator");
        let values = ["--set", CONTROLLERS, "--set", "administrator.create=true"];
        self.install_chart_with(helm, &[&[release, &chart][..], &values].concat());
    }

    /// Installs a chart with the arguments `RELEASE CHART OPTION…`, and waits until operator and proxy are
    /// ready.
    pub(crate) fn install_chart_with(&self, helm: Tool, arguments: &[&str]) {
        self.create_system_namespace();
        let wait = ["--wait", "--timeout", "300s"];
        self.helm(helm, &[&["install"][..], arguments, &wait].concat());
        // Helm 3 ignores `minReadySeconds`, as the guide says.
        if matches!(helm, Tool::Helm3) {
            let available = ["--for=condition=Available", "--timeout=60s"];
            self.kubectl(&[&["-n", SYSTEM, "wait", "deployments", "--all"], &available[..]].concat());
        }
    }

    /// Uninstalls a release, and waits until its Deployments and their Pods are deleted. The `--wait` of
    /// Helm 4 can fail at once while a Deployment with foreground deletion terminates.
    pub(crate) fn uninstall_chart(&self, helm: Tool, release: &str) {
        self.helm(helm, &["uninstall", release, "--cascade=foreground"]);
        let label = format!("app.kubernetes.io/instance={release}");
        wait_until("the Deployments are deleted", || {
            let left = self.kubectl(&["-n", SYSTEM, "get", "deployments", "-l", &label, "-o", "name"]);
            if left.is_empty() { Ok(()) } else { Err(left) }
        });
    }

    /// Asserts that a server-side diff of a rendering with the arguments `RELEASE CHART OPTION…` is empty, as
    /// GitOps sees it.
    pub(super) fn assert_no_difference(&self, helm: Tool, arguments: &[&str]) {
        let template = [&["template"], arguments, &["--namespace", SYSTEM]].concat();
        let rendering = self.cluster.helm(helm, &template).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rendering.yaml");
        std::fs::write(&file, rendering).unwrap();
        let kubectl = find_tools("diff", &[Tool::Kubectl]).unwrap().path(Tool::Kubectl);
        let mut diff = Command::new(kubectl);
        diff.args(["diff", "--server-side", "-f"]).arg(&file);
        let output = diff
            .arg("--kubeconfig")
            .arg(self.cluster.kubeconfig())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{helm:?}: {text}");
        assert_eq!(text, "", "{helm:?}");
    }

    pub(super) fn helm(&self, helm: Tool, arguments: &[&str]) {
        let arguments = [&["--namespace", SYSTEM], arguments].concat();
        if let Err(error) = self.cluster.helm(helm, &arguments) {
            panic!(
                "helm {}: {error}\n{}",
                arguments.join(" "),
                self.describe_pods(SYSTEM)
            );
        }
    }

    /// Creates the namespace of the release with the strictest Pod Security level, unless it exists.
    fn create_system_namespace(&self) {
        self.kubectl(&["apply", "-f", &repository("deploy/kubernetes/namespace.yaml")]);
    }
}
