//! Failures that are planted into jobs of eight workers on a real node, and whom the status names for them. In jobs without
//! a launcher all others fail in the moment in which the victim does; with one, a real `mpirun` tells of the rank that did.

mod failures;

use ipu_test_cluster::{Cluster, mpi_image};
use serde_json::Value;

use self::failures::{IMAGE, Planted, planted};
use crate::cluster_fixture::ClusterFixture;
use crate::guide::launcher;

/// How many failures are planted unless `IPU_OPERATOR_PLANTED` says otherwise: one of each shape, and each by a code and by
/// the kernel.
const FEW: usize = 4;

/// Of a hundred, how many have to be told right at least.
const RIGHT: usize = 95;

#[tokio::test(flavor = "multi_thread")]
async fn the_first_failure_names_the_worker_and_the_cause_that_were_planted() {
    let test = "the_first_failure_names_the_worker_and_the_cause_that_were_planted";
    let started = ClusterFixture::start_with(test, "planted", |_, operator| {
        operator.launcher_image = Some(IMAGE.into());
    });
    let Some(served) = started.await else {
        return;
    };
    if !load(served.cluster) {
        assert!(
            std::env::var_os("CI").is_none(),
            "{test}: Open MPI is not installed, and CI wants this test"
        );
        println!("skipped: {test}: Open MPI is not installed");
        return;
    }
    let many = variable("IPU_OPERATOR_PLANTED").unwrap_or(FEW);
    let seed = variable("IPU_OPERATOR_PLANTED_SEED").unwrap_or(1);
    let storage = tempfile::tempdir().unwrap();
    let (mut right, mut untold) = (0, 0);
    for plant in planted(many, seed as u64) {
        served.apply(&plant.job(storage.path()));
        let status = served.is(&plant.name, "Failed").await;
        let named = plant.is_named(&status);
        right += usize::from(named);
        untold += usize::from(!named && plant.is_untold(&status));
        println!("{}", row(&plant, &status["firstFailure"], named));
        if !named {
            println!("{status}\n{}", served.kubectl(&["get", "pods", "-o", "yaml"]));
            // All that it said, and not only what was kept of it.
            let named = status["firstFailure"]["name"].as_str().unwrap_or_default();
            if !served.pod(named).await.is_null() {
                println!("{}", served.kubectl(&["logs", named, "--all-containers"]));
            }
        }
        served.delete(&plant.name);
    }
    println!("{right} of {many} first failures are named right (IPU_OPERATOR_PLANTED_SEED={seed})");
    // Where `mpirun` leaves out which rank it was, nobody is to be guessed: of a few failures, one may be such.
    let enough = right * 100 >= many * RIGHT || (untold == 1 && right + untold == many);
    assert!(enough, "{right} of {many}, {untold} untold");
    served.ends_without_a_trace().await;
}

/// What was planted, and what was named.
fn row(plant: &Planted, failure: &Value, named: bool) -> String {
    let text = |name: &str| failure[name].as_str().unwrap_or_default();
    format!(
        "{} | {:<40} | {} {}: {}",
        if named { "right" } else { "WRONG" },
        plant.to_string(),
        text("kind"),
        text("name"),
        text("reason")
    )
}

/// Makes the image known to the node; false if there is no Open MPI to make it of.
fn load(cluster: &Cluster) -> bool {
    let scratch = tempfile::tempdir().unwrap();
    let Some(image) = mpi_image(IMAGE, &launcher(), scratch.path()).unwrap() else {
        return false;
    };
    let image = image.file(&launcher(), "/usr/bin/ipu-launcher");
    cluster.load(&image).unwrap();
    true
}

fn variable(name: &str) -> Option<usize> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}
