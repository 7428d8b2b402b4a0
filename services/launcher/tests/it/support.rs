//! A namespace with the rights that a launcher has, and nothing else.

use std::io::{BufRead as _, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use ipu_test_cluster::Cluster;
use serde_json::{Value, json};

/// The namespace of one test.
pub(crate) struct Scene<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) namespace: String,
    pub(crate) folder: tempfile::TempDir,
    kubeconfig: PathBuf,
}

impl<'a> Scene<'a> {
    /// One in which a launcher may watch `workers` and run commands in them.
    pub(crate) fn new(cluster: &'a Cluster, namespace: &str, workers: &[&str]) -> Self {
        let scene = Self::without_rights(cluster, namespace);
        scene.grant(workers);
        scene
    }

    pub(crate) fn without_rights(cluster: &'a Cluster, namespace: &str) -> Self {
        let scene = Self {
            cluster,
            namespace: namespace.to_owned(),
            folder: tempfile::tempdir().unwrap(),
            kubeconfig: cluster.user(&format!("{namespace}-launcher"), &[]).unwrap(),
        };
        cluster.kubectl(&["create", "namespace", namespace]).unwrap();
        // Where no controller makes it. Where one does, it may have been faster.
        let _ = scene.kubectl(&["create", "serviceaccount", "default"]);
        scene.kubectl(&["create", "serviceaccount", "launcher"]).unwrap();
        scene
    }

    /// Gives the launcher what the operator gives it.
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

    pub(crate) fn kubectl(&self, words: &[&str]) -> Result<String, ipu_test_cluster::ClusterError> {
        let mut all = vec!["--namespace", &self.namespace];
        all.extend_from_slice(words);
        self.cluster.kubectl(&all)
    }

    pub(crate) fn apply(&self, object: &Value) {
        let path = self.folder.path().join("object.json");
        std::fs::write(&path, object.to_string()).unwrap();
        self.kubectl(&["apply", "-f", &path.display().to_string()])
            .unwrap();
    }

    /// Makes a Kubernetes Pod whose container runs a script.
    pub(crate) fn pod(&self, name: &str, script: &str) {
        self.apply(&pod(name, script));
    }

    /// Plays the kubelet.
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

    pub(crate) fn is_ready(&self, pod: &str) {
        self.status(
            pod,
            &json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}),
        );
    }

    /// Waits for what the real kubelet does.
    pub(crate) fn until(&self, pod: &str, what: &str) {
        let words = [
            "wait",
            &format!("pod/{pod}"),
            &format!("--for={what}"),
            "--timeout=180s",
        ];
        if let Err(error) = self.kubectl(&words) {
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

    /// The launcher, with the rights of one.
    pub(crate) fn launcher(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ipu-launcher"));
        command
            .args(words)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("IPU_LAUNCHER_NAMESPACE", &self.namespace)
            .stdin(Stdio::null());
        command
    }

    /// `ipu-launcher wait` for these workers.
    pub(crate) fn wait(&self, workers: &[&str], words: &[&str]) -> Running {
        let hostfile = self.hostfile(workers);
        let mut command = self.launcher(&["wait"]);
        command.arg("--hostfile").arg(hostfile);
        command.arg("--termination-log").arg(self.termination_log());
        std::fs::write(self.termination_log(), "").unwrap();
        command.args(words);
        Running::start(command)
    }

    pub(crate) fn termination_log(&self) -> PathBuf {
        self.folder.path().join("termination-log")
    }
}

/// A program whose lines are read as they come.
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

    /// Reads until it says this.
    pub(crate) fn says(&mut self, what: &str) {
        let mut heard = Vec::new();
        for line in self.lines.by_ref().map_while(Result::ok) {
            if line.contains(what) {
                return;
            }
            heard.push(line);
        }
        panic!("it never said {what:?}, but {heard:#?}");
    }

    pub(crate) fn signal(&self, name: &str) {
        let mut kill = Command::new("kill");
        kill.args(["-s", name, &self.child.id().to_string()]);
        assert!(kill.status().unwrap().success());
    }

    /// Waits for its end.
    pub(crate) fn ends(mut self) -> ExitStatus {
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

pub(crate) fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}
