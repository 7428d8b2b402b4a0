//! `ipuctl render`: golden files in `testdata/render`, and invalid input.

use std::path::Path;

use serde_json::Value;

use crate::harness::{Home, example};

/// Answer of the controller in the RDMA guide §8.3, in the network of its listing 5.2.
const CONTROLLER: &str = r#"{"version": "1.18.0", "host": "10.247.208.2:8090"}"#;

const MACVLAN: [&str; 4] = ["render", "macvlan", "--iface", "ens1f0"];

fn golden(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/render");
    std::fs::read_to_string(folder.join(name)).unwrap()
}

#[test]
fn macvlan_prints_the_documented_network() {
    let home = Home::new();
    let file = home.file("version.json", CONTROLLER).display().to_string();
    for source in [
        &["--cidr", "10.247.208.0/24"][..],
        &["--server-version-json", &file],
        &["--server-version-json", &file, "--cidr", "10.247.208.0/24"],
        &["--cidr", "10.247.208.0/24", "--exclude", "10.247.208.0/25"],
    ] {
        let done = home.run(&[&MACVLAN[..], source].concat());
        assert_eq!(
            (done.code, done.out.as_str()),
            (0, &*golden("macvlan.yaml")),
            "{done:?}"
        );
    }
}

#[test]
fn the_example_is_the_output_of_its_command() {
    let text = std::fs::read_to_string(example("kubernetes/no-host-network/macvlan-network.yaml")).unwrap();
    let without_comments: String = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| format!("{line}\n"))
        .collect();
    assert_eq!(without_comments, golden("macvlan.yaml"));
}

#[test]
fn macvlan_needs_no_controller_and_no_proxy() {
    let home = Home::new();
    let arguments = ["--proxy", "http://127.0.0.1:1", "--vipu", "127.0.0.1:1"];
    let done = home.run(&[&arguments[..], &MACVLAN, &["--cidr", "10.247.208.0/24"]].concat());
    assert_eq!(done.out, golden("macvlan.yaml"), "{done:?}");
}

#[test]
fn macvlan_reads_the_output_of_server_version() {
    let home = Home::new();
    let version = home.run(&["server-version", "--json"]);
    let file = home.file("version.json", &version.out).display().to_string();
    let done = home.run(
        &[
            &MACVLAN[..],
            &["--server-version-json", &file, "--cidr", "10.0.0.0/8"],
        ]
        .concat(),
    );
    assert_eq!(done.code, 0, "{done:?}");
}

#[test]
fn macvlan_prints_several_exclusions_and_another_name_in_each_format() {
    let home = Home::new();
    let options = [
        "--cidr",
        "10.1.0.0/16",
        "--exclude",
        "10.1.0.0/24",
        "--exclude",
        "10.1.9.9/32",
        "--name",
        "ipu-net",
        "--namespace",
        "research",
    ];
    let text = home.run(&[&MACVLAN[..], &options].concat()).out;
    assert!(
        text.contains("  name: ipu-net\nspec:\n  networkNamespace: \"research\"\n"),
        "{text}"
    );
    let json = home.run(&[&MACVLAN[..], &options, &["-o", "json"]].concat()).out;
    let json: Value = serde_json::from_str(&json).unwrap();
    let ipam: Value = serde_json::from_str(json["spec"]["ipam"].as_str().unwrap()).unwrap();
    assert_eq!(ipam["range"], "10.1.0.0/16");
    assert_eq!(ipam["exclude"], serde_json::json!(["10.1.0.0/24", "10.1.9.9/32"]));
    assert_eq!(json["metadata"]["name"], "ipu-net");
}

