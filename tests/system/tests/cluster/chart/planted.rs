//! Copies of the chart with a planted defect, and the checks that report it.

use std::fs;
use std::path::Path;

use ipu_test_cluster::Tool;
use serde_json::Value;

use super::rendering::{Objects, Renderer, objects};
use crate::installation::repository;

/// A chart, and the program that renders it.
pub(super) struct Chart<'a> {
    renderer: &'a Renderer,
    path: String,
}

/// Returns the findings of a defect.
pub(super) type Check = fn(&Chart<'_>) -> Vec<String>;

/// Changes of the chart: a file in `templates`, a text in it, and its replacement.
pub(super) type Plant = (&'static str, &'static str, &'static str);

pub(super) fn assert_reported(test: &str, check: Check, plants: &[Plant]) {
    let Some(renderer) = Renderer::find(test) else {
        return;
    };
    let chart = Chart {
        renderer: &renderer,
        path: repository("deploy/helm/ipu-operator"),
    };
    assert_eq!(check(&chart), [""; 0], "{test}");
    for (file, text, replacement) in plants {
        let folder = tempfile::tempdir().unwrap();
        copy(Path::new(&chart.path), folder.path());
        let file = folder.path().join("templates").join(file);
        let template = fs::read_to_string(&file).unwrap();
        assert!(template.contains(text), "{}: {text}", file.display());
        fs::write(&file, template.replace(text, replacement)).unwrap();
        let planted = Chart {
            renderer: &renderer,
            path: folder.path().display().to_string(),
        };
        assert_ne!(check(&planted), [""; 0], "{test}: {replacement}");
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir(&target).unwrap();
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}

impl Chart<'_> {
    /// Returns the rendering of a release in a namespace.
    pub(super) fn render(&self, release: &str, namespace: &str, options: &[&str]) -> String {
        let mut arguments = vec![release, "--namespace", namespace];
        arguments.extend(options.iter().flat_map(|option| ["--set-json", *option]));
        let rendering = self.renderer.render_chart(Tool::Helm4, &self.path, &arguments);
        rendering.unwrap_or_else(|error| panic!("{options:?}: {error}"))
    }

    pub(super) fn objects(&self, options: &[&str]) -> Objects {
        objects(&self.render("ipu-operator", crate::installation::SYSTEM, options))
    }
}

/// Returns the containers of all Deployments.
pub(super) fn containers(objects: &Objects) -> Vec<&Value> {
    let lists = objects
        .values()
        .filter_map(|object| object.pointer("/spec/template/spec/containers")?.as_array());
    lists.flatten().collect()
}

pub(super) fn strings(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}
