//! Tests with real Open MPI: `mpirun` in a launcher starts ranks in workers through the API server.

use std::path::Path;

use ipu_test_cluster::{Cluster, ClusterProfile, Image, mpi_image, shared_with};
use serde_json::{Value, json};

use crate::support::Fixture;

const IMAGE: &str = "local/openmpi:1";
const LAUNCHER: &str = "local/ipu-launcher:1";

#[test]
fn mpirun_starts_ranks_in_the_workers_and_passes_their_failure_on() {
    let name = "mpirun_starts_ranks_in_the_workers_and_passes_their_failure_on";
    let Some(cluster) = shared_with(name, ClusterProfile::Node) else {
        return;
    };
    if !load_images(name, cluster) {
        return;
    }
    let workers = ["ring-worker-0", "ring-worker-1"];
    let fixture = Fixture::new(cluster, "mpi", &workers);
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ring-config"}, "data": {
        "hostfile": "ring-worker-0 slots=1\nring-worker-1 slots=1\n",
        "kubexec.sh": "#!/bin/sh\nexec /opt/ipu/ipu-launcher agent \"$@\"\n",
    }});
    fixture.apply(&config);
    // The first launcher is created before the workers, and waits for them.
    fixture.apply(&launcher("ring-launcher", "mpirun -np 2 /usr/bin/ring"));
    for worker in workers {
        fixture.apply(&worker_pod(worker));
    }
    fixture.wait_until("ring-launcher", "jsonpath={.status.phase}=Succeeded");
    let log = fixture.kubectl(&["logs", "ring-launcher"]).unwrap();
    for line in [
        "rank 0 of 2 on GCD 0 of none received 1, the sum is 1",
        "rank 1 of 2 on GCD 1 of none received 0, the sum is 1",
    ] {
        assert!(log.contains(line), "{log}");
    }
    let waited = fixture.kubectl(&["logs", "ring-launcher", "-c", "wait"]).unwrap();
    assert!(waited.contains("all 2 workers are ready"), "{waited}");

    fixture.apply(&launcher("failing-launcher", "mpirun -np 2 /usr/bin/ring 17"));
    fixture.wait_until("failing-launcher", "jsonpath={.status.phase}=Failed");
    let code = "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}";
    assert_eq!(
        fixture
            .kubectl(&["get", "pod", "failing-launcher", "-o", code])
            .unwrap(),
        "17"
    );
    let log = fixture.kubectl(&["logs", "failing-launcher"]).unwrap();
    assert!(log.contains("rank 1 of 2 on GCD 1"), "{log}");
    // No process of either run is left in the workers.
    for worker in workers {
        let left = fixture.kubectl(&["exec", worker, "--", "ps"]).unwrap();
        assert!(!left.contains("orted") && !left.contains("ring "), "{left}");
    }
}

/// Loads the user's image and the launcher's image into the node; CI requires Open MPI.
#[expect(clippy::print_stdout, reason = "a skipped test prints the reason")]
fn load_images(test: &str, cluster: &Cluster) -> bool {
    let launcher = Path::new(env!("CARGO_BIN_EXE_ipu-launcher"));
    let scratch = tempfile::tempdir().unwrap();
    let Some(image) = mpi_image(IMAGE, launcher, scratch.path()).unwrap() else {
        assert!(
            std::env::var_os("CI").is_none(),
            "{test}: Open MPI is not installed, and CI requires this test"
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
    // The ranks print the variables of their worker.
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
