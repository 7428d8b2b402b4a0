//! Reservations of several models.

use ipu_core::Namespace;
use ipu_slurm::conf::ConfFiles;
use serde_json::json;

use super::super::context::Context;
use super::withhold;
use crate::fake_slurm::fake_slurm;
use crate::scripted_proxy::{Response, ScriptedProxy};

/// Prints the licenses and the reservations, and records the other commands. It refuses a change of `ipu_b`.
const SCONTROL: &str = r#"cd "$(dirname "$0")"
case "$*" in
"-o show licenses")
  for name in a b c; do echo "LicenseName=$name Total=64 Used=0 Free=64 Reserved=0 Remote=no"; done;;
"-o show reservation") cat reservations;;
*ipu_b*) echo "slurm_update error: Access denied" >&2; exit 1;;
*) echo "$*" >>changes;;
esac"#;

#[tokio::test]
async fn a_reservation_that_cannot_change_keeps_no_other_model_from_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    // A reservation of the site has the name of that of the model `a`.
    let foreign = "ReservationName=ipu_a StartTime=1 EndTime=2 Nodes=n1 Licenses=(null)\n";
    std::fs::write(path.join("reservations"), foreign).unwrap();
    let controllers: Vec<_> = ["a", "b", "c"]
        .map(|name| {
            json!({"name": format!("{name}:8090"), "available": true, "draining": false,
                          "free": 16, "failuresInARow": 0})
        })
        .into();
    let server = ScriptedProxy::start(move |request| match request {
        "GET /v1/controllers" => Response::ok(&json!({"controllers": controllers})),
        _ => Response::ok(&json!({"partitions": []})),
    });
    let models = ["a", "b", "c"].map(|name| (name, format!("ApiHost={name}\nApiPort=8090\nIpuofDir=/d\n")));
    let models: Vec<(&str, &str)> = models.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let context = Context {
        conf: ConfFiles::parse(("vipu.conf", ""), &models).unwrap(),
        slurm: fake_slurm(path, &[("scontrol", SCONTROL)]),
        proxy: server.client(),
        cluster: Namespace::new("testbed").unwrap(),
    };
    let problem = withhold(&context).await.unwrap_err().0;
    assert!(problem.contains("ipu_a"), "{problem}");
    assert!(problem.contains("Access denied"), "{problem}");
    let changes = std::fs::read_to_string(path.join("changes")).unwrap();
    assert!(
        changes.starts_with("create reservation ReservationName=ipu_c Licenses=c:48 "),
        "{changes}"
    );
}
