//! Several installations in one cluster: Helm refuses those that would act on the same jobs, with golden
//! files in `tests/system/testdata/refusals-in-cluster`. Webhooks of another program on IPUJobs are none.

use ipu_test_cluster::{Cluster, Tool, find_tools, private};

use super::refusals::{assert_golden, message_of};
use crate::installation::{SYSTEM, repository};

const NAMESPACES: [&str; 5] = ["first-ns", "second-ns", "team-a", "team-b", "team-c"];

/// Webhooks of a policy engine for all kinds of this project, as Kyverno configures them.
const FOREIGN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/foreign-webhooks.yaml");

/// Helm in a cluster.
struct Installer<'a> {
    cluster: &'a Cluster,
    helm: Tool,
}

impl Installer<'_> {
    /// Runs a command on a release of `namespace` that watches these namespaces, with commas.
    fn run(&self, command: &str, release: &str, namespace: &str, watched: &str) -> Result<String, String> {
        let watched = format!("watchNamespaces={watched}").replace(',', "\\,");
        let chart = repository("deploy/helm/ipu-operator");
        let arguments = ["-n", namespace, command, release, &chart, "--set", &watched];
        let output = self.cluster.helm(self.helm, &arguments);
        output.map_err(|error| error.to_string())
    }

    fn install(&self, release: &str, namespace: &str, watched: &str) {
        if let Err(error) = self.run("install", release, namespace, watched) {
            panic!("{:?} {release} {watched}: {error}", self.helm);
        }
    }

    fn assert_refused(&self, command: &str, [release, namespace, watched]: [&str; 3], golden: &str) {
        let error = self.run(command, release, namespace, watched).unwrap_err();
        assert_golden("refusals-in-cluster", golden, message_of(&error));
    }

    /// Returns the webhooks of a release as GitOps applies them.
    fn render_webhooks(&self, release: &str, namespace: &str) -> String {
        let chart = repository("deploy/helm/ipu-operator");
        let template = ["-n", namespace, "template", release, &chart];
        let webhooks = ["--show-only", "templates/webhooks.yaml"];
        self.cluster
            .helm(self.helm, &[&template[..], &webhooks].concat())
            .unwrap()
    }

    fn uninstall(&self, release: &str, namespace: &str) {
        let arguments = ["-n", namespace, "uninstall", release, "--wait"];
        self.cluster.helm(self.helm, &arguments).unwrap();
    }
}

#[test]
fn installations_that_would_act_on_the_same_jobs_are_refused() {
    let name = "installations_that_would_act_on_the_same_jobs_are_refused";
    let (Some(_), Some(cluster)) = (find_tools(name, &Tool::HELM), private(name)) else {
        return;
    };
    for namespace in NAMESPACES {
        cluster.kubectl(&["create", "namespace", namespace]).unwrap();
    }
    cluster.kubectl(&["apply", "-f", FOREIGN]).unwrap();
    let [helm3, helm4] = Tool::HELM.map(|helm| Installer {
        cluster: &cluster,
        helm,
    });

    helm3.install("first", "first-ns", "team-a,team-b");
    for (watched, golden) in [
        ("", "all-and-some"),
        ("team-b,team-c", "some-and-some"),
        ("team-b", "one-and-some"),
    ] {
        helm4.assert_refused("install", ["second", "second-ns", watched], golden);
    }
    helm4.assert_refused("install", ["second", "first-ns", "team-c"], "same-namespace");
    helm4.assert_refused("install", ["first", "second-ns", "team-c"], "same-names");

    // Disjoint namespaces: installed, upgraded, and still guarded.
    let second = |watched: &str| helm4.run("upgrade", "second", "second-ns", watched);
    helm4.install("second", "second-ns", "team-c");
    second("team-c,default").unwrap();
    helm4.assert_refused(
        "upgrade",
        ["second", "second-ns", "team-a,team-c"],
        "upgrade-and-some",
    );
    helm3.run("upgrade", "first", "first-ns", "team-a").unwrap();
    second("team-b,team-c").unwrap();
    helm4.uninstall("second", "second-ns");
    helm3.uninstall("first", "first-ns");

    // A release that watches everything, with the Helms exchanged.
    helm4.install("first", "first-ns", "");
    helm3.assert_refused("install", ["second", "second-ns", ""], "all-and-all");
    helm3.assert_refused("install", ["second", "second-ns", "team-a"], "some-and-all");
    helm4.run("upgrade", "first", "first-ns", "team-a").unwrap();
    helm3.install("second", "second-ns", "team-b");
    helm3.uninstall("second", "second-ns");
    helm4.uninstall("first", "first-ns");

    // The manifests, whose namespace does not exist at first, and a rendering, which no Helm manages.
    let manifests = repository("deploy/kubernetes/webhooks.yaml");
    cluster.kubectl(&["apply", "-f", &manifests]).unwrap();
    helm3.assert_refused("install", ["second", "second-ns", ""], "absent-namespace");
    let error = helm4.run("install", "second", "second-ns", "").unwrap_err();
    let (_, command) = message_of(&error).split_once("Delete them: kubectl ").unwrap();
    let command: Vec<&str> = command.split(' ').collect();
    cluster.kubectl(&command).unwrap();
    helm4.install("second", "second-ns", "");
    helm4.uninstall("second", "second-ns");
    cluster.kubectl(&["create", "namespace", SYSTEM]).unwrap();
    cluster.kubectl(&["apply", "-f", &manifests]).unwrap();
    helm4.assert_refused("install", ["second", "second-ns", ""], "manifests");
    let validating = [
        "delete",
        "validatingwebhookconfiguration",
        "ipu-operator-admission",
    ];
    cluster.kubectl(&validating).unwrap();
    helm4.assert_refused("install", ["second", "second-ns", ""], "manifests");
    cluster
        .kubectl(&["delete", "--ignore-not-found", "-f", &manifests])
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let rendering = folder.path().join("webhooks.yaml").display().to_string();
    std::fs::write(&rendering, helm4.render_webhooks("first", "first-ns")).unwrap();
    cluster.kubectl(&["apply", "-f", &rendering]).unwrap();
    helm3.assert_refused("install", ["second", "second-ns", "team-a"], "rendering");
    helm4.assert_refused(
        "install",
        ["second", "first-ns", "team-a"],
        "rendering-same-namespace",
    );
    cluster.kubectl(&["delete", "-f", &rendering]).unwrap();

    // Graphcore's chart.
    let original = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/original-chart");
    cluster
        .helm(
            Tool::Helm3,
            &["-n", "first-ns", "install", "ipu-operator", original],
        )
        .unwrap();
    helm3.assert_refused("install", ["second", "second-ns", "team-a"], "original");
    helm4.run("upgrade", "ipu-operator", "first-ns", "").unwrap();
}
