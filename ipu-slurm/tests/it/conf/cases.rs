//! Single rules of `vipu.conf` and `<model>.conf`, as tables.

use ipu_core::{AgentId, AllocationId};
use ipu_slurm::conf::{ClusterConf, ConfFiles, ModelConf};

use super::shown;

const MODEL: &str = "ApiHost=a\nIpuofDir=/d\n";

fn cluster(text: &str) -> Result<ClusterConf, String> {
    ClusterConf::parse("vipu.conf", text).map_err(|errors| shown(&errors))
}

#[test]
fn keys_ignore_case_and_white_space_around_them() {
    let text = "\t apihost = a \r\n# ApiHost=b\nIPUOFDIR=/d\t# a comment\n\n   #\nApiPort=1";
    let model = cluster(text).unwrap().default_model().unwrap().clone();
    assert_eq!((model.api_address().as_str(), model.ipuof_dir()), ("a:1", "/d"));
}

#[test]
fn hosts_are_names_or_addresses_without_port() {
    for (host, address) in [
        ("ipu-pod64-001", "ipu-pod64-001:8090"),
        ("vipu_1.example.org", "vipu_1.example.org:8090"),
        ("10.1.3.101", "10.1.3.101:8090"),
        ("fd00::1", "[fd00::1]:8090"),
    ] {
        let text = format!("ApiHost={host}\nIpuofDir=/d");
        assert_eq!(
            cluster(&text).unwrap().default_model().unwrap().api_address(),
            address
        );
    }
    for host in [
        "a:8090", "[::1]", "http://a", "10.1.3", "-a", "a..b", "a-", "hö", "a/b", "a\u{a0}b",
    ] {
        let errors = cluster(&format!("ApiHost={host}\nIpuofDir=/d")).unwrap_err();
        assert!(errors.starts_with("vipu.conf:1:"), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}

#[test]
fn the_directory_of_a_pool_has_the_name_of_its_node() {
    let conf = cluster("PoolDir=/var/lib/ipu-pool/%n").unwrap();
    assert_eq!(
        conf.pool_dir("host-1").as_deref(),
        Some("/var/lib/ipu-pool/host-1")
    );
    assert_eq!(cluster("").unwrap().pool_dir("host-1"), None);
    let errors = cluster("PoolDir=data").unwrap_err();
    assert!(errors.starts_with("vipu.conf:1:9: PoolDir = data: "), "{errors}");
}

#[test]
fn numbers_have_bounds() {
    for (key, valid, invalid) in [
        ("ApiPort", ["1", "65535"], ["0", "65536"]),
        ("MaxIpusPerJob", ["1", "65536"], ["0", "65537"]),
        ("ApiTimeout", ["1", "65533"], ["0", "65534"]),
        ("WaitInProlog", ["0", "65533"], ["65534", "99999999999999999999"]),
        ("EveryJobHasOne", ["0", "1"], ["2", "yes"]),
        ("OnePartitionPerTask", ["0", "1"], ["2", "no"]),
        ("ForceDeletePartition", ["0", "1"], ["2", "true"]),
        ("UseReconfigPartition", ["0", "1"], ["-1", "+1"]),
    ] {
        for value in valid {
            assert!(cluster(&format!("{MODEL}{key}={value}")).is_ok(), "{key}={value}");
        }
        for value in invalid.into_iter().chain(["1e3", "+1", "x", "0x1", "1.0"]) {
            let errors = cluster(&format!("{MODEL}{key}={value}")).unwrap_err();
            let column = key.len() + 2;
            assert!(
                errors.starts_with(&format!("vipu.conf:3:{column}: {key} = {value}: ")),
                "{errors}"
            );
        }
    }
}

#[test]
fn a_feature_of_nodes_is_one_name() {
    let conf = |value: &str| cluster(&format!("{MODEL}NodeFeature={value}"));
    assert!(conf("pod64-ib").is_ok());
    for value in ["a&b", "a,b", "-a", "a|b"] {
        let errors = conf(value).unwrap_err();
        assert!(errors.contains("must be one Feature of nodes"), "{errors}");
    }
}

#[test]
fn the_url_of_the_proxy_follows_the_rules_of_its_client() {
    for url in [
        "http://proxy",
        "http://10.0.0.1:8080/",
        "http://[::1]:8080",
        "http://gate/ipu/v1",
        "unix:/run/vipu-proxy/socket",
    ] {
        assert_eq!(cluster(&format!("Proxy={url}")).unwrap().proxy(), Some(url));
    }
    let tls = cluster("Proxy=https://proxy\nProxyCa=/ca.pem").unwrap();
    assert_eq!(tls.proxy_ca(), Some("/ca.pem"));
    for url in [
        "proxy:8080",
        "http://",
        "http://:80",
        "http://a:0",
        "http://a:",
        "http://a:65536",
        "ftp://a",
        "http://a?b",
        "http://a/b?c",
        "http://u@a",
        "http://[::1",
        "http://[a]:1",
        "HTTP://a",
        "https://a",
        "unix:",
        "unix:/",
        "unix:socket",
    ] {
        assert!(cluster(&format!("Proxy={url}")).is_err(), "{url}");
    }
    let errors = cluster("Proxy=http://proxy\nProxyCa=/ca.pem").unwrap_err();
    assert!(
        errors.starts_with("vipu.conf:2:9: ProxyCa = /ca.pem: Proxy has no TLS; "),
        "{errors}"
    );
}

#[test]
fn a_command_is_an_argument_vector_with_placeholders() {
    let text = "AllocationCreate=/bin/vipu-admin  create allocation {allocation} --agents={agents}\n\
                AllocationRemove=/bin/vipu-admin remove allocation {allocation} # the end";
    let cluster = cluster(text).unwrap();
    let commands = cluster.allocation_commands().unwrap();
    let agents = ["ipum1", "{allocation}"].map(|agent| AgentId::new(agent).unwrap());
    let allocation = AllocationId::new("c{agents}").unwrap();
    assert_eq!(
        commands.create.argv(&allocation, &agents),
        [
            "/bin/vipu-admin",
            "create",
            "allocation",
            "c{agents}",
            "--agents=ipum1,{allocation}"
        ]
    );
    assert_eq!(commands.remove.argv(&allocation, &[])[3], "c{agents}");
}

#[test]
fn a_command_that_cannot_work_is_refused() {
    const REMOVE: &str = "\nAllocationRemove=/r {allocation}";
    for (create, rule) in [
        ("create {allocation} {agents}", "must be an absolute path"),
        ("/c {allocation}", "must contain {agents}"),
        ("/c {agents}", "must contain {allocation}"),
        ("/c {allocation} {agents} {job}", "is not a placeholder"),
        ("/c {allocation} {agents} }", "is not a placeholder"),
        ("/c{allocation} {agents}", "a program has no placeholder"),
        (
            "/c {allocation} {agents} > /dev/null",
            "no shell runs the command",
        ),
        ("/c {allocation} $({agents})", "no shell runs the command"),
        ("/c '{allocation}' {agents}", "a value has no quotation marks"),
    ] {
        let errors = cluster(&format!("AllocationCreate={create}{REMOVE}")).unwrap_err();
        assert!(
            errors.starts_with("vipu.conf:1:") && errors.contains(rule),
            "{errors}"
        );
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    let errors = cluster(&REMOVE[1..]).unwrap_err();
    assert!(errors.contains("needs AllocationCreate too"), "{errors}");
}

#[test]
fn absent_keys_that_have_no_default_are_reported() {
    let errors = cluster("ApiPort=8090").unwrap_err();
    assert!(
        errors.starts_with("vipu.conf:1:1: ApiHost is absent: "),
        "{errors}"
    );
    assert!(
        errors.contains("\nvipu.conf:1:1: IpuofDir is absent: "),
        "{errors}"
    );
    // A file of cluster keys alone describes no model.
    assert!(cluster("VipuIpuofDir=/d").unwrap().default_model().is_none());
    assert!(cluster("").is_ok());
}

#[test]
fn a_refused_value_is_not_absent_too() {
    for text in [
        "ApiHost=\nIpuofDir=/d",
        "ApiHost=a b\nIpuofDir=/d",
        "ApiHost=a\nIpuofDir=d",
        "ApiHost=a\nVipuIpuofDir=d",
    ] {
        let errors = cluster(text).unwrap_err();
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    let files = ConfFiles::parse(("vipu.conf", "VipuIpuofDir=d"), &[("pod64", "ApiHost=a")]);
    assert_eq!(files.unwrap_err().len(), 1);
}

#[test]
fn a_models_file_may_repeat_the_cluster_but_not_contradict_it() {
    let text = format!("{MODEL}Proxy=http://a\nWaitInProlog=60\n");
    let cluster = cluster(&text).unwrap();
    assert!(ModelConf::parse("pod64.conf", &text, &cluster).is_ok());
    let other = text.replace("=60", "=61").replace("//a", "//b");
    let errors = shown(&ModelConf::parse("pod64.conf", &other, &cluster).unwrap_err());
    let rule = "is a key of the cluster and differs from vipu.conf; set it in vipu.conf only";
    assert_eq!(
        errors,
        format!("pod64.conf:3:7: Proxy = http://b: {rule}\npod64.conf:4:14: WaitInProlog = 61: {rule}\n")
    );
}

#[test]
fn all_files_are_checked_and_names_of_models_are_distinct() {
    let models = [
        ("pod64", "ApiHots=a"),
        ("pod64", MODEL),
        ("vipu", MODEL),
        ("../x", MODEL),
        ("pod16", MODEL),
    ];
    let errors = shown(&ConfFiles::parse(("vipu.conf", "x"), &models).unwrap_err());
    for (file, rule) in [
        ("vipu.conf:1:1: line", "has no '='"),
        ("pod64.conf:1:1: ApiHots", "did you mean ApiHost?"),
        ("pod64.conf:1:1: model = pod64", "the model is given twice"),
        ("vipu.conf:1:1: model = vipu", "vipu is the model of vipu.conf"),
        ("../x.conf:1:1: model = ../x", "rename the file"),
    ] {
        assert!(
            errors
                .lines()
                .any(|line| line.starts_with(file) && line.contains(rule)),
            "{file}: {errors}"
        );
    }
    assert!(!errors.contains("pod16"), "{errors}");
}
