//! Configuration files of the Slurm integration.

use ipu_slurm::conf::{
    ClusterConf, ConfError, ConfFiles, HostMap, LicenseList, ModelConf, NodeGresList, SlurmConf,
};

use crate::error_messages::{check_error, text};

/// The models of the corpus.
const MODELS: &[&str] = &["pod64"];

/// Parses the input as `vipu.conf`, `<model>.conf`, host map, node lines and license list.
///
/// # Panics
///
/// If an error points outside the text.
pub fn slurm_conf(bytes: &[u8]) {
    let text = &text(bytes);
    let cluster = ClusterConf::parse("f", text).map_err(|errors| check_errors(text, &errors));
    if cluster.is_ok_and(|cluster| cluster.default_model().is_some()) {
        // <model>.conf may be a link to vipu.conf.
        let files = ConfFiles::parse(("vipu.conf", text), &[("pod64", text)]).expect("a link is valid");
        assert_eq!(files.model("pod64"), files.cluster().default_model());
    }
    let default = ClusterConf::parse("f", "VipuIpuofDir=/d").expect("it is valid");
    if let Err(errors) = ModelConf::parse("f", text, &default) {
        check_errors(text, &errors);
    }
    match HostMap::parse("f", text) {
        Ok(map) => {
            for (host, machines) in map.hosts() {
                assert!(!machines.is_empty());
                assert!(machines.iter().all(|machine| map.host_of(machine) == Some(host)));
            }
        }
        Err(errors) => check_errors(text, &errors),
    }
    let nodes = NodeGresList::parse(&SlurmConf::parse("f", text), MODELS);
    assert!(nodes.nodes().iter().all(|node| !node.gres().is_empty()));
    let list = text.replace('\n', ",");
    let licenses = LicenseList::parse("f", &list);
    for (text, errors) in [
        (&**text, nodes.errors()),
        (list.as_str(), licenses.errors().to_vec()),
    ] {
        if !errors.is_empty() {
            check_errors(text, &errors);
        }
    }
}

/// Asserts what all errors have in common.
fn check_errors(text: &str, errors: &[ConfError]) {
    assert!(!errors.is_empty());
    for error in errors {
        check_error(error, 200);
        let line = text.split('\n').nth(error.line - 1).expect("the line exists");
        let columns = 1..=line.chars().count() + 1;
        assert!(columns.contains(&error.column), "{error:?}");
    }
}
