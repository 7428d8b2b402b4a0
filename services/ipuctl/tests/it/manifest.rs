//! Manifests that need a warning or an error: variables that select IPUs, jobs that run nothing, and jobs
//! that an API server refuses.

use serde_json::json;

use crate::harness::{Home, job};

/// Prints the variables of a process that select IPUs.
const PRINT: &str = "env | grep ^IPUOF | sort";

#[test]
fn a_worker_has_only_the_variables_of_its_own_partition() {
    let home = Home::new();
    let stale = "env: [{name: IPUOF_CONFIG_PATH, value: /etc/ipuof.conf.d/pod16_a01.conf}, {name: IPUOF_VIPU_API_HOST, \
                 value: elsewhere}, {name: IPUOF_VIPU_API_TIMEOUT, value: '60'}], command";
    let file = home.file("job.yaml", &job("stale", 1, PRINT).replace("command", stale));
    let mut command = home.command(&["run", file.to_str().unwrap()]);
    for name in [
        "IPUOF_CONFIG_PATH",
        "IPUOF_VIPU_API_OTHER",
        "IPUOF_VIPU_API_PARTITION_ID",
    ] {
        command.env(name, "inherited");
    }
    let done = crate::harness::finish(command);
    assert_eq!(done.code, 0, "{done:?}");
    let names: Vec<&str> = done
        .out
        .lines()
        .filter_map(|line| line.split(['|', '=']).nth(1))
        .map(str::trim)
        .collect();
    let expected =
        ["GCD_ID", "HOST", "PARTITION_ID", "PORT", "TIMEOUT"].map(|name| format!("IPUOF_VIPU_API_{name}"));
    assert_eq!(names, expected, "{done:?}");
    assert!(
        !done.out.contains("elsewhere") && !done.out.contains("inherited"),
        "{done:?}"
    );
    assert!(done.out.contains("IPUOF_VIPU_API_TIMEOUT=60"), "{done:?}");
    for command in ["run", "plan"] {
        let done = home.run(&[command, file.to_str().unwrap()]);
        for name in ["IPUOF_CONFIG_PATH", "IPUOF_VIPU_API_HOST"] {
            let warning = format!("containers[0].env = {name}: is removed");
            assert!(done.err.contains(&warning), "{command} {name}: {done:?}");
        }
    }
    home.assert_nothing_held();
}

#[test]
fn a_job_that_runs_nothing_ends_at_once_with_the_reason() {
    let home = Home::new();
    let file = home.file("job.yaml", &job("idle", 1, "true"));
    let file = file.to_str().unwrap();
    for (edit, text) in [
        ("suspend=true", "spec.suspend is true"),
        ("jobInstances=0", "spec.jobInstances is 0"),
    ] {
        for options in [
            &["run", file, "--set", edit][..],
            &["run", "--no-wait", file, "--set", edit],
        ] {
            let done = home.run(options);
            assert_eq!(done.code, 76, "{done:?}");
            assert!(
                done.err.contains(&format!("IPUJob idle runs nothing: {text}")),
                "{done:?}"
            );
        }
        let planned = home.run(&["plan", file, "--set", edit]);
        assert_eq!(planned.code, 76, "{planned:?}");
        assert!(
            planned.out.contains(&format!("  Runs nothing: {text}")),
            "{planned:?}"
        );
        assert!(!planned.out.contains("Fits now"), "{planned:?}");
    }
}

#[test]
fn a_plan_reports_everything_that_an_api_server_would_refuse() {
    let home = Home::new();
    let text = job("Job_1", 1, "true").replace("name: Job_1", "generateName: Job_, namespace: Team_A");
    let file = home.file("job.yaml", &text);
    let edits = [
        "backoffLimit=3",
        "activeDeadlineSeconds='60'",
        "workers.template.metadata.labels.team=a b",
        "workers.template.spec.containers[1]={name: main}",
    ];
    let mut arguments = vec!["plan", file.to_str().unwrap(), "-o", "json"];
    edits.iter().for_each(|edit| arguments.extend(["--set", edit]));
    let done = home.run(&arguments);
    assert_eq!(done.code, 65, "{done:?}");
    let planned: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    let violations = planned["jobs"][0]["violations"].as_array().unwrap();
    let mut fields: Vec<_> = violations.iter().map(|violation| &violation["field"]).collect();
    fields.sort_by_key(|field| field.as_str());
    assert_eq!(
        json!(fields),
        json!([
            "metadata.generateName",
            "metadata.namespace",
            "spec.backoffLimit",
            "spec.workers.template.metadata.labels.team",
            "spec.workers.template.spec.containers[1].image",
            "spec.workers.template.spec.containers[1].name",
        ]),
        "{done:?}"
    );
    assert!(
        done.err
            .contains("spec.activeDeadlineSeconds = \"60\": is an integer"),
        "{done:?}"
    );
    let quoted = home.file(
        "quoted.yaml",
        &job("quoted", 1, "true").replace("jobInstances: 1", "jobInstances: '1'"),
    );
    let done = home.run(&["plan", quoted.to_str().unwrap()]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(
        done.err.contains("spec.jobInstances = \"1\": is an integer"),
        "{done:?}"
    );
}
