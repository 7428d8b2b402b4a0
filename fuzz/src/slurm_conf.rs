//! Configuration files of the Slurm integration.

use std::fmt::{Debug, Display};

use ipu_slurm::conf::{ClusterConf, ConfError, ConfFiles, HostMap, LicenseList, ModelConf, NodeGresList, SlurmConf};

use crate::error_messages::{check_error, text};

/// The models of the corpus.
const MODELS: &[&str] = &["pod64"];

/// Parses the input as `vipu.conf`, `<model>.conf`, host map, node lines and license list.
///
/// # Panics
///
/// If a parsed value does not round-trip, or an error points outside the text.
pub fn slurm_conf(bytes: &[u8]) {
    let text = &text(bytes);
    let cluster = assert_round_trip(text, |text| ClusterConf::parse("f", text));
    if cluster.is_some_and(|cluster| cluster.default_model().is_some()) {
        // <model>.conf may be a link to vipu.conf.
        let files = ConfFiles::parse(("vipu.conf", text), &[("pod64", text)]).expect("a link is valid");
        assert_eq!(files.model("pod64"), files.cluster().default_model());
    }
    let default = ClusterConf::parse("f", "VipuIpuofDir=/d").expect("it is valid");
    assert_round_trip(text, |text| ModelConf::parse("f", text, &default));
    if let Some(map) = assert_round_trip(text, |text| HostMap::parse("f", text)) {
        for (host, machines) in map.hosts() {
            assert!(!machines.is_empty());
            assert!(machines.iter().all(|machine| map.host_of(machine) == Some(host)));
        }
    }
    let nodes = NodeGresList::parse(&SlurmConf::parse("f", text), MODELS);
    assert!(nodes.nodes().iter().all(|node| !node.gres().is_empty()));
    let list = text.replace('\n', ",");
    let licenses = LicenseList::parse("f", &list);
    for (text, errors) in [(text, nodes.errors()), (&list, licenses.errors().to_vec())] {
        if !errors.is_empty() {
            check_errors(text, &errors);
        }
    }
}

/// Parses `text`, and what the result prints. Returns the value; none if the text is refused.
fn assert_round_trip<T: Display + Debug + PartialEq>(
    text: &str,
    parse: impl Fn(&str) -> Result<T, Vec<ConfError>>,
) -> Option<T> {
    match parse(text) {
        Ok(value) => {
            assert_eq!(parse(&value.to_string()).as_ref(), Ok(&value));
            Some(value)
        }
        Err(errors) => {
            check_errors(text, &errors);
            None
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
