//! Commands besides `run` and `partition`.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::harness::{Home, example, finish, job};

#[test]
fn server_version_prints_two_lines_or_two_keys() {
    let home = Home::new();
    let done = home.run(&["server-version"]);
    let lines: Vec<&str> = done.out.lines().collect();
    assert!(
        matches!(lines.as_slice(), [version, host] if version.starts_with("version: ") && host.starts_with("host: 127.0.0.1:")),
        "{done:?}"
    );
    assert!(done.err.contains("Target: simulated Pod16 in "), "{done:?}");
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
fn plan_reports_the_partitions_and_why_they_do_not_fit() {
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
    let effect = &planned["jobs"][0]["effects"][0];
    assert_eq!(effect["do"], "ensurePartition");
    let id = "p-inference-0-<hash>";
    assert_eq!(
        (&effect["partition"], &partitions[0]["id"]),
        (&json!(id), &json!(id))
    );
    let done = home.run(&["plan", &example("too-large.yaml")]);
    assert_eq!(done.code, 78, "{done:?}");
    let reason = "Can never fit: instance 0: 64 IPUs requested, the largest possible partition is 16";
    assert!(done.out.contains(reason), "{done:?}");
    let done = home.run(&["plan", &example("mnist-training.yaml")]);
    assert!(
        done.out.ends_with(
            "  First step: create partition p-mnist-training-0-<hash> of 1 IPU\n  Fits now. 15 of 16 IPUs remain free.\n  \
             Instance 0 would get IPU 0 in link domain 0.\n"
        ),
        "{done:?}"
    );
    home.assert_nothing_held();
}

/// The eight IPUJobs of Graphcore's guides.
#[test]
fn plan_accepts_every_job_of_the_guides() {
    let home = Home::new();
    for (file, sizes) in [
        ("vipu-training.yaml", vec![1]),
        ("vipu-interactive.yaml", vec![2]),
        ("vipu-inference.yaml", vec![1]),
        ("vipu-nfs.yaml", vec![1]),
        ("alpha-training.yaml", vec![4]),
        ("alpha-interactive.yaml", vec![4]),
        ("alpha-nfs.yaml", vec![4]),
        ("rdma-mnist.yaml", vec![1]),
    ] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../ipu-k8s/tests/data/guides")
            .join(file);
        let planned = home.json(&["plan", path.to_str().unwrap()]);
        let job = &planned["jobs"][0];
        assert_eq!(job["violations"], json!([]), "{file}: {planned}");
        let planned_sizes: Vec<u64> = job["partitions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["size"].as_u64().unwrap())
            .collect();
        assert_eq!(planned_sizes, sizes, "{file}: {planned}");
        assert_eq!(job["fit"]["verdict"], "now", "{file}: {planned}");
    }
}

#[test]
fn all_errors_of_a_manifest_are_reported_before_a_partition_is_requested() {
    let home = Home::new();
    let text = job("wrong", 3, "true").replace("jobInstances: 1", "jobInstances: 0\n  noSuchField: 1");
    let file = home.file("wrong.yaml", &text);
    let done = home.run(&["run", file.to_str().unwrap()]);
    assert_eq!(done.code, 65, "{done:?}");
    for field in ["spec.ipusPerJobInstance", "noSuchField"] {
        assert!(done.err.contains(field), "{field}: {done:?}");
    }
    for (edit, code, message) in [
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
        (
            "workers.template.spec.containers[0].command=",
            65,
            "error: spec.workers.template.spec.containers[0].command of container \"main\" is missing: a host does \
             not use the command of the image; add one, such as [python3, train.py]\n",
        ),
    ] {
        let file = home.file("job.yaml", &job("job", 1, "true"));
        let done = home.run(&["run", file.to_str().unwrap(), "--set", edit]);
        assert_eq!(done.code, code, "{done:?}");
        assert!(done.err.contains(message), "{done:?}");
    }
    assert!(
        !home.path(".local/state/ipuctl/ledger.db").exists(),
        "no ledger was created"
    );
    assert_eq!(home.run(&["run", "no-such-file.yaml"]).code, 66);
    assert_eq!(home.run(&["run"]).code, 64);
    assert_eq!(home.run(&["nonsense"]).code, 64);
}

#[test]
fn a_file_with_several_jobs_requires_a_name_and_other_documents_are_skipped() {
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
        done.err.contains("one, two") && done.err.contains("Skipped PersistentVolume disk"),
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
fn decide_prints_the_plan_or_the_violations() {
    let home = Home::new();
    let mut request = json!({
        "format": 1,
        "job": {"metadata": {"name": "a", "namespace": "n", "uid": "u"}, "spec": {"jobInstances": 1, "ipusPerJobInstance": 4}},
        "observation": {"format": 1, "now": 1000, "submitted": 1000}
    });
    let decide = |request: &Value| {
        let file = home.file("request.json", &request.to_string());
        home.run(&["decide", file.to_str().unwrap()])
    };
    let done = decide(&request);
    let answer: Value = serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}"));
    assert_eq!(
        (&answer["format"], &answer["plan"]["effects"][0]["do"]),
        (&json!(1), &json!("ensurePartition"))
    );
    assert_eq!(answer["plan"]["effects"][0]["spec"]["size"], 4);

    request["job"]["spec"]["ipusPerJobInstance"] = json!(3);
    let done = decide(&request);
    let answer: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(
        (done.code, &answer["violations"][0]["field"]),
        (65, &json!("spec.ipusPerJobInstance"))
    );

    request["format"] = json!(2);
    let done = decide(&request);
    assert!(done.code == 65 && done.err.contains("format = 2"), "{done:?}");
    assert!(!home.path(".local").exists(), "decide creates no state directory");
}

#[test]
fn the_request_of_the_documentation_is_valid() {
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
fn a_document_is_alone_on_standard_output_and_colours_are_optional() {
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
fn the_output_of_workers_is_forwarded_byte_for_byte() {
    let home = Home::new();
    let file = home.file("job.yaml", &job("bytes", 1, "printf '\\377\\376\\nlast'"));
    let output = home.command(&["run", file.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.stdout, b"worker-0 | \xff\xfe\nworker-0 | last\n");
}

#[test]
fn a_closed_reader_does_not_end_the_job() {
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
fn the_environment_selects_the_controller() {
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
fn completions_and_help_are_printed() {
    let home = Home::new();
    assert!(home.run(&["completions", "bash"]).out.contains("ipuctl"));
    let help = home.run(&["--help"]);
    assert!(
        help.code == 0 && help.out.contains("Examples:") && help.out.contains("Exit codes:"),
        "{help:?}"
    );
}

#[test]
fn the_effect_on_a_partition_is_printed_as_a_document() {
    let home = Home::new();
    let created = home.json(&["partition", "create", "trial", "--size", "2"]);
    assert_eq!(created["state"], "active", "{created}");
    assert_eq!(created["ipus"].as_array().unwrap().len(), 2, "{created}");
    let reset = home.json(&["partition", "reset", "trial"]);
    assert_eq!(
        (&reset["state"], &reset["attempt"], &reset["ipus"]),
        (&json!("active"), &json!(1), &created["ipus"])
    );
    assert_eq!(
        home.json(&["partition", "remove", "trial"]),
        serde_json::json!({"id": "trial", "removed": true})
    );
    let done = home.run(&["partition", "create", "trial", "--size", "2"]);
    assert!(
        done.err.contains("is active: IPUs 0-1 in link domain 0"),
        "{done:?}"
    );
}

#[test]
fn a_worker_that_cannot_be_executed_reports_the_cause() {
    let home = Home::new();
    // Longer than the limit of the kernel for one argument.
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
fn jobs_with_the_same_name_are_rejected() {
    let home = Home::new();
    let text = job("twin", 1, "true");
    let file = home.file("twins.yaml", &format!("{text}---\n{text}"));
    let done = home.run(&["run", file.to_str().unwrap(), "--name", "twin"]);
    assert!(
        done.code == 65 && done.err.contains("the file has 2 IPUJobs named twin"),
        "{done:?}"
    );
}

#[test]
fn the_notice_about_the_simulated_ipu_pod_appears_once_or_with_verbose() {
    let home = Home::new();
    let notice = "using a simulated Pod16";
    let quiet = home.run(&["-q", "partition", "list"]);
    assert_eq!(quiet.err, "", "{quiet:?}");
    let first = home.run(&["query", "1"]);
    assert!(first.err.contains(notice), "{first:?}");
    let second = home.run(&["query", "1"]);
    assert_eq!(second.err, "", "{second:?}");
    let verbose = home.run(&["-v", "query", "1"]);
    assert!(verbose.err.contains(notice), "{verbose:?}");
    let elsewhere = home.run(&["--state-dir", home.path("other").to_str().unwrap(), "query", "1"]);
    assert!(elsewhere.err.contains(notice), "{elsewhere:?}");
    // A user with this file expects the controller that it names.
    let file = home.file(".vipu.hcl", "api-host=10.5.212.116\n");
    for _ in 0..2 {
        let done = home.run(&["query", "1"]);
        let text = format!("{} of Graphcore's `vipu` is not read", file.display());
        assert!(done.err.contains(notice) && done.err.contains(&text), "{done:?}");
    }
}

#[test]
fn the_map_is_printed_by_map_and_by_a_verbose_run() {
    let home = Home::new();
    let file = home.file("job.yaml", &job("mapped", 1, "true"));
    let file = file.to_str().unwrap();
    let title = "16 IPUs, 16 free";
    assert!(!home.run(&["run", file]).err.contains(title));
    let verbose = home.run(&["-v", "run", file]);
    assert!(verbose.err.contains(title), "{verbose:?}");
    let map = home.run(&["map"]);
    assert!(map.code == 0 && map.out.contains(title), "{map:?}");
    assert!(home.json(&["map"])["map"].as_str().unwrap().contains(title));
}

#[test]
fn an_invalid_value_is_reported_with_option_rule_and_fix() {
    let home = Home::new();
    for (arguments, message) in [
        (
            &["run", "job.yaml", "--priority", "high"][..],
            "error: invalid value 'high' for '--priority <N>': must be a whole number from -2147483648 to \
             2147483647; use 10, for example\n",
        ),
        (
            &["run", "job.yaml", "--grace", "86401"],
            "error: invalid value '86401' for '--grace <SECONDS>': must be a number of seconds from 0 to 86400; \
             use 10, for example\n",
        ),
        (
            &["--timeout", "0", "list"],
            "error: invalid value '0' for '--timeout <SECONDS>': must be a number of seconds from 1 to 3600; use \
             30, for example\n",
        ),
        (
            &["--vipu", "pod1:x", "list"],
            "error: invalid value \"pod1:x\" for --vipu: \"x\" is not a port: give a number from 1 to 65535\n",
        ),
        (
            &["--proxy", "ftp://x", "stats"],
            "error: --proxy: \"ftp://x\" is not a URL of a proxy: the scheme must be http or https\n",
        ),
        (
            &["--proxy", "https://x", "stats"],
            "error: --proxy-ca is missing: \"https://x\" requires a file with CA certificates",
        ),
    ] {
        let done = home.run(arguments);
        assert_eq!(done.code, 64, "{done:?}");
        assert!(done.err.starts_with(message), "{done:?}");
    }
    let mut command = home.command(&["list"]);
    command
        .env("IPUOF_VIPU_API_HOST", "pod1")
        .env("IPUOF_VIPU_API_PORT", "x");
    let done = finish(command);
    assert!(
        done.err
            .starts_with("error: invalid value \"pod1:x\" for IPUOF_VIPU_API_HOST:IPUOF_VIPU_API_PORT: "),
        "{done:?}"
    );
}

#[test]
fn every_command_of_a_shared_proxy_works_without_one() {
    let home = Home::new();
    let create = ["partition", "create", "half", "--size", "8", "-n", "team"];
    assert_eq!(home.run(&create).code, 0);
    assert_eq!(home.json(&["stats"])["team"], json!({"used": 8, "available": 8}));
    let stats = home.run(&["stats"]).out;
    assert!(stats.contains("team       8     8"), "{stats}");
    assert_eq!(home.run(&["plan", "--size", "16"]).code, 75);
    assert_eq!(home.run(&["plan", "--size", "16", "--if-ended", "half"]).code, 0);
    assert_eq!(home.json(&["waiting"]), json!([]));
    assert_eq!(home.run(&["waiting"]).err, "No queued requests found.\n");
    assert_eq!(
        home.json(&["controllers"])["controllers"][0]["name"],
        "simulated-pod16"
    );
    let drain = ["drain", "a1", "--reason", "a fan is broken", "--wait-for", "0"];
    assert_eq!(home.run(&drain).code, 75);
    assert_eq!(home.json(&["cordons"]).as_array().unwrap().len(), 1);
    assert_eq!(home.run(&["uncordon", "a1"]).code, 0);
    assert_eq!(home.run(&["partition", "remove", "half"]).code, 0);
    assert_eq!(home.run(&["repair"]).out, "0 repairs\n");
    assert_eq!(home.json(&["usage"])["records"][0]["size"], 8);
}

#[test]
fn a_plan_names_the_owners_that_block_it() {
    let home = Home::new();
    for id in ["first", "second"] {
        assert_eq!(home.run(&["partition", "create", id, "--size", "4"]).code, 0);
    }
    let file = home.file("job.yaml", &job("large", 16, "true"));
    let planned = home.run(&["plan", file.to_str().unwrap()]);
    let line = planned.out.lines().find(|line| line.contains("Would wait: "));
    let (reason, blockers) = line.unwrap().split_once("; blocked by ").unwrap();
    assert_eq!(reason, "  Would wait: instance 0: 16 IPUs requested, 8 free");
    assert!(
        blockers.contains("/first, ") && blockers.ends_with("/second"),
        "{planned:?}"
    );
    // Instance 0 fits: its own partition does not block instance 1.
    let set = [
        "--set",
        "spec.jobInstances=2",
        "--set",
        "spec.ipusPerJobInstance=8",
    ];
    let planned = home.run(&[&["plan", file.to_str().unwrap()], &set[..]].concat());
    assert!(
        planned
            .out
            .contains("instance 1: 8 IPUs requested, 0 free; blocked by ")
            && !planned.out.contains("by p-large"),
        "{planned:?}"
    );
}

#[test]
fn a_query_tells_what_fits_what_does_not_fit_now_and_what_never_fits() {
    let home = Home::new();
    let fits = home.run(&["query", "16"]);
    assert_eq!(
        (fits.code, fits.out.as_str()),
        (
            0,
            "1 partition of 16 IPUs fits now; 16 IPUs free, the largest free block is 16\n"
        ),
        "{fits:?}"
    );
    assert_eq!(home.run(&["partition", "create", "one", "--size", "1"]).code, 0);
    let full = home.run(&["query", "16"]);
    assert!(
        full.code == 75 && full.out.starts_with("0 partitions of 16 IPUs fit now"),
        "{full:?}"
    );
    let never = home.run(&["query", "64"]);
    assert_eq!(
        (never.code, never.out.as_str()),
        (78, "64 IPUs requested, the largest possible partition is 16\n"),
        "{never:?}"
    );
    let missing = home.run(&["query", "1", "--allocation", "nope"]);
    assert_eq!(missing.code, 78, "{missing:?}");
}

#[test]
fn a_file_without_an_ipujob_is_reported_by_its_kinds() {
    let home = Home::new();
    let document = |kind: &str| format!("apiVersion: v1\nkind: {kind}\nmetadata: {{name: a}}\n");
    for (text, message) in [
        (document("Pod"), "contains a Pod, expected kind IPUJob"),
        (
            [document("Pod"), document("Pod"), document("Ingress")].join("---\n"),
            "contains a Pod and an Ingress, expected kind IPUJob",
        ),
        (String::new(), "is empty, expected kind IPUJob"),
    ] {
        let file = home.file("p.yaml", &text);
        let file = file.to_str().unwrap();
        let done = home.run(&["run", file]);
        assert_eq!(done.code, 65, "{done:?}");
        assert_eq!(done.err, format!("error: {file} {message}\n"));
    }
}
