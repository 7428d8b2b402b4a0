//! Golden files of the Slurm guide §8.5.4 for each version of Slurm. `UPDATE=1` writes them.

use std::fs;

use ipu_slurm::render::{RenderInput, RenderOptions, render};

use super::{NODE, SLURM_CONF, conf, data, findings, input, read};

#[test]
fn the_guides_example_is_rendered_for_every_version() {
    let plugin = read("conf/guide-v-ipu-plugin.conf");
    let vipu = read("conf/guide-vipu.conf");
    for version in ["22.05", "24.11", "26.05"] {
        let rendered = render(&RenderInput {
            version: version.parse().unwrap(),
            slurm_conf: conf(SLURM_CONF, &[("v-ipu-plugin.conf", &plugin)]),
            vipu_conf: ("vipu.conf", &vipu),
            // pod64.conf is a link to vipu.conf.
            models: &[("pod64", &vipu)],
            host_map: None,
            gres_conf: "",
            plugstack_conf: "",
            options: RenderOptions::default(),
        })
        .unwrap();
        let actual = format!(
            "{rendered}\n{}\n\n{}\n",
            findings(&rendered).join("\n"),
            rendered.notes.join("\n")
        );
        let golden = format!("render/guide-{version}.txt");
        if std::env::var_os("UPDATE").is_some() {
            fs::write(data(&golden), &actual).unwrap();
        }
        assert_eq!(actual, read(&golden), "UPDATE=1 accepts the actual text");
    }
}

#[test]
fn the_typo_of_the_guide_pod6_is_reported_with_its_place() {
    let plugin = read("conf/typo-v-ipu-plugin.conf");
    let errors = render(&RenderInput {
        slurm_conf: conf(SLURM_CONF, &[("v-ipu-plugin.conf", &plugin)]),
        ..input("")
    })
    .unwrap_err();
    let shown: String = errors.iter().map(|error| format!("{error}\n")).collect();
    assert_eq!(shown, read("conf/typo-v-ipu-plugin.conf.errors"));
}

#[test]
fn a_version_that_loses_licenses_is_noted() {
    for (version, loses) in [
        ("24.11.5", false),
        ("25.05", true),
        ("slurm 25.11.6", true),
        ("25.11", true),
        ("slurm-wlm 25.11.7", false),
        ("26.05.5", false),
    ] {
        let mut input = input(NODE);
        input.version = version.parse().unwrap();
        assert_eq!(input.version.loses_licenses(), loses, "{version}");
        let notes = render(&input).unwrap().notes.join("\n");
        assert_eq!(notes.contains("loses the licenses"), loses, "{notes}");
    }
}
