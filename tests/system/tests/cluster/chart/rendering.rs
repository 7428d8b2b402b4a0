//! `helm template` of the chart.

use std::collections::BTreeMap;

use ipu_test_cluster::{Tool, Tools, find_tools};
use serde_json::Value;

use crate::installation::{SYSTEM, repository};

/// Objects by kind and name, as in `Service/ipu-operator-webhook-svc`. Outside the namespace of the release,
/// the namespace is between them.
pub(super) type Objects = BTreeMap<String, Value>;

/// Renders the chart.
pub(super) struct Renderer {
    tools: Tools,
    home: tempfile::TempDir,
}

impl Renderer {
    /// Returns a renderer, or `None` if a program is missing.
    pub(super) fn find(test: &str) -> Option<Self> {
        let required = [&Tool::HELM[..], &[Tool::Kubectl]].concat();
        Some(Self {
            tools: find_tools(test, &required)?,
            home: tempfile::tempdir().unwrap(),
        })
    }

    /// Returns the rendering of a release, or the error of Helm.
    pub(super) fn render(&self, helm: Tool, release: &str, options: &[&str]) -> Result<String, String> {
        let chart = repository("deploy/helm/ipu-operator");
        self.render_chart(
            helm,
            &chart,
            &[&[release, "--namespace", SYSTEM], options].concat(),
        )
    }

    /// Returns the rendering of a chart with the arguments `RELEASE OPTION…`, or the error of Helm.
    pub(super) fn render_chart(&self, helm: Tool, chart: &str, arguments: &[&str]) -> Result<String, String> {
        let mut command = self.tools.helm(helm, self.home.path());
        let (release, options) = arguments.split_first().unwrap();
        let output = command.args(["template", release, chart]).args(options).output();
        let output = output.map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(text(&output.stderr))
        }
    }

    /// Returns the objects of a rendering that must succeed.
    pub(super) fn objects(&self, helm: Tool, release: &str, options: &[&str]) -> Objects {
        match self.render(helm, release, options) {
            Ok(text) => objects(&text),
            Err(error) => panic!("{helm:?} {release} {options:?}: {error}"),
        }
    }

    /// Returns the objects of `deploy/kubernetes`.
    pub(super) fn manifests(&self) -> Objects {
        let folder = repository("deploy/kubernetes");
        let mut command = std::process::Command::new(self.tools.path(Tool::Kubectl));
        let output = command.args(["kustomize", &folder]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let mut objects = objects(&String::from_utf8(output.stdout).unwrap());
        // kustomize does not know that these kinds have no namespace; kubectl and the API server do.
        for (name, object) in &mut objects {
            if name.starts_with("ValidatingAdmissionPolicy") {
                object["metadata"].as_object_mut().unwrap().remove("namespace");
            }
        }
        objects
    }
}

/// Parses YAML documents.
pub(super) fn objects(text: &str) -> Objects {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    let mut objects = Objects::new();
    for object in documents.into_iter().filter(|document| !document.is_null()) {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str);
        let namespace = text("/metadata/namespace").filter(|namespace| *namespace != SYSTEM);
        let parts = [text("/kind"), namespace, text("/metadata/name")];
        let name = parts.into_iter().flatten().collect::<Vec<_>>().join("/");
        let previous = objects.insert(name.clone(), object);
        assert!(previous.is_none(), "{name} occurs twice");
    }
    objects
}
