//! An installation of the product, and its operations.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ipu_test_cluster::{
    Cluster, ClusterProfile, Image, Tool, find_tools, mpi_image, private_with, product_images, shared_with,
};
use serde_json::Value;

/// Prefix of the object names of [`installed`].
pub(crate) const PREFIX: &str = "gc-ipu-operator";

/// Namespace of operator and proxy.
pub(crate) const SYSTEM: &str = "ipu-operator-system";

/// Controller configuration, as an administrator sets it.
const CONTROLLERS: &str =
    r#"{"data": {"controllers.yaml": "vipu-server.vipu.svc.cluster.local:8090:vipu-ctrl=vctl1"}}"#;

/// Maximum duration of any wait on the cluster.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A cluster with the product installed.
pub(crate) struct Product<C> {
    pub(crate) cluster: C,
    /// Whether `mpi-example:1`, the image of the examples, was built.
    mpi: bool,
    /// Set once the image of [`Self::curl`] is loaded: concurrent loads by several tests would conflict.
    curl: OnceLock<()>,
}

impl<C: std::ops::Deref<Target = Cluster>> Product<C> {
    /// Loads the images, starts the simulated controller, and labels the node.
    pub(crate) fn prepare(cluster: C) -> Self {
        for image in product_images(programs().as_path()).unwrap() {
            cluster.load(&image).unwrap();
        }
        let product = Self::with_examples(cluster);
        product.kubectl(&["apply", "-f", &repository("deploy/simulator")]);
        product.kubectl(&["label", "nodes", "--all", "vipu-ctrl=vctl1"]);
        product.wait_for_rollout("vipu", "vipu-server");
        product
    }

