//! Fault injection into jobs of eight workers on a real node, and the `firstFailure` in their status. In
//! jobs without a launcher all other workers fail when the victim does; with one, a real `mpirun` reports
//! the failed rank.

mod failures;

use ipu_test_cluster::{Cluster, mpi_image};
use serde_json::Value;

use self::failures::{IMAGE, InjectedFailure, inject};
use crate::cluster_fixture::ClusterFixture;
use crate::guide::launcher;

/// Number of injected failures unless `IPU_OPERATOR_PLANTED` is set: one per shape, each by exit code and
/// by the kernel.
const DEFAULT_FAILURES: usize = 4;

/// Minimum percentage of correctly named failures.
const MIN_CORRECT_PERCENT: usize = 95;

#[tokio::test(flavor = "multi_thread")]
async fn the_first_failure_names_the_injected_worker_and_cause_planted() {
    let test = "the_first_failure_names_the_injected_worker_and_cause_planted";
    let started = ClusterFixture::start_with(test, "planted", |_, operator| {
        operator.launcher_image = Some(IMAGE.into());
    });
    let Some(fixture) = started.await else {
        return;
    };
    if !load_image(fixture.cluster) {
        assert!(
            std::env::var_os("CI").is_none(),
            "{test}: Open MPI is not installed, and CI requires this test"
        );
        println!("skipped: {test}: Open MPI is not installed");
        return;
    }
    let count = variable("IPU_OPERATOR_PLANTED").unwrap_or(DEFAULT_FAILURES);
    let seed = variable("IPU_OPERATOR_PLANTED_SEED").unwrap_or(1);
    let storage = tempfile::tempdir().unwrap();
    let (mut correct, mut unreported) = (0, 0);
    for failure in inject(count, seed as u64) {
        fixture.apply(&failure.job(storage.path()));
        let status = fixture.wait_for_phase(&failure.name, "Failed").await;
        let is_correct = failure.is_named(&status);
        correct += usize::from(is_correct);
        unreported += usize::from(!is_correct && failure.is_unreported(&status));
        println!("{}", row(&failure, &status["firstFailure"], is_correct));
        if !is_correct {
            println!("{status}\n{}", fixture.kubectl(&["get", "pods", "-o", "yaml"]));
            // The full log; the status keeps only a part.
            let worker = status["firstFailure"]["name"].as_str().unwrap_or_default();
            if !fixture.pod(worker).await.is_null() {
                println!("{}", fixture.kubectl(&["logs", worker, "--all-containers"]));
            }
        }
        fixture.delete(&failure.name);
    }
    println!("{correct} of {count} first failures are named correctly (IPU_OPERATOR_PLANTED_SEED={seed})");
    // If `mpirun` does not print the failed rank, no worker is named; one such failure is tolerated.
    let enough =
        correct * 100 >= count * MIN_CORRECT_PERCENT || (unreported == 1 && correct + unreported == count);
    assert!(enough, "{correct} of {count}, {unreported} unreported");
    fixture.delete_all_and_shut_down().await;
}

/// Formats the injected and the reported failure.
fn row(injected: &InjectedFailure, failure: &Value, is_correct: bool) -> String {
    let text = |name: &str| failure[name].as_str().unwrap_or_default();
    format!(
        "{} | {:<40} | {} {}: {}",
        if is_correct { "right" } else { "WRONG" },
        injected.to_string(),
        text("kind"),
        text("name"),
        text("reason")
    )
}

/// Loads the image into the node; returns false if Open MPI is not installed.
fn load_image(cluster: &Cluster) -> bool {
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
