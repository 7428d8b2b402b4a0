//! `ipuctl partition` without a proxy.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::harness::{Home, Running};

#[test]
fn a_partition_is_created_reset_and_removed() {
    let home = Home::new();
    let create = [
        "partition",
        "create",
        "p4",
        "--size",
        "4",
        "--num-gcds",
        "2",
        "-n",
        "team",
    ];
    let created = home.run(&create);
    assert_eq!(created.code, 0, "{created:?}");
    let listed = home.json(&["partition", "list"]);
    assert_eq!(listed[0]["id"], "p4");
    assert_eq!(
        (&listed[0]["size"], &listed[0]["gcds"], &listed[0]["state"]),
        (&json!(4), &json!(2), &json!("active"))
    );
    assert_eq!(
        (&listed[0]["owner"]["kind"], &listed[0]["owner"]["namespace"]),
        (&json!("User"), &json!("team"))
    );
    assert!(home.run(&["partition", "list"]).out.contains("p4"));
    let config: Value =
        serde_json::from_str(&home.run(&["partition", "config", "p4", "--gcd", "1"]).out).unwrap();
    assert_eq!(config["attributes"]["GCD Id"], "1");
    assert!(!config["devices"].as_array().unwrap().is_empty());
    let reset = home.run(&["partition", "reset", "p4"]);
    assert_eq!(reset.code, 0, "{reset:?}");
    let shown = home.json(&["partition", "get", "p4"]);
    assert_eq!(
        (&shown["state"], &shown["attempt"]),
        (&json!("active"), &json!(1))
    );
    assert_eq!(home.json(&["query", "8"])["numOfPartitions"], 1);
    assert_eq!(home.run(&["gc"]).code, 0);
    assert_eq!(
        home.json(&["partition", "list"]).as_array().unwrap().len(),
        1,
        "gc keeps the partition"
    );
    let removed = home.run(&["partition", "remove", "p4"]);
    assert_eq!(removed.code, 0, "{removed:?}");
    home.assert_nothing_held();
    assert_eq!(home.run(&["partition", "get", "p4"]).code, 66);
    assert_eq!(home.run(&["partition", "remove", "p4"]).code, 66);
    let large = home.run(&["partition", "create", "large", "--size", "64"]);
    assert_eq!(large.code, 78, "{large:?}");
    let reason = "partition large can never fit: 64 IPUs requested, the largest possible partition is 16";
    assert!(large.err.contains(reason), "{large:?}");
    let large = home.run(&["partition", "create", "large", "--size", "64", "--no-wait"]);
    assert!(large.code == 78 && large.err.contains(reason), "{large:?}");
    home.assert_nothing_held();
}

#[test]
fn partitions_are_listed_as_table_wide_table_and_names() {
    let home = Home::new();
    let empty = home.run(&["partition", "list"]);
    assert_eq!(
        (empty.code, empty.out.as_str()),
        (0, ""),
        "a script reads no header: {empty:?}"
    );
    assert!(empty.err.ends_with("No partitions found.\n"), "{empty:?}");
    for id in ["first", "second"] {
        assert_eq!(home.run(&["partition", "create", id, "--size", "4"]).code, 0);
    }
    let table = home.run(&["partition", "list"]).out;
    let columns: Vec<&str> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(
        columns,
        ["PARTITION", "STATE", "SIZE", "IPUS", "CONTROLLER", "OWNER", "AGE"]
    );
    let row: Vec<&str> = table.lines().nth(2).unwrap().split_whitespace().collect();
    assert_eq!(
        row[..5],
        ["second", "active", "4", "0:4-7", "simulated-pod16"],
        "{table}"
    );
    assert!(row[5].ends_with("/second") && row[6].ends_with('s'), "{table}");
    let wide = home.run(&["partition", "list", "-o", "wide"]).out;
    assert!(wide.lines().next().unwrap().ends_with("REASON"), "{wide}");
    assert_eq!(
        home.run(&["partition", "list", "-o", "name"]).out,
        "first\nsecond\n"
    );
    assert_eq!(
        home.run(&["partition", "get", "first", "-o", "name"]).out,
        "first\n"
    );
    let unsupported = home.run(&["partition", "create", "third", "--size", "4", "-o", "name"]);
    assert_eq!(unsupported.code, 64, "{unsupported:?}");
    assert_eq!(home.run(&["partition", "get", "third"]).code, 66);
    let described = home.run(&["partition", "describe", "first"]).out;
    assert!(
        described.contains("Size:           4 IPUs\n")
            && described.contains("IPUs:           0:0-3\n")
            && described.contains("Owner kind:     User\n"),
        "{described}"
    );
    assert_eq!(home.run(&["partition", "describe", "third"]).code, 66);
}

