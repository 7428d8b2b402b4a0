//! The controllers of the models, as the proxy knows them.

use std::collections::BTreeMap;

use ipu_slurm::conf::ConfFiles;

/// Returns a finding for each controller of a model that is not one of `known`, the addresses at the proxy.
pub(super) fn unknown(conf: &ConfFiles, known: &[&str]) -> Vec<String> {
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, model) in conf.models() {
        let address = model.api_address();
        if !known.contains(&address.as_str()) {
            files.entry(address).or_default().push(format!("{name}.conf"));
        }
    }
    let known = match known {
        [] => "none".to_owned(),
        _ => known.join(" and "),
    };
    let finding = |(address, files): (String, Vec<String>)| {
        format!(
            "{}: ApiHost and ApiPort = {address}: the proxy has no such controller, it has {known}; write them as the \
             proxy does, or add the controller to its list",
            files.join(" and ")
        )
    };
    files.into_iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_that_the_proxy_does_not_list_is_found() {
        let vipu = "Proxy=unix:/run/vipu-proxy/socket\n";
        let model = "ApiHost=pod1\nIpuofDir=/ipuof\n";
        let conf = ConfFiles::parse(("vipu.conf", vipu), &[("pod16", model), ("pod64", model)]).unwrap();
        let fix = "write them as the proxy does, or add the controller to its list";
        for (known, expected) in [
            (&["pod1:8090", "pod2:8090"][..], None),
            (
                &["pod1.example.com:8090"][..],
                Some("the proxy has no such controller, it has pod1.example.com:8090"),
            ),
            (
                &["pod1:8091", "pod2:8090"][..],
                Some("the proxy has no such controller, it has pod1:8091 and pod2:8090"),
            ),
            (&[][..], Some("the proxy has no such controller, it has none")),
        ] {
            let place = "pod16.conf and pod64.conf: ApiHost and ApiPort = pod1:8090";
            let expected = expected.map(|rule| format!("{place}: {rule}; {fix}"));
            assert_eq!(unknown(&conf, known), Vec::from_iter(expected), "{known:?}");
        }
    }
}
