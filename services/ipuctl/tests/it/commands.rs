//! The commands besides `run`.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::harness::{Home, example, finish, job};

#[test]
fn the_server_version_is_two_lines_and_two_keys() {
    let home = Home::new();
    let done = home.run(&["server-version"]);
    let lines: Vec<&str> = done.out.lines().collect();
    assert!(
        matches!(lines.as_slice(), [version, host] if version.starts_with("version: ") && host.starts_with("host: 127.0.0.1:")),
        "{done:?}"
    );
    for flag in ["--json", "--showjson"] {
        let done = home.run(&["server-version", flag]);
        let value: Value = serde_json::from_str(&done.out).unwrap();
        assert!(
            value["version"].is_string() && value["host"].as_str().unwrap().contains(':'),
            "{done:?}"
        );
        assert_eq!(value.as_object().unwrap().len(), 2);
    }
}

#[test]
fn a_partition_lives_from_create_to_remove() {
    let home = Home::new();
    let created = home.run(&["partition", "create", "p4", "--size", "4", "--num-gcds", "2"]);
    assert_eq!(created.code, 0, "{created:?}");
    let listed = home.json(&["partition", "list"]);
    assert_eq!(listed[0]["id"], "p4");
    assert_eq!(
        (&listed[0]["size"], &listed[0]["gcds"], &listed[0]["state"]),
        (&json!(4), &json!(2), &json!("ACTIVE"))
    );
    assert_eq!(
        (&listed[0]["ledger"], &listed[0]["owner"]["kind"]),
        (&json!("active"), &json!("User"))
    );
    assert!(home.run(&["partition", "list"]).out.contains("p4"));
    let config: Value =
        serde_json::from_str(&home.run(&["partition", "config", "p4", "--gcd", "1"]).out).unwrap();
    assert_eq!(config["attributes"]["GCD Id"], "1");
    assert!(!config["devices"].as_array().unwrap().is_empty());
    let reset = home.run(&["partition", "reset", "p4"]);
    assert_eq!(reset.code, 0, "{reset:?}");
    assert_eq!(home.json(&["partition", "get", "p4"])["state"], "ACTIVE");
    assert_eq!(home.json(&["query", "8"])["numOfPartitions"], 1);
    assert_eq!(home.run(&["gc"]).code, 0);
    assert_eq!(
        home.json(&["partition", "list"]).as_array().unwrap().len(),
        1,
        "what was made by hand is kept"
    );
    let removed = home.run(&["partition", "remove", "p4"]);
    assert_eq!(removed.code, 0, "{removed:?}");
    home.assert_nothing_held();
    assert_eq!(home.run(&["partition", "get", "p4"]).code, 66);
    assert_eq!(home.run(&["partition", "remove", "p4"]).code, 66);
    assert_eq!(
        home.run(&["partition", "create", "large", "--size", "64"]).code,
        78
    );
    home.assert_nothing_held();
}

#[test]
fn plan_says_what_would_be_asked_for_and_why_it_cannot() {
    let home = Home::new();
    let planned = home.json(&["plan", &example("inference.yaml")]);
    let partitions = planned["jobs"][0]["partitions"].as_array().unwrap();
    assert_eq!(
        partitions
            .iter()
            .map(|one| one["size"].as_u64().unwrap())
            .collect::<Vec<_>>(),
        [2, 2, 2]
    );
    assert_eq!(planned["jobs"][0]["fit"]["verdict"], "now");
    assert_eq!(planned["jobs"][0]["effects"][0]["do"], "ensurePartition");
    let done = home.run(&["plan", &example("too-large.yaml")]);
    assert_eq!(done.code, 78, "{done:?}");
    assert!(done.out.contains("cannot fit"), "{done:?}");
    home.assert_nothing_held();
}

/// The eight IPUJobs of the documents that the project starts from.
#[test]
fn plan_understands_every_job_of_the_seeds_or_names_what_is_wrong() {
    let home = Home::new();
    for (file, sizes) in [
        ("000-training.yaml", vec![1]),
        ("000-interactive.yaml", vec![2]),
        ("000-inference.yaml", vec![1]),
        ("000-nfs.yaml", vec![1]),
        ("001-training.yaml", vec![4]),
        ("001-interactive.yaml", vec![4]),
        ("001-nfs.yaml", vec![4]),
        ("002-mnist.yaml", vec![1]),
    ] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../ipu-k8s/tests/data/seeds")
            .join(file);
        let planned = home.json(&["plan", path.to_str().unwrap()]);
        let job = &planned["jobs"][0];
        assert_eq!(job["violations"], json!([]), "{file}: {planned}");
        let found: Vec<u64> = job["partitions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["size"].as_u64().unwrap())
            .collect();
        assert_eq!(found, sizes, "{file}: {planned}");
        assert_eq!(job["fit"]["verdict"], "now", "{file}: {planned}");
    }
}