#[test]
fn an_invalid_partition_is_rejected_before_it_has_an_effect() {
    let home = Home::new();
    for (options, message) in [
        (
            &["--size", "1", "--num-replicas", "5"][..],
            "error: --num-replicas 5: must be from 1, one of each GCD, to 1, one of each IPU; leave it out, or use 1\n",
        ),
        (
            &["--size", "4", "--num-gcds", "3"],
            "error: --num-gcds 3: must be at least 1 and divide the 4 IPUs; use 1, 2, 4 or another power of two up \
             to the size\n",
        ),
        (
            &["--size", "128", "--reconfigurable"],
            "error: --reconfigurable: ",
        ),
    ] {
        for no_wait in [&[][..], &["--no-wait"]] {
            let done = home.run(&[&["partition", "create", "x"], options, no_wait].concat());
            assert_eq!(done.code, 65, "{done:?}");
            assert!(done.err.starts_with(message), "{done:?}");
        }
    }
    assert!(
        !home.path(".local").exists(),
        "the state directory is created later"
    );
    home.assert_nothing_held();
}

#[test]
fn a_partition_with_other_properties_is_reported_with_both_values() {
    let home = Home::new();
    assert_eq!(home.run(&["partition", "create", "a", "--size", "4"]).code, 0);
    let create = ["partition", "create", "a", "--size", "8", "--num-gcds", "2"];
    for no_wait in [&[][..], &["--no-wait"]] {
        let done = home.run(&[&create[..], no_wait].concat());
        assert_eq!(
            (done.code, done.err.as_str()),
            (
                65,
                "error: partition a exists with other properties (size is 4, requested 8; num-gcds is 1, \
                 requested 2; num-replicas is 1, requested 2); use its values, or remove it first\n"
            )
        );
    }
}

#[test]
fn a_watch_prints_a_line_for_each_change_until_it_is_interrupted() {
    let home = Home::new();
    let unsupported = home.run(&["partition", "list", "--watch", "-o", "json"]);
    assert!(
        unsupported.code == 64 && unsupported.err.contains("--watch supports"),
        "{unsupported:?}"
    );
    let mut watch = Running::start(home.command(&["partition", "ls", "-w", "-o", "wide"]));
    watch.wait_for("No partitions found.");
    assert_eq!(home.run(&["partition", "create", "p4", "--size", "4"]).code, 0);
    let line = watch.wait_for(" active ");
    assert!(line.starts_with("p4 ") && line.contains(" 0:0-3 "), "{line}");
    assert_eq!(home.run(&["partition", "remove", "p4"]).code, 0);
    let line = watch.wait_for(" removed ");
    assert!(line.starts_with("p4 "), "{line}");
    watch.signal("-INT");
    let (code, output) = watch.end();
    assert_eq!(code, 130, "{output:#?}");
    let headers = output.iter().filter(|line| line.starts_with("PARTITION "));
    assert!(
        headers.clone().all(|line| line.ends_with("REASON")),
        "{output:#?}"
    );
    assert_eq!(headers.count(), 1, "{output:#?}");
}

#[test]
fn a_watch_ends_when_its_reader_has_closed() {
    let home = Home::new();
    let mut command = home.command(&["partition", "list", "--watch"]);
    let mut watch = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    drop(watch.stdout.take());
    assert_eq!(home.run(&["partition", "create", "p4", "--size", "4"]).code, 0);
    assert_eq!(watch.wait().unwrap().code(), Some(0));
}
