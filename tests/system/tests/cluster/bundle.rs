//! Installation from nothing but the unpacked offline bundle of `cargo xtask package`, through a registry
//! with a password, in a cluster with a domain other than `cluster.local`, and its programs. Tests of `xtask`
//! compare its files with those of the repository.

use std::net::{IpAddr, TcpListener, TcpStream};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ipu_test_cluster::{Cluster, Tool, find_tools, private_in_domain};
use serde_json::{Value, json};

use crate::installation::{Product, SYSTEM, built_programs, wait_until};

/// Name of the bundle's folder.
const NAME: &str = concat!("ipu-operator-", env!("CARGO_PKG_VERSION"));

/// Cluster domain.
const DOMAIN: &str = "ipu.example";

const USER: &str = "puller";
const PASSWORD: &str = "a-test-password";

/// The user with the bcrypt hash of the password.
const HTPASSWD: &str = "puller:$2y$05$KZNj4ie56pCfMR8ePqx4.ezMDarhJ0gg8BSh0n2kZHuIlVQkppDe6\n";

#[test]
fn the_bundle_installs_from_a_registry_with_a_password() {
    let name = "the_bundle_installs_from_a_registry_with_a_password";
    let (Some(tools), Some(archive)) = (find_tools(name, &Tool::HELM), find_bundle(name)) else {
        return;
    };
    let Some(cluster) = private_in_domain(name, DOMAIN) else {
        return;
    };
    let scratch = tempfile::tempdir().unwrap();
    unpack(&archive, scratch.path());
    let bundle = scratch.path().join(NAME);
    let registry = Registry::start(cluster.host_address(), scratch.path());
    registry.push_images(&bundle);
    // A registry wants its password.
    let url = format!(
        "docker://{}/vipu-proxy:{}",
        registry.address,
        env!("CARGO_PKG_VERSION")
    );
    let inspect = ["inspect", "--tls-verify=false", &url];
    let anonymous = run(Command::new("skopeo").args(inspect)).unwrap_err();
    assert!(anonymous.contains("authentication required"), "{anonymous}");

    let chart = format!("oci://{}/charts/ipu-operator", registry.address);
    for helm in Tool::HELM {
        let helm = || tools.helm(helm, scratch.path());
        let login = [
            "registry",
            "login",
            &registry.address,
            "--plain-http",
            "-u",
            USER,
            "-p",
            PASSWORD,
        ];
        run(helm().args(login)).unwrap();
    }
    let package = bundle.join(format!("{NAME}.tgz")).display().to_string();
    let repository = format!("oci://{}/charts", registry.address);
    run(tools
        .helm(Tool::Helm3, scratch.path())
        .args(["push", &package, &repository, "--plain-http"]))
    .unwrap();
    let version = ["--version", env!("CARGO_PKG_VERSION"), "--plain-http"];
    for helm in Tool::HELM {
        let render = ["template", "gc", &chart, "--kube-version", "1.36.0"];
        let text = run(tools.helm(helm, scratch.path()).args(render).args(version)).unwrap();
        assert!(
            text.contains("name: gc-ipu-operator-vipu-proxy\n"),
            "{helm:?}: {text}"
        );
    }
    cluster.allow_plain_registry(&registry.address).unwrap();
    let product = Product::with_examples(Box::new(cluster));
    let file = scratch.path().join("secret.json");
    std::fs::write(&file, registry.secret().to_string()).unwrap();
    let secret = file.display().to_string();
    product.kubectl(&["create", "namespace", SYSTEM]);
    for namespace in [SYSTEM, "default"] {
        product.kubectl(&["-n", namespace, "apply", "-f", &secret]);
    }
    product.kubectl(&["label", "nodes", "--all", "vipu-ctrl=vctl1"]);
    let helm = || {
        let mut helm = tools.helm(Tool::Helm4, scratch.path());
        helm.arg("--kubeconfig").arg(product.cluster.kubeconfig());
        helm
    };
    let image_registry = format!("global.imageRegistry={}", registry.address);
    let values = [
        "--set",
        &image_registry,
        "--set",
        "global.imagePullSecrets={registry}",
        "--set",
        "simulator.enabled=true",
    ];
    let install = [
        "--namespace",
        SYSTEM,
        "install",
        "gc",
        &chart,
        "--wait",
        "--timeout",
        "300s",
    ];
    if let Err(error) = run(helm().args(install).args(version).args(values)) {
        panic!("{error}\n{}", product.describe_pods(SYSTEM));
    }
    assert_images(
        &product.kubectl(&["-n", SYSTEM, "get", "pods", "-o", "json"]),
        &registry.address,
    );
    assert_controller_resolves(&product, name);

    if !product.has_mpi(name) {
        return;
    }
    let example = std::fs::read_to_string(bundle.join("examples/kubernetes/training.yaml")).unwrap();
    let job = scratch.path().join("job.yaml");
    let with_secret = "      spec:\n        imagePullSecrets: [{name: registry}]\n";
    std::fs::write(&job, example.replace("      spec:\n", with_secret)).unwrap();
    let client = |program: &str, arguments: &[&str]| {
        let programs = bundle.join("bin");
        let mut command = Command::new(programs.join(program));
        command.args(arguments).current_dir(&bundle);
        // No other program is found.
        command.env("PATH", &programs).env("HOME", scratch.path());
        run(command.env("KUBECONFIG", product.cluster.kubeconfig())).unwrap()
    };
    let plan = client("ipuctl", &["plan", "examples/kubernetes/training.yaml"]);
    assert!(plan.contains("p-training-0-"), "{plan}");
    client("kubectl-ipu", &["submit", &job.display().to_string()]);
    product.wait_for_phase("default", "training", "Completed");
    let launcher = ["get", "pod", "training-launcher", "-o"];
    let image = "jsonpath={.spec.initContainers[*].image}";
    let image = product.kubectl(&[&launcher[..], &[image]].concat());
    assert!(image.starts_with(&format!("{}/", registry.address)), "{image}");
    let jobs = client("kubectl-ipu", &["get", "training"]);
    assert!(jobs.contains("Completed"), "{jobs}");
    product.delete("default", "training");
    let findings = client("kubectl-ipu", &["doctor"]);
    assert!(
        findings.starts_with("0 findings, 0 rules not checked"),
        "{findings}"
    );
}