#[test]
fn macvlan_names_invalid_input_with_the_rule_and_a_fix() {
    let home = Home::new();
    let file = |name: &str, text: &str| home.file(name, text).display().to_string();
    let named = file(
        "named.json",
        r#"{"version": "1.18.0", "host": "vipu.example.com:8090"}"#,
    );
    let high = file(
        "high.json",
        r#"{"version": "1.18.0", "host": "10.247.208.200:8090"}"#,
    );
    let empty = file("empty.json", "{}");
    for (code, options, expected) in [
        (64, &[][..], "set --cidr, for example --cidr 10.247.208.0/24"),
        (
            64,
            &["--cidr", "10.247.208.0"],
            "use 10.247.208.0/24, for example",
        ),
        (64, &["--cidr", "fd00::/64"], "must be an IPv4 network"),
        (64, &["--cidr", "10.247.208.7/24"], "use 10.247.208.0/24"),
        (
            64,
            &["--cidr", "10.0.0.0/24", "--iface", "a/b"],
            "use ens1f0, for example",
        ),
        (
            64,
            &["--cidr", "10.0.0.0/24", "--name", "Rdma"],
            "use rdma-net, for example",
        ),
        (65, &["--cidr", "10.0.0.0/26"], "--cidr 10.0.0.0/26 has only"),
        (
            65,
            &["--cidr", "10.0.0.0/24", "--exclude", "10.0.0.0/24"],
            "leaves no address of 10.0.0.0/24",
        ),
        (
            65,
            &["--cidr", "10.0.0.0/24", "--exclude", "10.0.1.0/25"],
            "10.0.1.0/25 is not in 10.0.0.0/24",
        ),
        (
            65,
            &["--server-version-json", &named],
            "host = \"vipu.example.com\"",
        ),
        (
            65,
            &["--server-version-json", &high],
            "--exclude 10.247.208.200/32",
        ),
        (65, &["--server-version-json", &empty], "missing field `host`"),
        (66, &["--server-version-json", "/none.json"], "read /none.json"),
    ] {
        let iface = if options.contains(&"--iface") {
            &MACVLAN[..2]
        } else {
            &MACVLAN[..]
        };
        let done = home.run(&[iface, options].concat());
        assert_eq!(done.code, code, "{options:?}: {done:?}");
        assert!(done.err.contains(expected), "{options:?}: {}", done.err);
        assert_eq!(done.out, "", "{options:?}");
    }
}

#[test]
fn a_name_that_reads_as_a_number_or_a_truth_value_is_quoted() {
    let home = Home::new();
    for name in ["100", "1e3", "true", "y", "1-2", "0x1f", "null"] {
        let options = ["--cidr", "10.1.0.0/16", "--name", name];
        let text = home.run(&[&MACVLAN[..], &options].concat()).out;
        assert!(text.contains(&format!("\n  name: \"{name}\"\n")), "{text}");
    }
}

#[test]
fn macvlan_warns_if_it_does_not_know_the_address_of_the_controller() {
    let home = Home::new();
    let version = |host: &str| {
        let text = format!(r#"{{"version": "1.18.0", "host": "{host}:8090"}}"#);
        home.file(&format!("{host}.json"), &text).display().to_string()
    };
    let (named, known) = (version("vipu-server"), version("10.1.0.2"));
    let cidr = ["--cidr", "10.1.0.0/16"];
    for (options, expected) in [
        (&[][..], "warning: the address of the controller is not known"),
        (
            &["--server-version-json", &named],
            "warning: the address of the controller vipu-server is not known",
        ),
    ] {
        let done = home.run(&[&MACVLAN[..], &cidr, options].concat());
        assert_eq!(done.code, 0, "{done:?}");
        assert!(done.err.contains(expected), "{done:?}");
    }
    let done = home.run(&[&MACVLAN[..], &cidr, &["--server-version-json", &known]].concat());
    assert_eq!((done.code, done.err.as_str()), (0, ""));
}

#[test]
fn memlock_prints_the_drop_in_of_each_runtime() {
    let home = Home::new();
    for runtime in ["containerd", "k3s", "k3s-agent", "docker"] {
        let done = home.run(&["render", "memlock", "--runtime", runtime]);
        assert_eq!(
            (done.code, done.out),
            (0, golden(&format!("memlock-{runtime}.conf"))),
            "{runtime}"
        );
        let json = home
            .run(&["render", "memlock", "--runtime", runtime, "-o", "json"])
            .out;
        let json: Value = serde_json::from_str(&json).unwrap();
        let path = format!("/etc/systemd/system/{runtime}.service.d/memlock.conf");
        assert_eq!(json["path"], path);
    }
    let done = home.run(&["render", "memlock", "--runtime", "podman"]);
    assert_eq!(done.code, 64, "{done:?}");
    assert!(
        done.err.contains("containerd, k3s, k3s-agent, docker"),
        "{}",
        done.err
    );
}
