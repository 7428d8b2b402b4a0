//! An installation of everything, and what is done with it.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ipu_test_cluster::{
    Cluster, ClusterProfile, Image, mpi_image, private_with, product_images, shared_with,
};
use serde_json::Value;

/// Where operator and proxy are installed.
pub(crate) const SYSTEM: &str = "ipu-operator-system";

/// The controller, as an administrator names it.
pub(crate) const CONTROLLERS: &str =
    r#"{"data": {"controllers.yaml": "vipu-server.vipu.svc.cluster.local:8090:vipu-ctrl=vctl1"}}"#;

/// How long something of the cluster may take.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A cluster with everything installed.
pub(crate) struct Product<C> {
    pub(crate) cluster: C,
    /// Whether `mpi-example:1`, the image of the examples, could be made.
    mpi: bool,
    /// Set once the image of [`Self::curl`] is loaded: tests that load it at the same time disturb each other.
    curl: OnceLock<()>,
}

impl<C: std::ops::Deref<Target = Cluster>> Product<C> {
    /// Does what the guide says, in its order.
    fn install(cluster: C) -> Self {
        for image in product_images(programs().as_path()).unwrap() {
            cluster.load(&image).unwrap();
        }
        let scratch = tempfile::tempdir().unwrap();
        let image = mpi_image("mpi-example:1", &programs().join("ipu-launcher"), scratch.path()).unwrap();
        if let Some(image) = &image {
            cluster.load(image).unwrap();
        }
        let product = Self {
            cluster,
            mpi: image.is_some(),
            curl: OnceLock::new(),
        };
        product.kubectl(&["apply", "-f", &repository("deploy/simulator")]);
        product.kubectl(&["apply", "-k", &repository("deploy/kubernetes")]);
        let configmap = ["patch", "configmap", "ipu-operator-vipu-controllers"];
        product.kubectl(
            &[
                &["-n", SYSTEM],
                &configmap[..],
                &["--type=merge", "-p", CONTROLLERS],
            ]
            .concat(),
        );
        product.kubectl(&["label", "nodes", "--all", "vipu-ctrl=vctl1"]);
        for (namespace, deployment) in [
            ("vipu", "vipu-server"),
            (SYSTEM, "ipu-operator-vipu-proxy"),
            (SYSTEM, "ipu-operator-controller-manager"),
        ] {
            product.is_out(namespace, deployment);
        }
        product
    }

    /// Waits until a deployment is as it is to be.
    pub(crate) fn is_out(&self, namespace: &str, deployment: &str) {
        let deployment = format!("deployment/{deployment}");
        let words = [
            "-n",
            namespace,
            "rollout",
            "status",
            &deployment,
            "--timeout=300s",
        ];
        if let Err(error) = self.cluster.kubectl(&words) {
            panic!("{error}\n{}", self.described(namespace));
        }
    }

    pub(crate) fn kubectl(&self, words: &[&str]) -> String {
        match self.cluster.kubectl(words) {
            Ok(said) => said,
            Err(error) => panic!("kubectl {}: {error}", words.join(" ")),
        }
    }

    /// Whether the image of the examples is known to the node; CI wants it.
    #[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
    pub(crate) fn has_mpi(&self, test: &str) -> bool {
        if !self.mpi {
            assert!(
                std::env::var_os("CI").is_none(),
                "{test}: Open MPI is not installed, and CI wants this test"
            );
            println!("skipped: {test}: Open MPI is not installed");
        }
        self.mpi
    }

    /// Submits a job of `examples/kubernetes`, changed by `edit`. Nothing is tried again: the first one that a person submits has to
    /// be taken.
    pub(crate) fn submit(&self, namespace: &str, example: &str, edit: impl Fn(&str) -> String) {
        let folder = edited(example, edit);
        self.kubectl(&[
            "-n",
            namespace,
            "apply",
            "-f",
            &folder.path().display().to_string(),
        ]);
    }

    /// Submits one that is refused, and answers what is said then.
    pub(crate) fn submit_in_vain(
        &self,
        namespace: &str,
        example: &str,
        edit: impl Fn(&str) -> String,
    ) -> String {
        let folder = edited(example, edit);
        let words = [
            "-n",
            namespace,
            "apply",
            "-f",
            &folder.path().display().to_string(),
        ];
        self.cluster.kubectl(&words).unwrap_err().to_string()
    }

    /// Makes one of the installed images known to the node under another name.
    pub(crate) fn load_as(&self, image: &str, name: &str) {
        let images = product_images(programs().as_path()).unwrap();
        let named = format!("{image}:");
        let image = images.into_iter().find(|one| one.name().starts_with(&named));
        self.cluster.load(&image.unwrap().named(name)).unwrap();
    }

