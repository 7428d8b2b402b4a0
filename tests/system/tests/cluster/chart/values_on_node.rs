//! A soak: both Helms install the value sets of `testdata/node-values` on a node, and each runs a job.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ipu_test_cluster::{Cluster, Tool, find_tools};
use serde_json::{Value, json};

use super::installation::CONTROLLERS;
use super::values::schema_keys;
use crate::installation::{Product, SYSTEM, prepared_privately, repository};

/// Environment variable that chooses this soak: 1, or the name of one value set.
const CHOSEN: &str = "IPU_SYSTEM_VALUE_SETS";
/// Namespace of the jobs, which value sets name.
const NAMESPACE: &str = "values";

/// Keys that no value set has, with the reason.
const EXCEPTIONS: [(&str, &str); 8] = [
    ("global.vipuControllers", "set by this test"),
    ("certManager.enabled", "chart::cert_manager"),
    ("certManager.issuerRef", "chart::cert_manager"),
    (
        "controller.image.digest",
        "a node has no digest of an image that no registry served",
    ),
    (
        "vipuProxy.image.digest",
        "a node has no digest of an image that no registry served",
    ),
    (
        "simulator.image.digest",
        "a node has no digest of an image that no registry served",
    ),
    (
        "vipuProxy.controllersSecrets",
        "the proxy's own tests have a controller with TLS",
    ),
    ("admissionWebhooks.caBundle", "set by this test"),
];

/// Images of `images.yaml` and `additions.yaml`.
const IMAGES: [(&str, &str); 4] = [
    ("ipu-operator", "registry.example.com/team/operator:7"),
    ("vipu-proxy", "registry.example.com/team/proxy:7"),
    ("ipu-launcher", "registry.example.com/team/launcher:7"),
    ("vipu-sim", "team/simulator:7"),
];

#[test]
fn each_value_of_the_schema_is_in_a_value_set_of_the_soak() {
    let mut keys = schema_keys();
    for (key, reason) in EXCEPTIONS {
        assert!(keys.remove(key), "{key} ({reason}) is not a key");
    }
    for file in files() {
        let values: Value = serde_saphyr::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        let mut set = BTreeSet::new();
        collect("", &values, &mut set);
        keys.retain(|key| !set.contains(key));
    }
    assert!(keys.is_empty(), "no value set has {keys:?}");
}

#[test]
fn both_helms_install_each_value_set_on_a_node() {
    let name = "both_helms_install_each_value_set_on_a_node";
    let Ok(chosen) = std::env::var(CHOSEN) else {
        println!("skipped: {name}: a soak, which {CHOSEN}=1 chooses");
        return;
    };
    let is_chosen = |file: &PathBuf| chosen == "1" || file.file_stem().is_some_and(|stem| *stem == *chosen);
    let files: Vec<PathBuf> = files().into_iter().filter(is_chosen).collect();
    assert!(!files.is_empty(), "{CHOSEN}={chosen} names no value set");
    find_tools(name, &Tool::HELM).unwrap();
    // The soak is chosen: outside CI, too, it fails without a node.
    let product = prepared_privately(name).unwrap();
    for (image, name) in IMAGES {
        product.load_as(image, name);
    }
    for namespace in [NAMESPACE, "another", "monitoring"] {
        product.kubectl(&["create", "namespace", namespace]);
    }
    for (kind, plural) in [
        ("ServiceMonitor", "servicemonitors"),
        ("PrometheusRule", "prometheusrules"),
    ] {
        product.apply_text(&definition(kind, plural));
    }
    for (file, helm) in files.iter().flat_map(|file| Tool::HELM.map(|helm| (file, helm))) {
        println!("{helm:?}: {}", file.display());
        product.install_values(helm, file);
        product.kubectl(&[
            "-n",
            SYSTEM,
            "wait",
            "deployments",
            "--all",
            "--for=condition=Available",
        ]);
        product.submit(NAMESPACE, "inference", |job| {
            job.replace("mpi-example:1", "local/busybox:1")
        });
        product.wait_for_phase(NAMESPACE, "inference", "Running");
        product.kubectl(&["-n", NAMESPACE, "delete", "ipujob", "inference", "--timeout=120s"]);
        product.uninstall_chart(helm, "gc");
        product.kubectl(&["delete", "namespace", SYSTEM, "--timeout=300s"]);
    }
}

/// Returns the definition of a kind of the Prometheus Operator.
fn definition(kind: &str, plural: &str) -> String {
    format!(
        "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: {plural}.monitoring.coreos.com}}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {{kind: {kind}, plural: {plural}}}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}
"
    )
}

impl Product<Box<Cluster>> {
    /// Installs the release `gc` with the values of a file, in a new namespace that admits the host network.
    fn install_values(&self, helm: Tool, file: &Path) {
        self.kubectl(&["create", "namespace", SYSTEM]);
        let chart = repository("deploy/helm/ipu-operator");
        let values = file.to_str().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let bundle = folder.path().join("ca.crt");
        let mut arguments = vec!["install", "gc", &chart, "--values", values, "--set", CONTROLLERS];
        let names = ["webhook-svc", "controller-manager-metrics"]
            .map(|service| format!("gc-ipu-operator-{service}.{SYSTEM}.svc"));
        let certificate = format!("admissionWebhooks.caBundle={}", bundle.display());
        if values.ends_with("rights.yaml") {
            let certified = rcgen::generate_simple_self_signed(names.to_vec()).unwrap();
            fs::write(&bundle, certified.cert.pem()).unwrap();
            let data =
                json!({"tls.crt": certified.cert.pem(), "tls.key": certified.signing_key.serialize_pem()});
            let secret = json!({
                "apiVersion": "v1", "kind": "Secret", "stringData": data,
                "metadata": {"name": "webhook-certificate", "namespace": SYSTEM},
            });
            self.apply_text(&secret.to_string());
            // The administrator creates accounts and roles.
            let access = ["operator-access", "proxy-access"].map(|file| format!("templates/{file}.yaml"));
            let watched = format!("watchNamespaces={{{NAMESPACE}}}");
            let template = ["template", "gc", &chart, "--namespace", SYSTEM, "--set", &watched];
            let shown = ["--show-only", &access[0], "--show-only", &access[1]];
            let rendering = self
                .cluster
                .helm(helm, &[&template[..], &shown].concat())
                .unwrap();
            self.apply_text(&rendering);
            arguments.extend(["--set-file", &certificate]);
        }
        if values.ends_with("names.yaml") {
            self.kubectl(&["apply", "-k", &repository("deploy/crd")]);
        }
        if values.ends_with("additions.yaml") {
            // The simulator is the default of the list.
            arguments.truncate(5);
        }
        self.helm(helm, &[&arguments[..], &["--wait", "--timeout", "300s"]].concat());
    }
}

/// Returns the files of the value sets, sorted.
fn files() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/node-values");
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

/// Collects the keys of values, those of maps, too.
fn collect(prefix: &str, values: &Value, keys: &mut BTreeSet<String>) {
    for (key, value) in values.as_object().into_iter().flatten() {
        let path = format!("{prefix}{key}");
        collect(&format!("{path}."), value, keys);
        keys.insert(path);
    }
}
