//! Golden tests of whole files in `tests/data/conf`: the listings of the Slurm guide, and files with
//! mistakes. `UPDATE=1` writes the results.

use std::fs;
use std::path::Path;

use ipu_core::job::ErrorList;
use ipu_slurm::conf::{
    ClusterConf, ConfError, ConfFiles, HostMap, ModelConf, NodeGres, NodeGresList, SlurmConf,
};

use super::shown;

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/conf")
        .join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Compares errors with those in `<name>.errors`.
#[track_caller]
fn assert_errors<T: std::fmt::Debug>(name: &str, result: Result<T, ErrorList<ConfError>>) {
    let actual = shown(&result.expect_err("the file has errors"));
    let golden = format!("{name}.errors");
    if std::env::var_os("UPDATE").is_some() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/conf");
        fs::write(directory.join(&golden), &actual).expect("write the errors");
    }
    assert_eq!(actual, read(&golden), "UPDATE=1 accepts the actual errors");
}

#[test]
fn the_guides_vipu_conf_has_the_documented_values_and_defaults() {
    let text = read("guide-vipu.conf");
    let files = ConfFiles::parse(("vipu.conf", &text), &[("pod64", &text)]).unwrap();
    // pod64.conf is a link to vipu.conf.
    let model = files.model("pod64").unwrap();
    assert_eq!(files.cluster().default_model(), Some(model));
    assert_eq!(
        files.models().map(|(name, _)| name).collect::<Vec<_>>(),
        ["pod64", "vipu"]
    );
    assert_eq!(model.api_address(), "ipu-pod64-001:8090");
    assert_eq!((model.api_host(), model.api_port()), ("ipu-pod64-001", 8090));
    assert_eq!((model.ipuof_dir(), model.max_ipus_per_job()), ("/home/ipuof", 64));
    assert_eq!(model.api_timeout().as_secs(), 50);
    assert!(!model.force_delete_partition() && !model.use_reconfig_partition());
    let cluster = files.cluster();
    assert_eq!(
        (cluster.proxy(), cluster.host_map(), cluster.vipu_ipuof_dir()),
        (None, None, None)
    );
    assert_eq!(cluster.wait_in_prolog().as_secs(), 600);
}

/// Returns the nodes of a file, or their errors.
fn nodes(file: &str, text: &str, models: &[&str]) -> Result<String, ErrorList<ConfError>> {
    let list = NodeGresList::parse(&SlurmConf::parse(file, text), models);
    let line = |node: &NodeGres| {
        let gres: Vec<String> = node.gres().iter().map(ToString::to_string).collect();
        format!("{} {}\n", node.name(), gres.join(","))
    };
    match list.errors() {
        errors if errors.is_empty() => Ok(list.nodes().iter().map(line).collect()),
        errors => Err(errors.into()),
    }
}

#[test]
fn the_guides_plugin_file_has_four_nodes_of_its_model() {
    let text = read("guide-v-ipu-plugin.conf");
    let lines = (1..=4).map(|i| format!("ipu-pod64-00{i} vipu:pod64:no_consume:64\n"));
    assert_eq!(nodes("f", &text, &["pod64"]), Ok(lines.collect()));
}

#[test]
fn the_guides_slurm_conf_has_four_nodes_with_static_partitions() {
    let expected = "host-1 vipu:1:16\nhost-2 vipu:2:8\nhost-3 vipu:16:1\nhost-4 vipu:4:4\n";
    assert_eq!(
        nodes("f", &read("guide-slurm.conf"), &[]),
        Ok(expected.to_owned())
    );
}

#[test]
fn the_guides_typo_pod6_names_the_model_that_has_a_file() {
    let list = nodes("v-ipu-plugin.conf", &read("typo-v-ipu-plugin.conf"), &["pod64"]);
    assert_errors("typo-v-ipu-plugin.conf", list);
    // Here the name of the file has the typo.
    let errors = nodes("f", &read("guide-v-ipu-plugin.conf"), &["pod6"]).unwrap_err();
    assert!(shown(&errors).contains("the model pod64 has no file pod64.conf; did you mean pod6?"));
    assert_eq!(errors.len(), 4);
}

#[test]
fn the_key_that_the_guide_puts_into_slurm_conf_is_read_from_vipu_conf() {
    let text = read("guide-vipu.conf").replace("IpuofDir", "VipuIpuofDir");
    let cluster = ClusterConf::parse("vipu.conf", &text).unwrap();
    assert_eq!(cluster.vipu_ipuof_dir(), Some("/home/ipuof"));
    assert_eq!(cluster.default_model().unwrap().ipuof_dir(), "/home/ipuof");
    let model = ModelConf::parse("pod16.conf", "ApiHost=10.1.3.101\n", &cluster).unwrap();
    assert_eq!(
        (model.ipuof_dir(), model.max_ipus_per_job()),
        ("/home/ipuof", 256)
    );
}

#[test]
fn the_guides_plugin_file_is_no_vipu_conf() {
    let errors = ClusterConf::parse("v-ipu-plugin.conf", &read("guide-v-ipu-plugin.conf")).unwrap_err();
    // VipuIpuofDir alone is known.
    assert_eq!(
        errors.iter().map(|error| error.line).collect::<Vec<_>>(),
        [1, 2, 3, 5, 7, 8, 9, 10, 12]
    );
}

#[test]
fn every_mistake_of_vipu_conf_is_reported_at_once() {
    let text = read("mistakes-vipu.conf");
    assert_errors("mistakes-vipu.conf", ClusterConf::parse("vipu.conf", &text));
}

#[test]
fn messages_repeat_neither_a_password_nor_a_token() {
    let errors = shown(&ClusterConf::parse("vipu.conf", &read("mistakes-vipu.conf")).unwrap_err());
    assert!(
        !errors.contains("secret") && !errors.contains("s3cr3t"),
        "{errors}"
    );
    for line in [
        "ProxyToken=s3cr3t",
        "Proxi=http://me:s3cr3t@proxy",
        "Proxy=http://me:s3cr3t@proxy x",
        "Proxy=me:s3cr3t@proxy\nProxy=me:s3cr3t@proxy",
        "ProxyToken s3cr3t",
    ] {
        let errors = shown(&ClusterConf::parse("vipu.conf", line).unwrap_err());
        assert!(!errors.contains("s3cr3t"), "{errors}");
    }
}

#[test]
fn every_mistake_of_a_host_map_is_reported_at_once() {
    assert_errors(
        "mistakes-ipum.allocs",
        HostMap::parse("ipum.allocs", &read("mistakes-ipum.allocs")),
    );
}

#[test]
fn a_host_map_has_comments_and_empty_lines() {
    let map = HostMap::parse("ipum.allocs", &read("ipum.allocs")).unwrap();
    let machines = map.machines("host-2").unwrap();
    assert_eq!(machines.len(), 4);
    assert_eq!(map.host_of(&machines[0]), Some("host-2"));
    assert_eq!(map.machines("host-3"), None);
    let hosts: Vec<(&str, usize)> = map
        .hosts()
        .map(|(host, machines)| (host, machines.len()))
        .collect();
    assert_eq!(hosts, [("host-1", 4), ("host-2", 4)]);
}

#[test]
fn every_mistake_of_node_lines_is_reported_at_once() {
    let list = nodes("slurm.conf", &read("mistakes-slurm.conf"), &["pod64"]);
    assert_errors("mistakes-slurm.conf", list);
}
