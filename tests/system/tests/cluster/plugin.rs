//! The kubectl plugin at the installed product, by users with the Roles of the guide (`docs/kubectl-ipu.md`).

use std::path::PathBuf;
use std::process::Command;

use ipu_test_cluster::{Cluster, ClusterProfile, Tool, client, find_tools, private_with};
use serde_json::json;

use crate::installation::{Product, SYSTEM, installed, programs, repository, wait_until};

/// A ServiceAccount that runs the plugin.
struct User {
    folder: tempfile::TempDir,
    program: PathBuf,
    /// Folder of `kubectl`, which `exec` needs.
    tools: PathBuf,
}

/// Result of a run.
#[derive(Debug)]
struct Run {
    code: Option<i32>,
    out: String,
    err: String,
}

impl User {
    /// Creates the account in a namespace, where its jobs are.
    fn new(product: &Product<&Cluster>, test: &str, namespace: &str, name: &str) -> Self {
        product.kubectl(&["-n", namespace, "create", "serviceaccount", name]);
        let token = product.kubectl(&["-n", namespace, "create", "token", name]);
        let folder = tempfile::tempdir().unwrap();
        let authority = folder.path().join("ca.crt");
        std::fs::write(&authority, product.cluster.ca_pem()).unwrap();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}],
            "clusters": [{"name": "test", "cluster": {"server": product.cluster.url(), "certificate-authority": authority}}],
            "users": [{"name": "test", "user": {"token": token.trim()}}],
        });
        std::fs::write(folder.path().join("config"), config.to_string()).unwrap();
        Self {
            folder,
            program: client(&programs(), "kubectl-ipu").unwrap(),
            tools: find_tools(test, &[Tool::Kubectl]).unwrap().folder().to_owned(),
        }
    }

    fn run(&self, arguments: &[&str]) -> Run {
        let output = Command::new(&self.program)
            .args(arguments)
            .env("KUBECONFIG", self.folder.path().join("config"))
            .env("PATH", &self.tools)
            .output()
            .unwrap();
        Run {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Runs a command that must succeed, and returns its output.
    #[track_caller]
    fn succeed(&self, arguments: &[&str]) -> String {
        let run = self.run(arguments);
        assert_eq!(run.code, Some(0), "{arguments:?}: {run:?}");
        run.out
    }

    /// Runs a command that must be refused with all of these texts.
    #[track_caller]
    fn is_refused(&self, arguments: &[&str], expected: &[&str]) {
        let run = self.run(arguments);
        assert_eq!(run.code, Some(77), "{arguments:?}: {run:?}");
        for text in expected {
            assert!(run.err.contains(text), "{arguments:?}: {text}: {run:?}");
        }
    }
}

/// Creates a namespace, and the documented Role of an administrator for this installation.
fn create_roles(product: &Product<&Cluster>, namespace: &str) {
    product.kubectl(&["create", "namespace", namespace]);
    let guide = std::fs::read_to_string(repository("docs/kubectl-ipu.md")).unwrap();
    let mut blocks = guide
        .split("```yaml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap());
    let administrator = blocks.next().unwrap();
    assert!(administrator.contains("name: ipu-administrator"), "{guide}");
    let administrator = administrator.replace("namespace: ipu}", &format!("namespace: {SYSTEM}}}"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("administrator.yaml");
    std::fs::write(&file, administrator).unwrap();
    product.kubectl(&["apply", "-f", file.to_str().unwrap()]);
}

/// Binds a role, such as `clusterrole=edit`, to a user of this namespace.
fn bind(product: &Product<&Cluster>, role_namespace: &str, role: &str, namespace: &str, user: &str) {
    let name = format!("{user}-{namespace}");
    let role = format!("--{role}");
    let account = format!("--serviceaccount={namespace}:{user}");
    product.kubectl(&[
        "-n",
        role_namespace,
        "create",
        "rolebinding",
        &name,
        &role,
        &account,
    ]);
}

/// Writes the example of an inference job with an image of the test, which runs this script.
fn job(script: &str) -> (tempfile::TempDir, String) {
    let example = std::fs::read_to_string(repository("examples/kubernetes/inference.yaml")).unwrap();
    let example = example
        .replace("mpi-example:1", "local/busybox:1")
        .replace("while true; do sleep 30000; done", script);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.yaml");
    std::fs::write(&file, example).unwrap();
    let file = file.display().to_string();
    (folder, file)
}

#[test]
fn a_user_with_the_cluster_role_edit_runs_jobs_by_the_plugin() {
    let name = "a_user_with_the_cluster_role_edit_runs_jobs_by_the_plugin";
    let Some(product) = installed(name) else { return };
    create_roles(product, "users");
    bind(product, "users", "clusterrole=edit", "users", "ada");
    let ada = User::new(product, name, "users", "ada");

    let (_folder, failing) = job("echo loading; exit 3");
    let waited = ada.run(&["submit", &failing, "--set", "metadata.name=failing", "--wait"]);
    assert_eq!(waited.code, Some(3), "{waited:?}");
    let why = ada.succeed(&["why", "failing"]);
    assert!(why.contains("First failure: worker failing-worker-0"), "{why}");
    assert!(why.contains("  | loading"), "{why}");

    let (_folder, running) = job("echo serving; while true; do sleep 30000; done");
    let submitted = ada.succeed(&["submit", &running]);
    assert_eq!(submitted, "ipujob/inference submitted\n");
    product.wait_for_phase("users", "inference", "Running");
    let listed = ada.succeed(&["get"]);
    assert!(listed.contains("inference  Running"), "{listed}");
    assert_eq!(ada.succeed(&["logs", "inference"]), "serving\n");
    let executed = ada.run(&["exec", "inference", "--", "sh", "-c", "echo in the Pod; exit 4"]);
    assert_eq!(
        (executed.code, &*executed.out),
        (Some(4), "in the Pod\n"),
        "{executed:?}"
    );
    let scaled = ada.succeed(&["scale", "inference", "--replicas", "2"]);
    assert_eq!(scaled, "ipujob/inference scaled to 2\n");
    wait_until("the job has two instances", || {
        let why = ada.succeed(&["why", "inference"]);
        if why.contains("Instance 1 is Running") {
            Ok(())
        } else {
            Err(why)
        }
    });
    product.delete("users", "inference");
}

#[test]
fn only_an_administrator_cordons_repairs_and_releases_by_the_plugin() {
    let name = "only_an_administrator_cordons_repairs_and_releases_by_the_plugin";
    // A cordon on the shared installation would take IPUs from the jobs of other tests.
    if find_tools(name, &Tool::HELM).is_none() {
        return;
    }
    let Some(cluster) = private_with(name, ClusterProfile::Node) else {
        return;
    };
    let product = &Product::prepare(&cluster);
    product.install_chart_with_administrator(Tool::Helm4, "gc");
    // Commands find the replica that leads.
    let proxy = "gc-ipu-operator-vipu-proxy";
    product.kubectl(&["-n", SYSTEM, "scale", "deployment", proxy, "--replicas=2"]);
    product.wait_for_rollout(SYSTEM, proxy);
    let namespace = "administered";
    create_roles(product, namespace);
    for user in ["ada", "grace"] {
        bind(product, namespace, "clusterrole=edit", namespace, user);
    }
    bind(product, SYSTEM, "role=ipu-administrator", namespace, "grace");
    let ada = User::new(product, name, namespace, "ada");
    let grace = User::new(product, name, namespace, "grace");
    let ledger = || product.ledger();
    let (_folder, file) = job("while true; do sleep 30000; done");
    ada.succeed(&["submit", &file]);
    let status = product.wait_for_phase(namespace, "inference", "Running");
    let partition = status["instances"][0]["partition"].as_str().unwrap();
    let operator = ["--operator-namespace", SYSTEM];
    let cordon = ["cordon", "a4/3", "--id", "fan", "--reason", "a fan is broken"];
    let release = ["release", partition];

    // The API server names the missing right, and the plugin the Role that has it.
    let right = r#"cannot list resource "deployments""#;
    for command in [
        &cordon[..],
        &["uncordon", "--id", "fan"],
        &["repair"],
        &release,
        &["usage"],
        &["stats"],
    ] {
        ada.is_refused(
            &[command, &operator].concat(),
            &[right, "ask an administrator with the Role ipu-administrator"],
        );
    }
    ada.is_refused(
        &cordon,
        &[right, "by --operator-namespace", "the Role ipu-administrator"],
    );
    // A token of an account that the proxy does not know.
    let token = product.kubectl(&[
        "-n",
        namespace,
        "create",
        "token",
        "ada",
        "--audience",
        "vipu-proxy",
    ]);
    let token_file = ada.folder.path().join("token");
    std::fs::write(&token_file, token).unwrap();
    let own_token = ["--proxy-token-file", token_file.to_str().unwrap()];
    for command in [&cordon[..], &["repair"], &release] {
        let user = format!("system:serviceaccount:{namespace}:ada is not allowed");
        grace.is_refused(
            &[command, &operator, &own_token].concat(),
            &[&user, "--administrators"],
        );
    }
    assert!(!ledger().contains("a fan is broken"), "{}", ledger());
    assert!(ledger().contains(partition), "{}", ledger());

    let by_grace = |command: &[&str]| grace.succeed(&[command, &operator].concat());
    let cordoned = by_grace(&cordon);
    assert!(
        cordoned.contains(
            "gc-ipu-operator-administrator: a fan is broken (system:serviceaccount:administered:grace)"
        ),
        "{cordoned}"
    );
    assert!(ledger().contains("a fan is broken"), "{}", ledger());
    ada.succeed(&[
        "submit",
        &file,
        "--set",
        "metadata.name=big",
        "--set",
        "spec.ipusPerJobInstance=16",
    ]);
    let waiting = "--for=jsonpath={.status.instances[0].state}=Waiting";
    product.kubectl(&["-n", namespace, "wait", "ipujob/big", waiting, "--timeout=120s"]);
    let why = by_grace(&["why", "big"]);
    assert!(why.contains("Queue: 16 IPUs for instance 0, position"), "{why}");
    for (command, expected) in [
        ("waiting", "administered/big"),
        ("cordons", "a fan is broken"),
        ("partitions", partition),
        ("controllers", "available"),
        ("machines", "IPU 3: a fan is broken"),
    ] {
        let list = by_grace(&[command]);
        assert!(list.contains(expected), "{command}: {list}");
    }
    let why = ada.succeed(&["why", "big"]);
    assert!(
        why.contains("a fan is broken") && why.contains("Not checked: position"),
        "{why}"
    );
    product.kubectl(&["-n", namespace, "delete", "ipujob", "big", "--timeout=120s"]);
    let drain = [
        "drain",
        "a4/3",
        "--id",
        "fan",
        "--reason",
        "a fan is broken",
        "--wait-for",
        "120",
    ];
    assert_eq!(by_grace(&drain), "fan drained\n");
    assert_eq!(by_grace(&["uncordon", "--id", "fan"]), "fan uncordoned\n");
    assert!(!ledger().contains("a fan is broken"), "{}", ledger());

    let repaired = by_grace(&["repair"]);
    assert!(
        repaired.ends_with(" repairs, 0 partitions in quarantine\n"),
        "{repaired}"
    );
    assert_eq!(by_grace(&release), format!("partition {partition} released\n"));
    let absent = grace.run(&[&["release", "absent"], &operator[..]].concat());
    assert_eq!(absent.code, Some(66), "{absent:?}");
    wait_until("the usage has the released partition", || {
        let usage = by_grace(&["usage", "--since", "1d"]);
        if usage.contains(partition) {
            Ok(())
        } else {
            Err(usage)
        }
    });
    product.delete(namespace, "inference");
}
