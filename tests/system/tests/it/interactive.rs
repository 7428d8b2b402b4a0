//! Jobs in which people work (seed 000 §6.6.1).

use crate::installation::installed_with_mpi;

#[test]
fn in_an_interactive_job_one_runs_mpirun_by_hand() {
    let name = "in_an_interactive_job_one_runs_mpirun_by_hand";
    let Some(product) = installed_with_mpi(name) else {
        return;
    };
    product.kubectl(&["create", "namespace", "by-hand"]);
    product.submit("by-hand", "interactive", str::to_owned);
    product.until("by-hand", "interactive", "Running");
    let exec = [
        "-n",
        "by-hand",
        "exec",
        "interactive-launcher",
        "-c",
        "launcher",
        "--",
    ];
    let typed = [
        "mpirun",
        "--allow-run-as-root",
        "--bind-to",
        "none",
        "-np",
        "2",
        "ring",
    ];
    let said = product.kubectl(&[&exec[..], &typed].concat());
    for rank in 0..2 {
        let line = format!("rank {rank} of 2 on GCD {rank} of p-interactive-0-");
        assert!(said.contains(&line), "{said}");
    }
    let failed = [&exec[..], &typed, &["5"]].concat();
    let error = product.cluster.kubectl(&failed).unwrap_err().to_string();
    assert!(error.contains("exit code 5"), "{error}");
    // It goes on until it is deleted or its time is over.
    product.until("by-hand", "interactive", "Running");
    product.delete("by-hand", "interactive");
}