/// Checks that the controller's host, which the proxy passes to jobs, resolves in another namespace than that
/// of the release.
fn assert_controller_resolves<C: Deref<Target = Cluster>>(product: &Product<C>, test: &str) {
    if !product.has_curl(test) {
        return;
    }
    let path = r"jsonpath={.data.controllers\.yaml}";
    let get = ["get", "configmap", "gc-ipu-operator-vipu-controllers", "-o", path];
    let list = product.kubectl(&[&["-n", SYSTEM], &get[..]].concat());
    let (controller, _) = list.rsplit_once(':').unwrap();
    let script =
        format!("curl -sS -o /dev/null -w '%{{http_code}}' http://{controller}/v1/partitions/none/status");
    assert_eq!(product.curl("default", "default", &script), "404", "{controller}");
    // The name server has no other domain.
    let (host, port) = controller.rsplit_once(':').unwrap();
    for (domain, expected) in [(DOMAIN, "404"), ("cluster.local", "000")] {
        let url = format!("http://{host}.{domain}:{port}/v1/partitions/none/status");
        let script = format!("curl -s -o /dev/null -w '%{{http_code}}' {url}");
        assert_eq!(product.curl("default", "default", &script), expected, "{url}");
    }
}

/// Checks that each Pod runs an image of the registry, unprivileged, with a read-only root.
fn assert_images(pods: &str, registry: &str) {
    let pods: Value = serde_json::from_str(pods).unwrap();
    let pods = pods["items"].as_array().unwrap();
    assert_eq!(pods.len(), 3, "{pods:?}");
    for pod in pods {
        let container = &pod["spec"]["containers"][0];
        let image = container["image"].as_str().unwrap();
        assert!(image.starts_with(&format!("{registry}/")), "{image}");
        assert_eq!(
            container["securityContext"]["readOnlyRootFilesystem"], true,
            "{image}"
        );
    }
}

