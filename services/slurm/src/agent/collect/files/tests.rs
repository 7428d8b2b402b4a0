//! When the agent removes the file of a run.

use std::sync::Mutex;

use ipu_slurm::SlurmctldWatch;
use ipu_slurm::conf::ConfFiles;
use serde_json::{Value, json};

use super::super::{CollectReport, collect};
use crate::agent::context::Context;
use crate::fake_slurm::fake_slurm;
use crate::run_file::RunFile;
use crate::scripted_proxy::{Response, ScriptedProxy};

const CONTROLLER: &str = "vipu:8090";
/// `squeue` knows no job, and slurmctld runs for a long time.
const SCONTROL: &str = "printf 'BOOT_TIME = 1000\nKillWait = 2 sec\nSlurmdTimeout = 20 sec\n\
                        UnkillableStepTimeout = 60 sec\nClusterName = testbed\n'";
const FILE: &str = "# ipu-slurm 1 run=7.900 partition=PARTITION ipus=4 gcds=1 hook=1-1\nIPUOF_A=b\n";

/// Runs passes of the agent over the file of a run that has ended, each with the responses of the proxy to a
/// repair and to a release, if there is one. Returns whether the file is left after each pass, and the last
/// problem.
async fn passes(answers: Vec<(Value, Option<Response>)>) -> (Vec<bool>, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let ipuof = path.join("ipuof");
    std::fs::create_dir(&ipuof).unwrap();
    let count = answers.len();
    let mut repairs: Vec<Value> = answers.iter().map(|(repair, _)| repair.clone()).collect();
    let mut releases: Vec<Response> = answers.into_iter().filter_map(|(_, release)| release).collect();
    repairs.reverse();
    releases.reverse();
    let answers = Mutex::new((repairs, releases));
    let server = ScriptedProxy::start(move |request| {
        let (repairs, releases) = &mut *answers.lock().unwrap();
        if request.starts_with("DELETE ") {
            return releases.pop().unwrap();
        }
        match request {
            "GET /v1/partitions" => Response::ok(&json!({"partitions": []})),
            "POST /v1/repair" => Response::ok(&repairs.pop().unwrap()),
            _ => panic!("{request}"),
        }
    });
    let vipu = format!("Proxy={}\n", server.url());
    let pod64 = format!("ApiHost=vipu\nApiPort=8090\nIpuofDir={}\n", ipuof.display());
    let conf = ConfFiles::parse(("vipu.conf", &vipu), &[("pod64", &pod64)]).unwrap();
    let context = Context {
        conf,
        slurm: fake_slurm(path, &[("scontrol", SCONTROL), ("squeue", "true")]),
        proxy: server.client(),
        cluster: ipu_core::Namespace::new("testbed").unwrap(),
    };
    let start = ipu_slurm::RunStart::from_uid("7.900").unwrap();
    let id = super::partition_of(&context, &start).unwrap();
    let file = ipuof.join("testbed-7.env");
    std::fs::write(&file, FILE.replace("PARTITION", id.as_str())).unwrap();
    assert!(RunFile::read(&file).unwrap().is_some());
    let mut left = Vec::new();
    let mut problem = String::new();
    for _ in 0..count {
        let result = collect(
            &context,
            &mut SlurmctldWatch::default(),
            &mut CollectReport::default(),
        )
        .await;
        problem = result.err().map(|failure| failure.0).unwrap_or_default();
        left.push(file.exists());
    }
    (left, problem)
}

fn repaired(silent: &Value) -> Value {
    json!({"done": [], "unfinished": [], "unavailable": silent, "quarantined": 0})
}

fn released(state: &str) -> Response {
    Response::ok(&json!({"id": "p", "state": state}))
}

#[tokio::test]
async fn the_file_of_a_run_stays_until_a_proxy_that_lost_its_ledger_has_asked_all_controllers() {
    let all = repaired(&json!([]));
    let silent = repaired(&json!([{"controller": CONTROLLER, "reason": "no answer"}]));
    let (left, problem) = passes(vec![
        (silent, None),
        (all.clone(), Some(Response::problem(409, "Conflict"))),
        (all.clone(), Some(released("releasing"))),
        (all, Some(released("gone"))),
    ])
    .await;
    assert_eq!(left, [true, true, true, false]);
    assert_eq!(problem, "");
}

#[tokio::test]
async fn a_controller_of_another_directory_does_not_keep_a_file() {
    let other = repaired(&json!([{"controller": "other:8090", "reason": "no answer"}]));
    let (left, problem) = passes(vec![(other, Some(released("gone")))]).await;
    assert_eq!((left, problem.as_str()), (vec![false], ""));
}
