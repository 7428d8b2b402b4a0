//! Namespace fixture with exactly the permissions of a launcher.

use std::io::{BufRead as _, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use ipu_test_cluster::Cluster;
use serde_json::{Value, json};

/// Namespace of one test.
pub(crate) struct Fixture<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) namespace: String,
    pub(crate) folder: tempfile::TempDir,
    kubeconfig: PathBuf,
}

impl<'a> Fixture<'a> {
    /// Creates a namespace in which a launcher may watch `workers` and run commands in them.
    pub(crate) fn new(cluster: &'a Cluster, namespace: &str, workers: &[&str]) -> Self {
        let fixture = Self::without_permissions(cluster, namespace);
        fixture.grant(workers);
        fixture
    }

    pub(crate) fn without_permissions(cluster: &'a Cluster, namespace: &str) -> Self {
        let fixture = Self {
            cluster,
            namespace: namespace.to_owned(),
            folder: tempfile::tempdir().unwrap(),
            kubeconfig: cluster.user(&format!("{namespace}-launcher"), &[]).unwrap(),
        };
        cluster.kubectl(&["create", "namespace", namespace]).unwrap();
        // Needed where no controller creates it; where one does, it may already exist.
        let _ = fixture.kubectl(&["create", "serviceaccount", "default"]);
        fixture
            .kubectl(&["create", "serviceaccount", "launcher"])
            .unwrap();
        fixture
    }

    /// Grants the launcher the permissions that the operator grants.
    pub(crate) fn grant(&self, workers: &[&str]) {
        let name = json!({"name": "launcher", "namespace": self.namespace});
        let user = format!("{}-launcher", self.namespace);
        self.apply(&json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": name,
            "rules": [
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"], "resourceNames": workers},
                {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create", "get"], "resourceNames": workers},
            ],
        }));
        self.apply(&json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": name,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "launcher"},
            "subjects": [
                {"kind": "ServiceAccount", "name": "launcher", "namespace": self.namespace},
                {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user},
            ],
        }));
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Result<String, ipu_test_cluster::ClusterError> {
        let mut all = vec!["--namespace", &self.namespace];
        all.extend_from_slice(arguments);
        self.cluster.kubectl(&all)
    }

    pub(crate) fn apply(&self, object: &Value) {
        let path = self.folder.path().join("object.json");
        std::fs::write(&path, object.to_string()).unwrap();
        self.kubectl(&["apply", "-f", &path.display().to_string()])
            .unwrap();
    }

    /// Creates a Pod whose container runs a script.
    pub(crate) fn pod(&self, name: &str, script: &str) {
        self.apply(&pod(name, script));
    }

    /// Writes a Pod status in place of the kubelet.
    pub(crate) fn status(&self, pod: &str, status: &Value) {
        let patch = json!({"status": status}).to_string();
        self.kubectl(&[
            "patch",
            "pod",
            pod,
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ])
        .unwrap();
    }

    pub(crate) fn set_ready(&self, pod: &str) {
        self.status(
            pod,
            &json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}),
        );
    }

    /// Waits for a condition that the real kubelet sets.
    pub(crate) fn wait_until(&self, pod: &str, expected: &str) {
        let arguments = [
            "wait",
            &format!("pod/{pod}"),
            &format!("--for={expected}"),
            "--timeout=180s",
        ];
        if let Err(error) = self.kubectl(&arguments) {
            let described = self.kubectl(&["describe", "pod", pod]).unwrap_or_default();
            let log = self
                .kubectl(&["logs", pod, "--all-containers"])
                .unwrap_or_default();
            panic!("{error}\n{described}\n{log}");
        }
    }

    pub(crate) fn hostfile(&self, workers: &[&str]) -> PathBuf {
        let path = self.folder.path().join("hostfile");
        let lines: Vec<String> = workers
            .iter()
            .map(|worker| format!("{worker} slots=1\n"))
            .collect();
        std::fs::write(&path, lines.concat()).unwrap();
        path
    }

    /// Returns the launcher command with the permissions of a launcher.
    pub(crate) fn launcher(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ipu-launcher"));
        command
            .args(arguments)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("IPU_LAUNCHER_NAMESPACE", &self.namespace)
            .stdin(Stdio::null());
        command
    }

    /// Starts `ipu-launcher wait` for these workers.
    pub(crate) fn wait(&self, workers: &[&str], arguments: &[&str]) -> Running {
        let hostfile = self.hostfile(workers);
        let mut command = self.launcher(&["wait"]);
        command.arg("--hostfile").arg(hostfile);
        command.arg("--termination-log").arg(self.termination_log());
        std::fs::write(self.termination_log(), "").unwrap();
        command.args(arguments);
        Running::start(command)
    }

    pub(crate) fn termination_log(&self) -> PathBuf {
        self.folder.path().join("termination-log")
    }
}

/// Running program whose output is read line by line.
pub(crate) struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Reads until a line contains `expected`.
    pub(crate) fn wait_for_line(&mut self, expected: &str) {
        let mut printed = Vec::new();
        for line in self.lines.by_ref().map_while(Result::ok) {
            if line.contains(expected) {
                return;
            }
            printed.push(line);
        }
        panic!("no line contains {expected:?}: {printed:#?}");
    }

    pub(crate) fn signal(&self, name: &str) {
        let mut kill = Command::new("kill");
        kill.args(["-s", name, &self.child.id().to_string()]);
        assert!(kill.status().unwrap().success());
    }

    /// Waits until the program exits.
    pub(crate) fn wait_for_exit(mut self) -> ExitStatus {
        for _ in self.lines.by_ref() {}
        self.child.wait().unwrap()
    }
}

pub(crate) fn pod(name: &str, script: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "local/busybox:1", "command": ["/bin/sh", "-c", script]}],
        },
    })
}

pub(crate) fn read_text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}
