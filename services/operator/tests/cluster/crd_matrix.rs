//! The CRD after each Helm command: two Helms × the CRD that was there before × the command. The chart does
//! not contain the CRD; after each command, an operator starts with the rights of the release. The gate runs
//! each Helm with each CRD and with each command, `CRD_MATRIX=all` all 60 cells. Both print the cells.

use ipu_operator::Operator;
use ipu_test_cluster::{Cluster, Tool, find_tools, private};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::crd::{NAME, VERSION, other_crd};
use crate::support::{config, settings, wait_until, wait_until_ready};

const NAMESPACE: &str = "ipu";
const NEWER: &str = "99.0.0-rc.1";
const OWN: &str = env!("CARGO_PKG_VERSION");
const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The CRD before a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Nothing,
    /// `kubectl apply` of `deploy/crd`.
    Same,
    /// Of an older build, applied on the server.
    Older,
    /// Of the operator of a newer build.
    Newer,
    /// Of Graphcore's chart, by Helm.
    Original,
    /// Created by the operator of a release that was uninstalled.
    Kept,
}

const BEFORE: [Before; 6] = [
    Before::Nothing,
    Before::Same,
    Before::Older,
    Before::Newer,
    Before::Original,
    Before::Kept,
];

/// A command, after those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Install,
    Upgrade,
    Rollback,
    Reinstall,
    /// `kubectl apply --server-side` of `helm template`, as with GitOps.
    Apply,
}

const COMMANDS: [Command; 5] = [
    Command::Install,
    Command::Upgrade,
    Command::Rollback,
    Command::Reinstall,
    Command::Apply,
];

/// A command, and the CRD before it.
type Cell = (Command, Before);

/// The cells of the gate for Helm 3 and for Helm 4, in the order in which the commands are possible.
const IN_THE_GATE: [[Cell; 6]; 2] = [
    [
        (Command::Install, Before::Nothing),
        (Command::Upgrade, Before::Older),
        (Command::Rollback, Before::Newer),
        (Command::Reinstall, Before::Kept),
        (Command::Apply, Before::Original),
        (Command::Install, Before::Same),
    ],
    [
        (Command::Install, Before::Older),
        (Command::Upgrade, Before::Original),
        (Command::Rollback, Before::Kept),
        (Command::Reinstall, Before::Newer),
        (Command::Apply, Before::Same),
        (Command::Install, Before::Nothing),
    ],
];

struct Matrix<'a> {
    cluster: &'a Cluster,
    crds: Api<DynamicObject>,
    jobs: Api<DynamicObject>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_keeps_the_crd_and_none_downgrades_it() {
    let name = "every_command_keeps_the_crd_and_none_downgrades_it";
    let (Some(_), Some(cluster)) = (find_tools(name, &Tool::HELM), private(name)) else {
        return;
    };
    cluster.kubectl(&["create", "namespace", NAMESPACE]).unwrap();
    let matrix = Matrix::new(&cluster).await;
    let is_whole = std::env::var("CRD_MATRIX").is_ok_and(|value| value == "all");
    let chains: Vec<(Tool, Vec<Cell>)> = if is_whole {
        let chain = |before: Before| COMMANDS.map(|command| (command, before)).to_vec();
        let chains_of = |helm: Tool| BEFORE.map(|before| (helm, chain(before)));
        Tool::HELM.into_iter().flat_map(chains_of).collect()
    } else {
        Tool::HELM.into_iter().zip(IN_THE_GATE.map(Vec::from)).collect()
    };
    for (helm, chain) in chains {
        for (command, before) in &chain {
            let result = matrix.run(helm, *before, *command).await;
            println!("| {} | {before:?} | {command:?} | {result} |", helm.name());
        }
        if chain
            .last()
            .is_some_and(|(command, _)| *command != Command::Apply)
        {
            matrix.helm(helm, "uninstall", &["gc"]);
        }
    }
}

impl<'a> Matrix<'a> {
    async fn new(cluster: &'a Cluster) -> Self {
        let client = Client::try_from(config(cluster).await).unwrap();
        let kind = |group, version, kind| ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let crd = kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
        let job = kind("graphcore.ai", "v1alpha1", "IPUJob");
        Self {
            cluster,
            crds: Api::all_with(client.clone(), &crd),
            jobs: Api::namespaced_with(client, "default", &job),
        }
    }

