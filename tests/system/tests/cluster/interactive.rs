//! Interactive jobs (V-IPU guide §6.6.1).

use std::ops::Deref;

use ipu_test_cluster::Cluster;

use crate::installation::Product;

impl<C: Deref<Target = Cluster>> Product<C> {
    /// Runs `mpirun` with two ranks in the launcher, and asserts that the exit code of a rank is reported.
    pub(crate) fn run_mpirun_in_an_interactive_job(&self) {
        self.kubectl(&["create", "namespace", "by-hand"]);
        self.submit("by-hand", "interactive", str::to_owned);
        self.wait_for_phase("by-hand", "interactive", "Running");
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
        let output = self.kubectl(&[&exec[..], &mpirun].concat());
        for rank in 0..2 {
            let line = format!("rank {rank} of 2 on GCD {rank} of p-interactive-0-");
            assert!(output.contains(&line), "{output}");
        }
        let failed = [&exec[..], &mpirun, &["5"]].concat();
        let error = self.cluster.kubectl(&failed).unwrap_err().to_string();
        assert!(error.contains("exit code 5"), "{error}");
        // The job runs until it is deleted or reaches its deadline.
        self.wait_for_phase("by-hand", "interactive", "Running");
        self.delete("by-hand", "interactive");
    }
}
