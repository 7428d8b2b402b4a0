//! Properties: valid values are accepted, and no text makes a parser panic.

use ipu_slurm::conf::{
    ClusterConf, ConfError, ConfFiles, HostMap, LicenseList, ModelConf, NodeGresList, SlurmConf,
};
use proptest::prelude::*;

const MODELS: [&str; 2] = ["pod64", "pod16"];

/// Asserts what every error has in common.
fn check(text: &str, errors: &[ConfError]) -> Result<(), TestCaseError> {
    prop_assert!(!errors.is_empty());
    let lines: Vec<&str> = text.split('\n').collect();
    for error in errors {
        let line = lines.get(error.line.wrapping_sub(1));
        let columns = line.map_or(0, |line| line.chars().count() + 1);
        prop_assert!((1..=columns).contains(&error.column), "{:?}", error);
        prop_assert!(!error.violation.rule.is_empty() && !error.violation.fix.is_empty());
        let shown = error.to_string();
        prop_assert!(
            shown.len() < 1_000 && !shown.contains(char::is_control),
            "{:?}",
            shown
        );
    }
    Ok(())
}

fn cluster_with_directory() -> ClusterConf {
    ClusterConf::parse("f", "VipuIpuofDir=/d").expect("it is valid")
}

/// Parses a text as each kind of file.
fn check_all(text: &str) -> Result<(), TestCaseError> {
    match ClusterConf::parse("f", text) {
        Ok(conf) => {
            if conf.default_model().is_some() {
                prop_assert!(ConfFiles::parse(("vipu.conf", text), &[("pod64", text)]).is_ok());
            }
        }
        Err(errors) => check(text, &errors)?,
    }
    let cluster = cluster_with_directory();
    if let Err(errors) = ModelConf::parse("f", text, &cluster) {
        check(text, &errors)?;
    }
    if let Err(errors) = HostMap::parse("f", text) {
        check(text, &errors)?;
    }
    let nodes = NodeGresList::parse(&SlurmConf::parse("f", text), &MODELS);
    let list = text.replace('\n', ",");
    for (text, errors) in [
        (text, nodes.errors()),
        (&list, LicenseList::parse("f", &list).errors().to_vec()),
    ] {
        if !errors.is_empty() {
            check(text, &errors)?;
        }
    }
    Ok(())
}

fn path() -> impl Strategy<Value = String> {
    "(/[a-zA-Z0-9_-]{1,6}){1,3}"
}

fn model() -> impl Strategy<Value = String> {
    let host = prop_oneof![
        "[a-z][a-z0-9]{0,5}(-[0-9]{1,3})?",
        Just("fd00::1".to_owned()),
        Just("10.0.0.1".to_owned())
    ];
    let switches = (0..2_u8, 0..2_u8);
    (host, 1_u16.., path(), 1..=65_536_u32, 1..=65_533_u32, switches).prop_map(
        |(host, port, dir, ipus, timeout, (force, reconfigurable))| {
            format!(
                "ApiHost={host}\nApiPort={port}\nIpuofDir={dir}\nMaxIpusPerJob={ipus}\nApiTimeout={timeout}\n\
                 ForceDeletePartition={force}\nUseReconfigPartition={reconfigurable}\n"
            )
        },
    )
}

fn cluster() -> impl Strategy<Value = String> {
    let proxy = prop_oneof![
        Just(String::new()),
        "http://[a-z]{1,5}:80".prop_map(|url| format!("Proxy={url}\n")),
        path().prop_map(|ca| format!("Proxy=https://proxy\nProxyCa={ca}\n")),
    ];
    let commands = prop_oneof![
        Just(String::new()),
        path().prop_map(|program| format!(
            "AllocationCreate={program} {{allocation}} --a={{agents}}\nAllocationRemove={program} x{{allocation}}\n"
        )),
    ];
    (path(), proxy, 0..=65_533_u32, commands, proptest::option::of(model())).prop_map(
        |(dir, proxy, wait, commands, model)| {
            let model = model.unwrap_or_default();
            format!("VipuIpuofDir={dir}\nHostMap={dir}/m\nProxyTokenFile={dir}/t\n{proxy}WaitInProlog={wait}\n{commands}{model}")
        },
    )
}

proptest! {
    #[test]
    fn valid_values_are_accepted(text in cluster(), model in model()) {
        let conf = ClusterConf::parse("f", &text).unwrap();
        prop_assert!(ModelConf::parse("f", &model, &conf).is_ok());
    }

    #[test]
    fn every_host_of_a_map_has_its_machines(sizes in proptest::collection::vec(1..9_usize, 1..9)) {
        let mut text = String::new();
        for (host, size) in sizes.iter().enumerate() {
            let machines: Vec<_> = (0..*size).map(|index| format!("m{host}-{index}")).collect();
            text += &format!("# {host}\nhost-{host}:{}\n", machines.join(","));
        }
        let map = HostMap::parse("f", &text).unwrap();
        let found: Vec<usize> = map.hosts().map(|(_, machines)| machines.len()).collect();
        prop_assert_eq!(found, sizes);
    }

    #[test]
    fn the_nodes_of_a_range_have_the_resources_of_their_line(
        order in 0..17_u32, count in 1..65_536_u32, first in 0..50_u32, more in 0..50_u32,
    ) {
        let gres = format!("vipu:{}:{count}", 1 << order);
        let text = format!("NodeName=n[{first}-{}] Gres=gpu:1,{gres}", first + more);
        let list = NodeGresList::parse(&SlurmConf::parse("f", &text), &MODELS);
        prop_assert_eq!(list.nodes().len(), more as usize + 1);
        prop_assert!(list.nodes().iter().all(|node| node.gres()[0].to_string() == gres));
    }

    #[test]
    fn no_text_makes_a_parser_panic(text in "(?s).{0,200}") {
        check_all(&text)?;
    }

    #[test]
    fn similar_texts_round_trip_or_are_refused_with_a_position(
        words in proptest::collection::vec(prop_oneof![
            Just("\n"), Just(" "), Just("="), Just(":"), Just(","), Just("#"), Just("|"), Just("\\\n"), Just("\r\n"),
            Just("ApiHost="), Just("apiport="), Just("IpuofDir=/d"), Just("Proxy=http://a"), Just("ProxyCa=/c"),
            Just("AllocationCreate=/c {allocation} {agents}"), Just("AllocationRemove=/r {allocation}"), Just("{"),
            Just("NodeName="), Just("Gres=vipu:"), Just("no_consume:"), Just("pod64"), Just("[1-3]"), Just("64"),
            Just("host-1:"), Just("ipum1"), Just("é"), Just("\u{a0}"), Just("\u{feff}"), Just("0"), Just("@"), Just("("),
        ], 0..30)
    ) {
        check_all(&words.concat())?;
    }
}
