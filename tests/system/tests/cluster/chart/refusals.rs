//! Values that the chart refuses, with golden files in `tests/system/testdata/refusals`: the options of
//! `helm template`, one a line, an empty line, and the message. `UPDATE_GOLDEN=1` writes the messages.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use ipu_test_cluster::Tool;

use super::rendering::Renderer;
use crate::installation::repository;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/refusals");

#[test]
fn refused_values_are_reported_with_reason_and_replacement() {
    let Some(renderer) = Renderer::find("refused_values_are_reported_with_reason_and_replacement") else {
        return;
    };
    let files = files();
    assert!(files.len() >= 60, "{files:?}");
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let (options, expected) = text.split_once("\n\n").unwrap();
        let options: Vec<&str> = options.lines().collect();
        for helm in Tool::HELM {
            let error = renderer.render(helm, "gc", &options).unwrap_err();
            let message = message_of(&error);
            if std::env::var_os("UPDATE_GOLDEN").is_some() {
                fs::write(&file, format!("{}\n\n{message}\n", options.join("\n"))).unwrap();
            } else {
                assert_eq!(message, expected.trim_end(), "{helm:?}: {}", file.display());
            }
        }
    }
}

#[test]
fn each_key_of_the_refusal_table_has_a_golden_file() {
    let table = fs::read_to_string(repository("deploy/helm/ipu-operator/templates/_refused.tpl")).unwrap();
    let keys: BTreeSet<&str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("- key: "))
        .collect();
    assert!(keys.len() >= 30, "{keys:?}");
    let options: Vec<String> = files()
        .iter()
        .map(|file| fs::read_to_string(file).unwrap())
        .collect();
    for key in keys {
        let is_set =
            |text: &String| text.contains(&format!("\n{key}=")) || text.contains(&format!("\n{key}."));
        assert!(options.iter().any(is_set), "no golden file sets {key}");
    }
}

#[test]
fn each_message_of_the_templates_has_a_golden_file() {
    let templates = fs::read_dir(repository("deploy/helm/ipu-operator/templates")).unwrap();
    let templates = templates.map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
    let templates = templates.collect::<String>();
    let in_cluster = Path::new(FOLDER).with_file_name("refusals-in-cluster");
    let in_cluster = fs::read_dir(in_cluster).unwrap().map(|file| file.unwrap().path());
    let golden: String = files()
        .into_iter()
        .chain(in_cluster)
        .map(|file| fs::read_to_string(file).unwrap())
        .collect();
    let messages: Vec<String> = templates.lines().filter_map(literal_of_failure).collect();
    assert!(messages.len() >= 38, "{messages:#?}");
    for message in messages {
        assert!(message.len() >= 12, "{message:?} is in too many texts");
        assert!(golden.contains(&message), "no golden file has {message:?}");
    }
}

/// Returns the longest text between the values of a message, if a line of a template fails with one.
fn literal_of_failure(line: &str) -> Option<String> {
    let start = ["printf \"", "fail \""]
        .into_iter()
        .find_map(|call| Some(line.find(call)? + call.len()))?;
    let is_failure = line.contains("| fail -}}") || line.contains("{{- fail \"");
    let text = is_failure.then(|| line[start..].replace("\\\"", "\u{0}"))?;
    let (text, _) = text.split_once('"')?;
    let parts = text.split('%').enumerate();
    // A value is "%" and one letter.
    let parts = parts.map(|(index, part)| if index == 0 { part } else { &part[1..] });
    let longest = parts.max_by_key(|part| part.len())?;
    Some(longest.replace('\u{0}', "\""))
}

#[test]
fn the_schema_refuses_unknown_keys_and_wrong_types() {
    let Some(renderer) = Renderer::find("the_schema_refuses_unknown_keys_and_wrong_types") else {
        return;
    };
    for (value, named) in [
        ("controller.replica=2", "replica"),
        ("vipuProxy.logLevel=7", "logLevel"),
        ("controller.maxIpusPerInstance=3", "maxIpusPerInstance"),
        ("admissionWebhooks.timeoutSeconds=31", "timeoutSeconds"),
        ("controller.image.pullPolicy=Sometimes", "pullPolicy"),
        ("worker.hostNetwork=maybe", "hostNetwork"),
        ("vipuProxy.placement=random", "placement"),
        ("vipuProxy.quotas[0].maxIpu=4", "maxIpu"),
        ("commonLabels.team=7", "team"),
        ("controller.podAnnotations.scrape=true", "scrape"),
        ("vipuProxy.priorities[0].namespace=a", "maxPriority"),
        ("serviceMonitor.interval=soon", "interval"),
        ("serviceMonitor.account=prom", "account"),
    ] {
        for helm in Tool::HELM {
            let error = renderer.render(helm, "gc", &["--set", value]).unwrap_err();
            assert!(
                error.contains("don't meet the specifications"),
                "{value}: {error}"
            );
            assert!(error.contains(named), "{value}: {error}");
        }
    }
}

/// Compares a message with `testdata/FOLDER/NAME.txt`. `UPDATE_GOLDEN=1` writes the file.
pub(super) fn assert_golden(folder: &str, name: &str, message: &str) {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let file = testdata.join(folder).join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&file, format!("{message}\n")).unwrap();
    } else {
        let expected = fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(message, expected.trim_end(), "{}", file.display());
    }
}

/// Returns the message of the chart: the text after the place of the template.
pub(super) fn message_of(error: &str) -> &str {
    let line = error
        .lines()
        .find(|line| line.contains("execution error at"))
        .unwrap_or(error);
    line.split_once("): ").map_or(line, |(_, message)| message)
}

fn files() -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> = fs::read_dir(Path::new(FOLDER))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}
