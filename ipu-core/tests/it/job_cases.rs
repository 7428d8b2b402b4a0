//! Job manifests and their parsed form: `testdata/job/*.txt`. The input is a job as JSON; the default name is
//! `a` and the default uid `u`. Options of the command `parse`: `stored` (accepted earlier), `max-ipus=N`.

use std::fmt::Write as _;

use ipu_core::job::{JobKind, JobSpec, Limits, ParsedJob, RawJob, RestartPolicy};
use serde_json::json;

use crate::datadriven::{self, Case};

#[test]
fn jobs_parse_as_in_the_case_files() {
    datadriven::run("job", parse);
}

fn parse(case: &Case<'_>) -> String {
    let mut limits = Limits::default();
    for option in &case.command {
        limits = match option.split_once('=') {
            Some(("max-ipus", number)) => limits.with_max_ipus(number.parse().unwrap()),
            None if *option == "stored" => limits.for_stored(),
            None if *option == "parse" => limits,
            _ => panic!("unknown case option: {option}"),
        };
    }
    let mut job: RawJob = match serde_json::from_str(case.input) {
        Ok(job) => job,
        Err(error) => return format!("not a job: {error}"),
    };
    if job.metadata.generate_name.is_none() {
        job.metadata.name.get_or_insert_with(|| "a".into());
    }
    job.metadata.uid.get_or_insert_with(|| "u".into());
    match job.parse(&limits) {
        Ok(ParsedJob { spec, warnings }) => {
            let mut text = format_job(&spec);
            for warning in warnings {
                writeln!(text, "warning: {warning}").unwrap();
            }
            text
        }
        Err(violations) => violations
            .iter()
            .map(|violation| format!("violation: {violation}\n"))
            .collect(),
    }
}

/// Formats a job in a few lines: its main fields, and the fields that differ from their defaults.
fn format_job(job: &JobSpec) -> String {
    let partition = job.partition();
    let mut text = format!(
        "{}: {} × {} IPUs, {} GCDs, {} replicas\n",
        job.key(),
        job.instances(),
        partition.size,
        partition.gcds,
        partition.replicas
    );
    match job.shape() {
        JobKind::Workers => {}
        JobKind::Launcher { command } => writeln!(text, "launcher {command:?}").unwrap(),
        JobKind::Interactive { ttl } => writeln!(text, "interactive for {} s", ttl.as_secs()).unwrap(),
    }
    let restart = match job.restart() {
        RestartPolicy::Never => None,
        RestartPolicy::Always { back_off_limit } => Some(("always".into(), back_off_limit)),
        RestartPolicy::OnFailure { back_off_limit } => Some(("on failure".into(), back_off_limit)),
        RestartPolicy::ExitCode {
            retryable,
            back_off_limit,
        } => Some((format!("on {retryable}"), back_off_limit)),
    };
    if let Some((when, limit)) = restart {
        let back_off = job.back_off().as_secs();
        writeln!(text, "restart {when}, {limit} times, first after {back_off} s").unwrap();
    }
    let json = serde_json::to_value(job).unwrap();
    assert_eq!(json["launcherEnv"], json!(job.launcher_env()));
    assert_eq!(json["tcpInterface"], json!(job.tcp_interface()));
    assert_eq!(json["account"], json!(job.account()));
    for (field, default) in [
        ("launcherEnv", "[]"),
        ("tcpInterface", "null"),
        ("cleanPodPolicy", "\"None\""),
        ("suspend", "false"),
        ("priority", "0"),
        ("preemptible", "false"),
        ("account", "null"),
        ("maxRuntime", "null"),
        ("ttlAfterFinished", "null"),
        ("startDeadline", "600000"),
    ] {
        let value = json[field].to_string();
        if value != default {
            writeln!(text, "{field} {value}").unwrap();
        }
    }
    if partition.reconfigurable {
        writeln!(text, "reconfigurable").unwrap();
    }
    if let Some(allocation) = &partition.allocation {
        writeln!(text, "allocation {allocation}").unwrap();
    }
    text
}
