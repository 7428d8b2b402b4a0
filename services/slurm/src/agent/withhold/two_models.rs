//! Reservations of several models.

use std::path::Path;

use ipu_core::Namespace;
use ipu_slurm::conf::ConfFiles;
use serde_json::json;

use super::super::context::Context;
use super::withhold;
use crate::failure::Failure;
use crate::fake_slurm::fake_slurm;
use crate::scripted_proxy::{Response, ScriptedProxy};

/// Prints the licenses and the reservations, and records the other commands. It refuses a change of `ipu_b`.
const SCONTROL: &str = r#"cd "$(dirname "$0")"
case "$*" in
"-o show licenses")
  for name in a b c; do echo "LicenseName=$name Total=64 Used=0 Free=64 Reserved=0 Remote=no"; done;;
"-o show reservation") cat reservations;;
*ipu_b*) echo "slurm_update error: Access denied" >&2; exit 1;;
"delete "*) echo "delete_reservation ${2}: Requested reservation is invalid" >&2; exit 1;;
*) echo "$*" >>changes;;
esac"#;

/// Updates the reservations of models that have as many free IPUs, with these present reservations.
async fn withhold_with(
    directory: &Path,
    models: &'static [&'static str],
    free: u32,
    reservations: &str,
) -> Result<Vec<String>, Failure> {
    std::fs::write(directory.join("reservations"), reservations).unwrap();
    let controllers: Vec<_> = models
        .iter()
        .map(|name| {
            json!({"name": format!("{name}:8090"), "available": true, "draining": false,
                          "free": free, "failuresInARow": 0})
        })
        .collect();
    let server = ScriptedProxy::start(move |request| match request {
        "GET /v1/controllers" => Response::ok(&json!({"controllers": controllers})),
        _ => Response::ok(&json!({"partitions": []})),
    });
    let files: Vec<(&str, String)> = models
        .iter()
        .map(|name| (*name, format!("ApiHost={name}\nApiPort=8090\nIpuofDir=/d\n")))
        .collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let context = Context {
        conf: ConfFiles::parse(("vipu.conf", ""), &files).unwrap(),
        slurm: fake_slurm(directory, &[("scontrol", SCONTROL)]),
        proxy: server.client(),
        cluster: Namespace::new("testbed").unwrap(),
    };
    withhold(&context, Some(&directory.join("ipu-slurm.prom"))).await
}

#[tokio::test]
async fn a_reservation_that_cannot_change_keeps_no_other_model_from_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    // A reservation of the site has the name of that of the model `a`.
    let foreign = "ReservationName=ipu_a StartTime=1 EndTime=2 Nodes=n1 Licenses=(null)\n";
    let problem = withhold_with(path, &["a", "b", "c"], 16, foreign)
        .await
        .unwrap_err()
        .0;
    assert!(problem.contains("ipu_a"), "{problem}");
    assert!(problem.contains("Access denied"), "{problem}");
    let changes = std::fs::read_to_string(path.join("changes")).unwrap();
    assert!(
        changes.starts_with("create reservation ReservationName=ipu_c Licenses=c:48 "),
        "{changes}"
    );
    let metrics = std::fs::read_to_string(path.join("ipu-slurm.prom")).unwrap();
    assert!(
        metrics.ends_with("ipu_slurm_withheld_licenses{license=\"c\"} 48\n"),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_reservation_that_another_agent_has_deleted_is_no_problem() {
    let directory = tempfile::tempdir().unwrap();
    let own = "ReservationName=ipu_a StartTime=1 EndTime=2 Nodes=(null) Licenses=a:48\n";
    let lines = withhold_with(directory.path(), &["a"], 64, own).await.unwrap();
    assert!(lines.is_empty(), "{lines:?}");
}
