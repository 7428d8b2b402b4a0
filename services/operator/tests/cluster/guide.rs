//! Walk-throughs of Graphcore's guides on a real node, and of later additions. A test of a guide has the
//! section number in its name.

mod autoscaling;
mod clean_up;
mod controllers;
mod deadlines;
mod deletion;
mod inference;
mod interactive;
mod legacy_manifests;
mod mpi_debugging;
mod preemption;
mod queue_order;
mod restarts;
mod sample;
mod suspended_and_refused;
mod usage;
mod volumes;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use ipu_test_cluster::{Cluster, Image};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// Image of the jobs of the guides and of the launcher's init container.
pub(crate) const IMAGE: &str = "local/resnet:1";

/// Replacement for `mpirun`: runs its command on every host through the configured remote agent, as Open
/// MPI does.
const MPIRUN: &str = r#"#!/bin/sh
while :; do
    case $1 in
        -np | --bind-to) shift 2 ;;
        -*) shift ;;
        *) break ;;
    esac
done
for host in $(cut -d' ' -f1 "$OMPI_MCA_orte_default_hostfile"); do
    "$OMPI_MCA_plm_rsh_agent" "$host" "$@" &
    rank=$!
    trap 'kill $rank' TERM
    wait $rank || exit $?
done
"#;

/// Replacement for Python: trains until a file contains the exit code.
const PYTHON: &str = r#"#!/bin/sh
echo "$1 on $IPUOF_VIPU_API_PARTITION_ID gcd $IPUOF_VIPU_API_GCD_ID"
until [ -s /tmp/end ]; do sleep 1; done
exit "$(cat /tmp/end)"
"#;

/// Loads [`IMAGE`] into the node, once for all tests of the cluster.
pub(crate) async fn load_image(cluster: &Cluster) {
    static LOADED: OnceCell<()> = OnceCell::const_new();
    LOADED
        .get_or_init(async || {
            let folder = tempfile::tempdir().unwrap();
            let script = |name: &str, text: &str| {
                let path = folder.path().join(name);
                std::fs::write(&path, text).unwrap();
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
                path
            };
            let image = Image::busybox(IMAGE)
                .unwrap()
                // The user's container runs the launcher that the init container installs. It needs its
                // shared libraries, because test builds are linked dynamically.
                .program(&launcher(), "/usr/bin/ipu-launcher")
                .unwrap()
                .file(&script("mpirun", MPIRUN), "/usr/bin/mpirun")
                .file(&script("python3", PYTHON), "/usr/bin/python3");
            cluster.load(&image).unwrap();
        })
        .await;
}

/// Returns the path of this build's `ipu-launcher`.
pub(crate) fn launcher() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // Binaries are in the parent of the test folder.
    let profile = test.parent().and_then(Path::parent).unwrap();
    let program = profile.join("ipu-launcher");
    // `cargo test --workspace` builds all binaries first.
    if !program.exists() {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "-p", "ipu-launcher"]);
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success());
    }
    program
}

/// Reads the IPUJob from a manifest of a guide, and sets a locally available image.
fn guide_job(yaml: &str) -> Value {
    let job = yaml.split("\n---").find(|part| part.contains("kind: IPUJob"));
    let mut job: Value = serde_saphyr::from_str(job.unwrap()).unwrap();
    let container = &mut job["spec"]["workers"]["template"]["spec"]["containers"][0];
    container["image"] = IMAGE.into();
    container["imagePullPolicy"] = "IfNotPresent".into();
    job
}

/// Returns a job whose launcher runs a script.
pub(crate) fn job_with_launcher(name: &str, script: &str) -> Value {
    let mut job = guide_job(include_str!(
        "../../../../ipu-k8s/tests/data/guides/vipu-training.yaml"
    ));
    job["metadata"]["name"] = name.into();
    job["spec"]["launcher"]["command"] = json!(["/bin/sh", "-c", script]);
    job["spec"]["workers"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1.into();
    job
}
