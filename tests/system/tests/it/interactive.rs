//! Interactive jobs (seed 000 §6.6.1).

use crate::installation::installed_with_mpi;

#[test]
fn a_user_runs_mpirun_in_an_interactive_job() {
    let name = "a_user_runs_mpirun_in_an_interactive_job";
    let Some(product) = installed_with_mpi(name) else {
        return;
    };
    product.kubectl(&["create", "namespace", "by-hand"]);
    product.submit("by-hand", "interactive", str::to_owned);
    product.wait_for_phase("by-hand", "interactive", "Running");
    let exec = [
        "-n",
        "by-hand",
        "exec",
        "interactive-launcher",
        "-c",
        "launcher",
        "--",
    ];
    let mpirun = [
        "mpirun",
        "--allow-run-as-root",
        "--bind-to",
        "none",
        "-np",
        "2",
        "ring",
    ];
    let output = product.kubectl(&[&exec[..], &mpirun].concat());
    for rank in 0..2 {
        let line = format!("rank {rank} of 2 on GCD {rank} of p-interactive-0-");
        assert!(output.contains(&line), "{output}");
    }
    let failed = [&exec[..], &mpirun, &["5"]].concat();
    let error = product.cluster.kubectl(&failed).unwrap_err().to_string();
    assert!(error.contains("exit code 5"), "{error}");
    // The job runs until it is deleted or reaches its deadline.
    product.wait_for_phase("by-hand", "interactive", "Running");
    product.delete("by-hand", "interactive");
}
