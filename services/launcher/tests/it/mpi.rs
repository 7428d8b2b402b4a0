//! Real Open MPI: `mpirun` in a launcher starts ranks in workers, by way of the API server.

use std::path::Path;

use ipu_test_cluster::{Cluster, ClusterProfile, Image, mpi_image, shared_with};
use serde_json::{Value, json};

use crate::support::Scene;

const IMAGE: &str = "local/openmpi:1";
const LAUNCHER: &str = "local/ipu-launcher:1";

#[test]
fn mpirun_starts_ranks_in_the_workers_and_passes_their_failure_on() {
    let name = "mpirun_starts_ranks_in_the_workers_and_passes_their_failure_on";
    let Some(cluster) = shared_with(name, ClusterProfile::Node) else {
        return;
    };
    if !load(name, cluster) {
        return;
    }
    let workers = ["ring-worker-0", "ring-worker-1"];
    let scene = Scene::new(cluster, "mpi", &workers);
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ring-config"}, "data": {
        "hostfile": "ring-worker-0 slots=1\nring-worker-1 slots=1\n",
        "kubexec.sh": "#!/bin/sh\nexec /opt/ipu/ipu-launcher agent \"$@\"\n",
    }});
    scene.apply(&config);
    // The first launcher comes before the workers, and waits for them.
    scene.apply(&launcher("ring-launcher", "mpirun -np 2 /usr/bin/ring"));
    for worker in workers {
        scene.apply(&worker_pod(worker));
    }
    scene.until("ring-launcher", "jsonpath={.status.phase}=Succeeded");
    let log = scene.kubectl(&["logs", "ring-launcher"]).unwrap();
    for line in [
        "rank 0 of 2 on GCD 0 of none heard of 1, the sum is 1",
        "rank 1 of 2 on GCD 1 of none heard of 0, the sum is 1",
    ] {
        assert!(log.contains(line), "{log}");
    }
    let waited = scene.kubectl(&["logs", "ring-launcher", "-c", "wait"]).unwrap();
    assert!(waited.contains("all 2 workers are ready"), "{waited}");

    scene.apply(&launcher("failing-launcher", "mpirun -np 2 /usr/bin/ring 17"));
    scene.until("failing-launcher", "jsonpath={.status.phase}=Failed");
    let code = "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}";
    assert_eq!(
        scene
            .kubectl(&["get", "pod", "failing-launcher", "-o", code])
            .unwrap(),
        "17"
    );
    let log = scene.kubectl(&["logs", "failing-launcher"]).unwrap();
    assert!(log.contains("rank 1 of 2 on GCD 1"), "{log}");
    // Nothing of either run is left in the workers.
    for worker in workers {
        let left = scene.kubectl(&["exec", worker, "--", "ps"]).unwrap();
        assert!(!left.contains("orted") && !left.contains("ring "), "{left}");
    }
}

/// Makes the image of the user and that of the launcher known to the node; CI wants Open MPI.
#[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
fn load(test: &str, cluster: &Cluster) -> bool {
    let launcher = Path::new(env!("CARGO_BIN_EXE_ipu-launcher"));
    let scratch = tempfile::tempdir().unwrap();
    let Some(image) = mpi_image(IMAGE, launcher, scratch.path()).unwrap() else {
        assert!(
            std::env::var_os("CI").is_none(),
            "{test}: Open MPI is not installed, and CI wants this test"
        );
        println!("skipped: {test}: Open MPI is not installed");
        return false;
    };
    cluster.load(&image).unwrap();
    let image = Image::new(LAUNCHER)
        .program(launcher, "/usr/bin/ipu-launcher")
        .unwrap();
    cluster.load(&image).unwrap();
    true
}

fn worker_pod(name: &str) -> Value {
    let mut worker = crate::support::pod(name, "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done");
    worker["spec"]["containers"][0]["image"] = json!(IMAGE);
    // Ranks tell what they see of the worker that they are in.
    let gcd = name.rsplit('-').next();
    worker["spec"]["containers"][0]["env"] = json!([{"name": "IPUOF_VIPU_API_GCD_ID", "value": gcd}]);
    worker["spec"]["volumes"] = volumes();
    worker["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "config", "mountPath": "/etc/mpi"}]);
    worker
}

fn launcher(name: &str, command: &str) -> Value {
    let mounts =
        json!([{"name": "config", "mountPath": "/etc/mpi"}, {"name": "ipu", "mountPath": "/opt/ipu"}]);
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": "launcher",
            "volumes": volumes(),
            "initContainers": [{
                "name": "wait", "image": LAUNCHER, "volumeMounts": mounts,
                "command": ["/usr/bin/ipu-launcher", "wait", "--install", "/opt/ipu"],
            }],
            "containers": [{
                "name": "main", "image": IMAGE, "volumeMounts": mounts,
                "command": ["/bin/sh", "-c", command],
                "env": [
                    {"name": "OMPI_MCA_plm_rsh_agent", "value": "/etc/mpi/kubexec.sh"},
                    {"name": "OMPI_MCA_orte_default_hostfile", "value": "/etc/mpi/hostfile"},
                ],
            }],
        },
    })
}

fn volumes() -> Value {
    json!([
        {"name": "config", "configMap": {"name": "ring-config", "defaultMode": 0o555}},
        {"name": "ipu", "emptyDir": {}},
    ])
}