    /// Runs one cell, and returns what happened to the CRD.
    async fn run(&self, helm: Tool, before: Before, command: Command) -> String {
        let cell = format!("{helm:?}, {before:?}, {command:?}");
        self.prepare(before).await;
        let old = self.crds.get_opt(NAME).await.unwrap();
        self.command(helm, command);
        let unchanged = self.crds.get_opt(NAME).await.unwrap();
        assert_eq!(
            unchanged.as_ref().map(identity),
            old.as_ref().map(identity),
            "{cell}: Helm changed the CRD"
        );
        self.run_operator().await;
        let new = self.crds.get(NAME).await.unwrap();
        if command == Command::Apply {
            let folder = self.rendering();
            self.kubectl(&["delete", "--wait=false", "-f", &folder]);
            let kept = self.crds.get(NAME).await.unwrap();
            assert_eq!(
                identity(&kept),
                identity(&new),
                "{cell}: deleted with the rendering"
            );
        }
        let version = new.annotations()[VERSION].clone();
        let Some(old) = old else {
            assert_eq!(version, OWN, "{cell}");
            return format!("created {version}");
        };
        assert_eq!(new.uid(), old.uid(), "{cell}: the CRD was replaced");
        self.jobs.get("stored").await.unwrap();
        if before == Before::Newer {
            assert_eq!(identity(&new), identity(&old), "{cell}: a newer CRD was changed");
            return format!("kept {version}");
        }
        assert_eq!(version, OWN, "{cell}");
        let fields = &new.data["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        assert!(fields["properties"]["ipusPerJobInstance"].is_object(), "{cell}");
        match old.annotations().get(VERSION) {
            Some(old) if *old == version => format!("kept {version}"),
            old => format!("{} to {version}", old.map_or("no version", String::as_str)),
        }
    }

    /// Deletes the CRD, and creates the one of `before` with a stored job.
    async fn prepare(&self, before: Before) {
        if self.crds.get_opt(NAME).await.unwrap().is_some() {
            let delete = DeleteParams::default();
            // Absent after a cell that began with nothing.
            let _ = self.jobs.delete("stored", &delete).await;
            self.crds.delete(NAME, &delete).await.unwrap();
            wait_until("the CRD is deleted", async || {
                self.crds.get_opt(NAME).await.unwrap().is_none()
            })
            .await;
        }
        let annotated = |version: &str| other_crd(&json!({VERSION: version}));
        let file = format!("{REPOSITORY}/deploy/crd/ipujobs.graphcore.ai.yaml");
        match before {
            Before::Nothing => return,
            Before::Same => drop(self.kubectl(&["apply", "-f", &file])),
            Before::Older => self.apply("helm", &annotated("0.0.9")).await,
            Before::Newer => self.apply("ipu-operator", &annotated(NEWER)).await,
            Before::Original => {
                let annotations = json!({"controller-gen.kubebuilder.io/version": "v0.4.1"});
                self.create("helm", other_crd(&annotations)).await;
            }
            Before::Kept => {
                let text = std::fs::read_to_string(file).unwrap();
                self.create("ipu-operator", serde_saphyr::from_str(&text).unwrap())
                    .await;
            }
        }
        let job: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "metadata": {"name": "stored"},
            "spec": {
                "managedBy": "example.com/other", "jobInstances": 1, "ipusPerJobInstance": "1",
                "workers": {"template": {"spec": {"containers": [{"name": "main", "image": "x"}]}}},
            },
        }))
        .unwrap();
        wait_until("IPUJobs are served", async || {
            self.jobs.create(&PostParams::default(), &job).await.is_ok()
        })
        .await;
    }

    async fn create(&self, manager: &str, crd: Value) {
        let params = PostParams {
            field_manager: Some(manager.to_owned()),
            ..PostParams::default()
        };
        let crd = serde_json::from_value(crd).unwrap();
        self.crds.create(&params, &crd).await.unwrap();
    }

    async fn apply(&self, manager: &str, crd: &Value) {
        let params = PatchParams::apply(manager);
        self.crds.patch(NAME, &params, &Patch::Apply(crd)).await.unwrap();
    }

    fn command(&self, helm: Tool, command: Command) {
        let chart = format!("{REPOSITORY}/deploy/helm/ipu-operator");
        // Jobs are stored outside the namespace of the webhooks, which no Pod serves here.
        let values = ["gc", &chart, "--set", "watchNamespaces=ipu"];
        let run = |command: &str, arguments: &[&str]| self.helm(helm, command, arguments);
        match command {
            Command::Install => run("install", &values),
            Command::Upgrade => run(
                "upgrade",
                &[&values[..], &["--set", "controller.logLevel=3"]].concat(),
            ),
            Command::Rollback => run("rollback", &["gc", "1"]),
            Command::Reinstall => {
                run("uninstall", &["gc"]);
                run("install", &values)
            }
            Command::Apply => {
                run("uninstall", &["gc"]);
                std::fs::write(self.rendering(), run("template", &values)).unwrap();
                self.kubectl(&["apply", "--server-side", "-f", &self.rendering()])
            }
        };
    }

    fn helm(&self, helm: Tool, command: &str, arguments: &[&str]) -> String {
        let arguments = [&["--namespace", NAMESPACE, command], arguments].concat();
        self.cluster.helm(helm, &arguments).unwrap()
    }

    /// Starts an operator with the rights of its ServiceAccount, and stops it when it is ready.
    async fn run_operator(&self) {
        let mut settings = settings("gc-ipu-operator-admission");
        settings.namespace = Some(NAMESPACE.into());
        settings.watch_namespaces = Some(NAMESPACE.into());
        settings.maintain_crd = Some(true);
        let mut kube = config(self.cluster).await;
        let account = format!("system:serviceaccount:{NAMESPACE}:gc-ipu-operator-controller");
        kube.auth_info.impersonate = Some(account);
        let operator = Operator::start(settings.check(NAMESPACE).unwrap(), kube)
            .await
            .unwrap();
        wait_until_ready(&operator).await;
        operator.shutdown().await;
    }

    /// Returns the file of `helm template`.
    fn rendering(&self) -> String {
        let file = self.cluster.directory().join("rendering.yaml");
        file.display().to_string()
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        self.cluster.kubectl(arguments).unwrap()
    }
}

/// Returns what changes with the specification or the annotations of a CRD, but not with its status.
fn identity(crd: &DynamicObject) -> String {
    let metadata = &crd.metadata;
    format!(
        "{:?} {:?} {:?}",
        metadata.uid, metadata.generation, metadata.annotations
    )
}