    /// Loads the image of the examples.
    pub(crate) fn with_examples(cluster: C) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let image = mpi_image("mpi-example:1", &programs().join("ipu-launcher"), scratch.path()).unwrap();
        if let Some(image) = &image {
            cluster.load(image).unwrap();
        }
        Self {
            cluster,
            mpi: image.is_some(),
            curl: OnceLock::new(),
        }
    }

    /// Installs the manifests in the order of the guide, and waits until operator and proxy are ready.
    pub(crate) fn install_manifests(&self) {
        self.kubectl(&["apply", "-k", &repository("deploy/kubernetes")]);
        let configmap = ["patch", "configmap", "ipu-operator-vipu-controllers"];
        let patch = ["--type=merge", "-p", CONTROLLERS];
        self.kubectl(&[&["-n", SYSTEM], &configmap[..], &patch].concat());
        for deployment in ["ipu-operator-vipu-proxy", "ipu-operator-controller-manager"] {
            self.wait_for_rollout(SYSTEM, deployment);
        }
    }

    /// Waits until a deployment is rolled out.
    pub(crate) fn wait_for_rollout(&self, namespace: &str, deployment: &str) {
        let deployment = format!("deployment/{deployment}");
        let arguments = [
            "-n",
            namespace,
            "rollout",
            "status",
            &deployment,
            "--timeout=300s",
        ];
        if let Err(error) = self.cluster.kubectl(&arguments) {
            panic!("{error}\n{}", self.describe_pods(namespace));
        }
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        match self.cluster.kubectl(arguments) {
            Ok(output) => output,
            Err(error) => panic!("kubectl {}: {error}", arguments.join(" ")),
        }
    }

    /// Applies objects.
    pub(crate) fn apply_text(&self, text: &str) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("objects.yaml");
        std::fs::write(&file, text).unwrap();
        self.kubectl(&["apply", "-f", &file.display().to_string()]);
    }

    /// Returns the partitions of the controller of `deploy/simulator`.
    pub(crate) fn controller_partitions(&self) -> String {
        let path = "/api/v1/namespaces/vipu/services/http:vipu-server:8090/proxy/v1/partitions";
        self.kubectl(&["get", "--raw", path])
    }

    /// Returns the entries and cordons of the ledger.
    pub(crate) fn ledger(&self) -> String {
        let tracker = ["get", "configmap", "ipu-partitions-tracker", "-o", "json"];
        let tracker: Value =
            serde_json::from_str(&self.kubectl(&[&["-n", SYSTEM], &tracker[..]].concat())).unwrap();
        let data = tracker["data"].as_object().into_iter().flatten();
        data.filter(|(key, _)| !key.starts_with("usage."))
            .map(|(key, entry)| format!("{key}: {entry}\n"))
            .collect()
    }

    /// Returns whether the image of the examples is loaded on the node; CI requires it.
    #[expect(clippy::print_stdout, reason = "a skipped test prints the reason")]
    pub(crate) fn has_mpi(&self, test: &str) -> bool {
        if !self.mpi {
            assert!(
                std::env::var_os("CI").is_none(),
                "{test}: Open MPI is not installed, and CI requires this test"
            );
            println!("skipped: {test}: Open MPI is not installed");
        }
        self.mpi
    }

    /// Submits a job of `examples/kubernetes`, changed by `edit`. The submission is not retried: the first
    /// one of a user must succeed.
    pub(crate) fn submit(&self, namespace: &str, example: &str, edit: impl Fn(&str) -> String) {
        let folder = write_edited(example, edit);
        self.kubectl(&[
            "-n",
            namespace,
            "apply",
            "-f",
            &folder.path().display().to_string(),
        ]);
    }

    /// Submits a job for admission only, which must succeed.
    pub(crate) fn admit(&self, namespace: &str, example: &str, edit: impl Fn(&str) -> String) {
        let folder = write_edited(example, edit);
        let file = folder.path().display().to_string();
        self.kubectl(&["-n", namespace, "create", "--dry-run=server", "-f", &file]);
    }

    /// Submits a job that must be refused, and returns the error.
    pub(crate) fn submit_refused(
        &self,
        namespace: &str,
        example: &str,
        edit: impl Fn(&str) -> String,
    ) -> String {
        let folder = write_edited(example, edit);
        let arguments = [
            "-n",
            namespace,
            "apply",
            "-f",
            &folder.path().display().to_string(),
        ];
        self.cluster.kubectl(&arguments).unwrap_err().to_string()
    }

    /// Loads one of the installed images into the node under another name.
    pub(crate) fn load_as(&self, image: &str, name: &str) {
        let images = product_images(programs().as_path()).unwrap();
        let named = format!("{image}:");
        let image = images.into_iter().find(|one| one.name().starts_with(&named));
        self.cluster.load(&image.unwrap().named(name)).unwrap();
    }

    /// Waits until a job is in this phase, and returns its status.
    pub(crate) fn wait_for_phase(&self, namespace: &str, job: &str, phase: &str) -> Value {
        let job = format!("ipujob/{job}");
        let condition = format!("--for=jsonpath={{.status.phase}}={phase}");
        let arguments = ["-n", namespace, "wait", &job, &condition, "--timeout=300s"];
        if let Err(error) = self.cluster.kubectl(&arguments) {
            let jobs = self.kubectl(&["-n", namespace, "get", "ipujobs", "-o", "yaml"]);
            panic!(
                "{error}\n{jobs}\n{}\n{}",
                self.describe_pods(namespace),
                self.logs()
            );
        }
        let output = self.kubectl(&["-n", namespace, "get", &job, "-o", "json"]);
        serde_json::from_str::<Value>(&output).unwrap()["status"].take()
    }

    /// Deletes the job. Asserts that none of its objects is left, and that the logs have no permission or
    /// file error.
    pub(crate) fn delete(&self, namespace: &str, job: &str) {
        let kinds = "pods,configmaps,roles,rolebindings,serviceaccounts";
        let selector = format!("graphcore.ai/ipujob-name={job}");
        let objects = || self.kubectl(&["-n", namespace, "get", kinds, "-l", &selector, "-o", "name"]);
        assert!(objects().contains("pod/"), "{job}: {}", objects());
        self.kubectl(&["-n", namespace, "delete", "ipujob", job, "--timeout=120s"]);
        // Kubernetes collects owned objects asynchronously.
        wait_until("all objects of the job are deleted", || {
            let remaining = objects();
            if remaining.is_empty() {
                Ok(())
            } else {
                Err(remaining)
            }
        });
        let logs = self.logs();
        for component in ["controller-manager", "vipu-proxy"] {
            assert!(logs.contains(component), "no log of {component}: {logs}");
        }
        for complaint in ["ERROR", "orbidden", "ermission", "ead-only", "panicked"] {
            assert!(!logs.contains(complaint), "{logs}");
        }
    }

    /// Returns the output of `curl` in a Pod of `namespace` with the service account `account`.
    pub(crate) fn curl(&self, namespace: &str, account: &str, script: &str) -> String {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("curl-{number}");
        let overrides = format!(r#"{{"spec": {{"serviceAccountName": "{account}"}}}}"#);
        self.kubectl(&[
            "-n",
            namespace,
            "run",
            &name,
            "--image=local/curl:1",
            "--restart=Never",
            "--overrides",
            &overrides,
            "--",
            "/bin/sh",
            "-c",
            script,
        ]);
        let pod = format!("pod/{name}");
        let terminated = "--for=jsonpath={.status.containerStatuses[0].state.terminated}";
        self.kubectl(&["-n", namespace, "wait", &pod, terminated, "--timeout=120s"]);
        self.kubectl(&["-n", namespace, "logs", &name])
    }

    /// Loads the image of [`Self::curl`]; returns false if `curl` is not installed. CI requires it.
    #[expect(clippy::print_stdout, reason = "a skipped test prints the reason")]
    pub(crate) fn has_curl(&self, test: &str) -> bool {
        let curl = Path::new("/usr/bin/curl");
        if !curl.exists() {
            assert!(
                std::env::var_os("CI").is_none(),
                "{test}: curl is not installed, and CI requires this test"
            );
            println!("skipped: {test}: curl is not installed");
            return false;
        }
        self.curl.get_or_init(|| {
            let image = Image::busybox("local/curl:1").unwrap();
            let image = image.program(curl, "/usr/bin/curl").unwrap();
            self.cluster.load(&image).unwrap();
        });
        true
    }

    /// Returns the logs of operator and proxy.
    pub(crate) fn logs(&self) -> String {
        let logs_of = |component: &str| {
            let selector = format!("app.kubernetes.io/component={component}");
            let arguments = ["-n", SYSTEM, "logs", "-l", &selector, "--tail=-1", "--prefix"];
            self.cluster.kubectl(&arguments).unwrap_or_default()
        };
        logs_of("controller-manager") + &logs_of("vipu-proxy")
    }

    pub(crate) fn describe_pods(&self, namespace: &str) -> String {
        let pods = self.cluster.kubectl(&["-n", namespace, "describe", "pods"]);
        pods.unwrap_or_default()
    }
}