#[test]
fn what_a_manifest_does_wrong_is_named_all_at_once_before_anything_is_allocated() {
    let home = Home::new();
    let text = job("wrong", 3, "true").replace("jobInstances: 1", "jobInstances: 0\n  noSuchField: 1");
    let file = home.file("wrong.yaml", &text);
    let done = home.run(&["run", file.to_str().unwrap()]);
    assert_eq!(done.code, 65, "{done:?}");
    for field in ["spec.ipusPerJobInstance", "noSuchField"] {
        assert!(done.err.contains(field), "{field}: {done:?}");
    }
    for (edit, code, named) in [
        (
            "workers.template.spec.containers[0].workingDir=/no/such/place",
            66,
            "/no/such/place",
        ),
        (
            "workers.template.spec.containers[0].command=[no-such-program]",
            66,
            "no-such-program",
        ),
        ("workers.template.spec.containers[0].command=", 65, "no command"),
    ] {
        let file = home.file("job.yaml", &job("job", 1, "true"));
        let done = home.run(&["run", file.to_str().unwrap(), "--set", edit]);
        assert_eq!(done.code, code, "{done:?}");
        assert!(done.err.contains(named), "{done:?}");
    }
    assert!(
        !home.path(".local/state/ipuctl/ledger.db").exists(),
        "nothing was allocated"
    );
    assert_eq!(home.run(&["run", "no-such-file.yaml"]).code, 66);
    assert_eq!(home.run(&["run"]).code, 64);
    assert_eq!(home.run(&["nonsense"]).code, 64);
}

#[test]
fn a_file_of_several_jobs_wants_a_name_and_other_documents_are_named() {
    let home = Home::new();
    let volume = "apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: disk}\n";
    let text = format!(
        "{volume}---\n{}---\n{}",
        job("one", 1, "echo from one"),
        job("two", 1, "echo from two")
    );
    let file = home.file("several.yaml", &text);
    let file = file.to_str().unwrap();
    let done = home.run(&["run", file]);
    assert_eq!(done.code, 64, "{done:?}");
    assert!(
        done.err.contains("one, two") && done.err.contains("skipped: PersistentVolume disk"),
        "{done:?}"
    );
    let done = home.run(&["run", file, "--name", "two"]);
    assert_eq!(
        (done.code, done.out.as_str()),
        (0, "worker-0 | from two\n"),
        "{done:?}"
    );
    assert_eq!(home.json(&["plan", file])["jobs"].as_array().unwrap().len(), 2);
}

#[test]
fn decide_answers_with_the_plan_or_with_what_is_wrong() {
    let home = Home::new();
    let mut request = json!({
        "format": 1,
        "job": {"metadata": {"name": "a", "namespace": "n", "uid": "u"}, "spec": {"jobInstances": 1, "ipusPerJobInstance": 4}},
        "observation": {"format": 1, "now": 1000, "submitted": 1000}
    });
    let ask = |request: &Value| {
        let file = home.file("request.json", &request.to_string());
        home.run(&["decide", file.to_str().unwrap()])
    };
    let done = ask(&request);
    let answer: Value = serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}"));
    assert_eq!(
        (&answer["format"], &answer["plan"]["effects"][0]["do"]),
        (&json!(1), &json!("ensurePartition"))
    );
    assert_eq!(answer["plan"]["effects"][0]["spec"]["size"], 4);

    request["job"]["spec"]["ipusPerJobInstance"] = json!(3);
    let done = ask(&request);
    let answer: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(
        (done.code, &answer["violations"][0]["field"]),
        (65, &json!("spec.ipusPerJobInstance"))
    );

    request["format"] = json!(2);
    let done = ask(&request);
    assert!(done.code == 65 && done.err.contains("format = 2"), "{done:?}");
    assert!(!home.path(".local").exists(), "a decision touches nothing");
}

#[test]
fn the_request_of_the_documentation_is_understood() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ipuctl.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, request) = text.split_once("```json\n").unwrap();
    let home = Home::new();
    let file = home.file("request.json", request.split_once("```").unwrap().0);
    let done = home.run(&["decide", file.to_str().unwrap()]);
    let answer: Value = serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}"));
    assert_eq!(
        (done.code, &answer["plan"]["status"]["phase"]),
        (0, &json!("Running"))
    );
}