    /// Waits until a job is in this phase, and answers its status.
    pub(crate) fn until(&self, namespace: &str, job: &str, phase: &str) -> Value {
        let job = format!("ipujob/{job}");
        let condition = format!("--for=jsonpath={{.status.phase}}={phase}");
        let words = ["-n", namespace, "wait", &job, &condition, "--timeout=300s"];
        if let Err(error) = self.cluster.kubectl(&words) {
            let jobs = self.kubectl(&["-n", namespace, "get", "ipujobs", "-o", "yaml"]);
            panic!("{error}\n{jobs}\n{}\n{}", self.described(namespace), self.logs());
        }
        let said = self.kubectl(&["-n", namespace, "get", &job, "-o", "json"]);
        serde_json::from_str::<Value>(&said).unwrap()["status"].take()
    }

    /// Deletes the job; nothing that it had is left, and nobody lacked a right or a file for it.
    pub(crate) fn delete(&self, namespace: &str, job: &str) {
        self.kubectl(&["-n", namespace, "delete", "ipujob", job, "--timeout=120s"]);
        let kinds = "pods,configmaps,roles,rolebindings,serviceaccounts";
        let selector = format!("graphcore.ai/ipujob-name={job}");
        // What belongs to it is collected in Kubernetes' own time.
        eventually("nothing of the job is left", || {
            let left = self.kubectl(&["-n", namespace, "get", kinds, "-l", &selector, "-o", "name"]);
            if left.is_empty() { Ok(()) } else { Err(left) }
        });
        let logs = self.logs();
        for complaint in ["ERROR", "orbidden", "ermission", "ead-only", "panicked"] {
            assert!(!logs.contains(complaint), "{logs}");
        }
    }

    /// What `curl` says in a Kubernetes Pod of `namespace`, whose service account is `account`.
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
        let ended = "--for=jsonpath={.status.containerStatuses[0].state.terminated}";
        self.kubectl(&["-n", namespace, "wait", &pod, ended, "--timeout=120s"]);
        self.kubectl(&["-n", namespace, "logs", &name])
    }

    /// The image of [`Self::curl`]; none if there is no `curl` here. CI wants it.
    #[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
    pub(crate) fn has_curl(&self, test: &str) -> bool {
        let curl = Path::new("/usr/bin/curl");
        if !curl.exists() {
            assert!(
                std::env::var_os("CI").is_none(),
                "{test}: curl is not installed, and CI wants this test"
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

    /// What operator and proxy have logged.
    pub(crate) fn logs(&self) -> String {
        let of = |component: &str| {
            let selector = format!("app.kubernetes.io/component={component}");
            let words = ["-n", SYSTEM, "logs", "-l", &selector, "--tail=-1", "--prefix"];
            self.cluster.kubectl(&words).unwrap_or_default()
        };
        of("controller-manager") + &of("vipu-proxy")
    }

    fn described(&self, namespace: &str) -> String {
        let pods = self.cluster.kubectl(&["-n", namespace, "describe", "pods"]);
        pods.unwrap_or_default()
    }
}

/// The installation that the tests share; each has a namespace of its own. None if this machine cannot have a node.
pub(crate) fn installed(test: &str) -> Option<&'static Product<&'static Cluster>> {
    static INSTALLED: OnceLock<Product<&'static Cluster>> = OnceLock::new();
    let cluster = shared_with(test, ClusterProfile::Node)?;
    Some(INSTALLED.get_or_init(|| Product::install(cluster)))
}

/// The same with the image of the examples.
pub(crate) fn installed_with_mpi(test: &str) -> Option<&'static Product<&'static Cluster>> {
    installed(test).filter(|product| product.has_mpi(test))
}

/// An installation that the test may break.
pub(crate) fn installed_alone(test: &str) -> Option<Product<Box<Cluster>>> {
    let cluster = private_with(test, ClusterProfile::Node)?;
    Some(Product::install(Box::new(cluster)))
}

/// Waits until something is so; it says why it is not yet.
pub(crate) fn eventually(what: &str, so: impl Fn() -> Result<(), String>) {
    let begun = Instant::now();
    while let Err(why) = so() {
        assert!(begun.elapsed() < TIMEOUT, "never: {what}: {why}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A folder with a job of `examples/kubernetes`, changed by `edit`.
fn edited(example: &str, edit: impl Fn(&str) -> String) -> tempfile::TempDir {
    let text = std::fs::read_to_string(repository(&format!("examples/kubernetes/{example}.yaml"))).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("job.yaml"), edit(&text)).unwrap();
    folder
}

/// A file of the repository.
pub(crate) fn repository(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join(path).display().to_string()
}

/// The folder of the programs that were built with this test.
fn programs() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(Path::parent).unwrap().to_owned()
}
