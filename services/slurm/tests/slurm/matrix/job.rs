//! The job of a cell.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Child;
use std::time::Instant;

use ipu_test_slurm::{BED, Bed};

use super::CLIENT_TIMEOUT;
use super::cell::{Cell, Command};
use super::way::WayCluster;

/// A submitted job.
pub(crate) struct Job {
    pub(crate) id: String,
    /// Name of the job and of its files in `work`.
    name: String,
    directory: PathBuf,
    /// `srun` or `salloc`; none for a batch job.
    client: Option<Child>,
}

impl Job {
    /// Submits the job of a cell as an ordinary user. It records its variables at each start, and runs until
    /// a test names an exit code.
    pub(crate) fn submit(cluster: &WayCluster, cell: Cell, number: usize) -> Self {
        let bed = &cluster.cluster.bed;
        let directory = bed.directory().join("work");
        let name = format!("cell-{number}");
        let base = format!("{BED}/work/{name}");
        let script = format!(
            "#!/bin/sh\nrun={base}.run${{SLURM_RESTART_COUNT:-0}}\nenv | grep ^IPUOF_ >$run.new\nmv $run.new $run\n\
             while [ ! -e {base}.exit ]; do sleep 0.1; done\nexit $(cat {base}.exit)\n"
        );
        fs::write(directory.join(format!("{name}.sh")), script).unwrap();
        let mut command = bed.command_as("daemon", cell.command.name());
        command.args(["-N1", "-J", &name]).args(cell.way.request());
        let script = format!("{base}.sh");
        let mut client = None;
        match cell.command {
            Command::Sbatch => {
                command.args(["-o", &format!("{base}.out"), &script]);
                let output = command.output().unwrap();
                assert!(output.status.success(), "{output:?}");
            }
            Command::Srun | Command::Salloc => {
                let output = File::create(directory.join(format!("{name}.out"))).unwrap();
                if cell.command == Command::Salloc {
                    command.arg("srun");
                }
                command.args(["sh", &script]);
                command.stdout(output.try_clone().unwrap()).stderr(output);
                client = Some(command.spawn().unwrap());
            }
        }
        let id = bed.wait_for("Slurm shows the job", || {
            let line = bed.run("squeue", &["-h", "-n", &name, "-o", "%i"]).stdout;
            line.lines().next().map(str::to_owned)
        });
        Self {
            id,
            name,
            directory,
            client,
        }
    }

    /// Waits until the job has started for the time with this number, and returns the variables of its task.
    pub(crate) fn wait_for_variables(&self, bed: &Bed, start: u32) -> BTreeSet<String> {
        let path = self.directory.join(format!("{}.run{start}", self.name));
        let text = bed.wait_for(&format!("the job has started, output: {}", self.output()), || {
            fs::read_to_string(&path).ok()
        });
        text.lines().map(str::to_owned).collect()
    }

    /// Returns whether a task of the job has started.
    pub(crate) fn has_started(&self) -> bool {
        self.directory.join(format!("{}.run0", self.name)).exists()
    }

    /// Lets the task end with an exit code.
    pub(crate) fn release(&self, code: i32) {
        fs::write(
            self.directory.join(format!("{}.exit", self.name)),
            code.to_string(),
        )
        .unwrap();
    }

    /// Waits until the client has ended, and returns whether it succeeded. A batch job has none.
    pub(crate) fn wait_for_client(&mut self) -> Option<bool> {
        let client = self.client.as_mut()?;
        let started = Instant::now();
        while started.elapsed() < CLIENT_TIMEOUT {
            if let Some(status) = client.try_wait().unwrap() {
                return Some(status.success());
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("the client has not ended, output: {}", self.output());
    }

    /// Returns the output of the job, or of its client.
    pub(crate) fn output(&self) -> String {
        fs::read_to_string(self.directory.join(format!("{}.out", self.name))).unwrap_or_default()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(client) = &mut self.client {
            // It is not left to a failed test; after a success it has ended.
            let _ = client.kill();
            let _ = client.wait();
        }
    }
}
