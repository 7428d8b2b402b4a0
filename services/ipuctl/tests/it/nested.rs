//! `ipuctl` inside a job of `ipuctl` uses the same simulated IPU-POD.

use serde_json::Value;

use crate::harness::{Home, job};

#[test]
fn inside_a_job_ipuctl_finds_its_partition_and_runs_share_the_ipu_pod() {
    let home = Home::new();
    let inner = home.file(
        "inner.yaml",
        &job("inner", 1, "echo inner on $IPUOF_VIPU_API_PARTITION_ID"),
    );
    let listed = home.path("listed.json");
    let script = format!(
        "'{exe}' partition list -o json > '{}' && '{exe}' run '{}'",
        listed.display(),
        inner.display(),
        exe = env!("CARGO_BIN_EXE_ipuctl"),
    );
    let outer = home.file("outer.yaml", &job("outer", 2, &script));
    let done = home.run(&["run", outer.to_str().unwrap()]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.out.contains("inner on p-inner-0-"), "{done:?}");
    assert!(done.err.contains("of simulated-pod16"), "{done:?}");
    let rows: Value = serde_json::from_str(&std::fs::read_to_string(listed).unwrap()).unwrap();
    assert_eq!(rows[0]["state"], "active", "{rows}");
    assert_eq!(rows[0]["owner"]["name"], "outer", "{rows}");
    home.assert_nothing_held();
}