/// A registry that ends with the test.
struct Registry {
    server: Child,
    address: String,
    /// Credentials of `skopeo`.
    credentials: PathBuf,
}

impl Registry {
    fn start(host: IpAddr, scratch: &Path) -> Self {
        let address = TcpListener::bind((host, 0))
            .unwrap()
            .local_addr()
            .unwrap()
            .to_string();
        let htpasswd = scratch.join("htpasswd");
        std::fs::write(&htpasswd, HTPASSWD).unwrap();
        let config = json!({
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": true}},
            "storage": {"filesystem": {"rootdirectory": scratch.join("registry")}},
            "http": {"addr": address},
            "auth": {"htpasswd": {"realm": "bundle", "path": htpasswd}},
        });
        let file = scratch.join("registry.yml");
        std::fs::write(&file, config.to_string()).unwrap();
        let mut server = Command::new("docker-registry");
        server.arg("serve").arg(&file).stdout(Stdio::null());
        let server = server.stderr(Stdio::null()).spawn().unwrap();
        let credentials = scratch.join("skopeo.json");
        let registry = Self {
            server,
            address,
            credentials,
        };
        wait_until("the registry listens", || {
            TcpStream::connect(&registry.address)
                .map(drop)
                .map_err(|error| error.to_string())
        });
        registry
    }

    /// Pushes all images, as the README of the bundle shows.
    fn push_images(&self, bundle: &Path) {
        let unpack =
            "gzip --decompress --keep ipu-operator-images.tar.gz && sha256sum --check --quiet SHA256SUMS";
        run(Command::new("sh").args(["-ec", unpack]).current_dir(bundle)).unwrap();
        let mut login = Command::new("skopeo");
        login
            .arg("login")
            .arg("--authfile")
            .arg(&self.credentials)
            .args(["--tls-verify=false", "-u", USER]);
        run(login.args(["-p", PASSWORD, &self.address])).unwrap();
        let images = std::fs::read_to_string(bundle.join("images.txt")).unwrap();
        assert_eq!(images.lines().count(), 4);
        for image in images.lines() {
            let mut copy = Command::new("skopeo");
            copy.arg("copy")
                .arg("--authfile")
                .arg(&self.credentials)
                .arg("--dest-tls-verify=false");
            copy.arg(format!("oci-archive:ipu-operator-images.tar:{image}"));
            copy.arg(format!("docker://{}/{image}", self.address));
            run(copy.current_dir(bundle)).unwrap();
        }
    }

    /// Returns the Secret of `kubectl create secret docker-registry`.
    fn secret(&self) -> Value {
        let login = json!({"auths": {&self.address: {"username": USER, "password": PASSWORD}}});
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "registry"},
            "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": login.to_string()},
        })
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Returns the archive if it was built, and the programs that the test needs are installed. CI requires both.
#[expect(clippy::print_stdout, reason = "a skipped test prints the reason")]
fn find_bundle(test: &str) -> Option<PathBuf> {
    let archive = built_programs().join(format!("../bundle/{NAME}.tar.gz"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_installed =
        |program: &&str| std::env::split_paths(&path).any(|folder| folder.join(program).exists());
    let missing = ["docker-registry", "skopeo"]
        .into_iter()
        .find(|program| !is_installed(program));
    let reason = match missing {
        Some(program) => format!("the package {program} is not installed"),
        None if !archive.exists() => format!("{} is missing: run `cargo xtask package`", archive.display()),
        None => return Some(archive),
    };
    assert!(
        std::env::var_os("CI").is_none(),
        "{test}: {reason}, and CI requires this test"
    );
    println!("skipped: {test}: {reason}");
    None
}

fn unpack(archive: &Path, folder: &Path) {
    run(Command::new("tar").arg("-xzf").arg(archive).current_dir(folder)).unwrap();
}

/// Runs a command, and returns its output. The error has its error output.
fn run(command: &mut Command) -> Result<String, String> {
    let done = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    if done.status.success() {
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    } else {
        Err(format!("{command:?}: {}", String::from_utf8_lossy(&done.stderr)))
    }
}