#[test]
fn documents_stand_alone_and_colours_come_only_when_asked_for() {
    let home = Home::new();
    let file = home.file("job.yaml", &job("report", 1, "echo hello; exit 7"));
    let file = file.to_str().unwrap();
    let report = home.json(&["run", file]);
    assert_eq!(
        (&report["exitCode"], &report["exitCodeOf"], &report["phase"]),
        (&json!(7), &json!("job"), &json!("Failed"))
    );
    let yaml = home.run(&["partition", "list", "-o", "yaml"]);
    assert_eq!(yaml.out.trim(), "[]", "{yaml:?}");
    let plain = home.run(&["run", file]);
    assert!(
        !plain.out.contains('\x1b') && !plain.err.contains('\x1b'),
        "{plain:?}"
    );
    let coloured = home.run(&["run", file, "--color", "always"]);
    assert!(coloured.out.contains("\x1b[36mworker-0 |"), "{coloured:?}");
}

#[test]
fn what_workers_print_is_passed_on_byte_for_byte() {
    let home = Home::new();
    let file = home.file("job.yaml", &job("bytes", 1, "printf '\\377\\376\\nlast'"));
    let output = home.command(&["run", file.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.stdout, b"worker-0 | \xff\xfe\nworker-0 | last\n");
}

#[test]
fn a_reader_that_goes_away_does_not_end_the_job() {
    let home = Home::new();
    let trace = home.path("trace");
    let file = home.file(
        "job.yaml",
        &job(
            "unread",
            1,
            &format!("seq 1 100000; echo done > '{}'", trace.display()),
        ),
    );
    let mut command = home.command(&["-vvv", "run", file.to_str().unwrap()]);
    let mut process = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop((process.stdout.take(), process.stderr.take()));
    assert_eq!(process.wait().unwrap().code(), Some(0));
    assert!(trace.exists());
    home.assert_nothing_held();
}

#[test]
fn the_environment_names_the_controller_unless_a_flag_does() {
    let home = Home::new();
    let mut command = home.command(&["server-version", "--timeout", "1"]);
    command
        .env("IPUOF_VIPU_API_HOST", "127.0.0.1")
        .env("IPUOF_VIPU_API_PORT", "1");
    let done = finish(command);
    assert_eq!(done.code, 69, "{done:?}");
    assert!(done.err.contains("127.0.0.1:1"), "{done:?}");
}

#[test]
fn completions_and_help_are_there() {
    let home = Home::new();
    assert!(home.run(&["completions", "bash"]).out.contains("ipuctl"));
    let help = home.run(&["--help"]);
    assert!(
        help.code == 0 && help.out.contains("Examples:") && help.out.contains("Exit codes:"),
        "{help:?}"
    );
}

#[test]
fn what_is_done_to_a_partition_is_a_document_too() {
    let home = Home::new();
    let created = home.json(&["partition", "create", "trial", "--size", "2"]);
    assert_eq!(created["state"], "ACTIVE", "{created}");
    assert_eq!(created["ipus"].as_array().unwrap().len(), 2, "{created}");
    assert_eq!(home.json(&["partition", "reset", "trial"]), created);
    assert_eq!(
        home.json(&["partition", "remove", "trial"]),
        serde_json::json!({"id": "trial", "removed": true})
    );
    let said = home.run(&["partition", "create", "trial", "--size", "2"]);
    assert!(
        said.err.contains("is active: IPUs 0-1 in link domain 0"),
        "{said:?}"
    );
}

#[test]
fn a_worker_that_cannot_even_be_tried_says_why() {
    let home = Home::new();
    // More than the kernel passes in one argument.
    let file = home.file(
        "long.yaml",
        &job("long", 1, &format!(": {}", "x".repeat(200_000))),
    );
    let done = home.run(&["run", file.to_str().unwrap()]);
    assert_eq!(done.code, 126);
    assert!(
        done.err.contains("worker-0: start the supervisor"),
        "{}",
        done.err
    );
    assert!(done.err.contains("Argument list too long"), "{}", done.err);
    home.assert_nothing_held();
}

#[test]
fn jobs_of_one_name_cannot_be_told_apart() {
    let home = Home::new();
    let text = job("twin", 1, "true");
    let file = home.file("twins.yaml", &format!("{text}---\n{text}"));
    let done = home.run(&["run", file.to_str().unwrap(), "--name", "twin"]);
    assert!(
        done.code == 65 && done.err.contains("2 IPUJobs of the file are called twin"),
        "{done:?}"
    );
}