/// Returns the installation that the tests share, by the documented `helm install gc …` (V-IPU guide §6.3.2).
/// Each test has its own namespace. Returns `None` if this machine cannot run a node.
pub(crate) fn installed(test: &str) -> Option<&'static Product<&'static Cluster>> {
    static INSTALLED: OnceLock<Product<&'static Cluster>> = OnceLock::new();
    find_tools(test, &Tool::HELM)?;
    let cluster = shared_with(test, ClusterProfile::Node)?;
    Some(INSTALLED.get_or_init(|| {
        let product = Product::prepare(cluster);
        product.install_chart_with_administrator(Tool::Helm4, "gc");
        product
    }))
}

/// Returns the shared installation if the image of the examples is available.
pub(crate) fn installed_with_mpi(test: &str) -> Option<&'static Product<&'static Cluster>> {
    installed(test).filter(|product| product.has_mpi(test))
}

/// Returns a cluster of the test's own that has all but operator and proxy.
pub(crate) fn prepared_privately(test: &str) -> Option<Product<Box<Cluster>>> {
    let cluster = private_with(test, ClusterProfile::Node)?;
    Some(Product::prepare(Box::new(cluster)))
}

/// Waits until `check` succeeds; its error has the reason.
pub(crate) fn wait_until(condition: &str, check: impl Fn() -> Result<(), String>) {
    let started = Instant::now();
    // Most checks ask by `kubectl`, which takes a tenth of a second of processor time.
    let mut delay = Duration::from_millis(100);
    while let Err(reason) = check() {
        assert!(started.elapsed() < TIMEOUT, "timeout: {condition}: {reason}");
        std::thread::sleep(delay);
        delay = (delay * 5 / 4).min(Duration::from_secs(1));
    }
}

/// Writes a job of `examples/kubernetes`, changed by `edit`, into a folder.
fn write_edited(example: &str, edit: impl Fn(&str) -> String) -> tempfile::TempDir {
    let text = std::fs::read_to_string(repository(&format!("examples/kubernetes/{example}.yaml"))).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("job.yaml"), edit(&text)).unwrap();
    folder
}

/// Returns the path of a repository file.
pub(crate) fn repository(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join(path).display().to_string()
}

/// Returns the folder of the product's programs: `IPU_SYSTEM_PROGRAMS`, such as the released programs in
/// `target/bundle/programs`, or the folder of the programs that were built with this test.
pub(crate) fn programs() -> PathBuf {
    std::env::var_os("IPU_SYSTEM_PROGRAMS").map_or_else(built_programs, PathBuf::from)
}

/// Returns the folder of the programs that were built with this test.
pub(crate) fn built_programs() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(Path::parent).unwrap().to_owned()
}
