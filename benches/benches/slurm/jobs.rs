//! Whole jobs: many at once with the hooks of slurmctld and without, and `srun` with the SPANK plugin.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use ipu_test_slurm::{BED, Bed, BedOptions, Hook, bed};

use super::controller::{start_proxy, with_ipus};
use super::{print_row, time};

/// Rounds of the rate of jobs, and jobs of a round.
const ROUNDS: usize = 10;
/// Jobs of a round, 20 at once.
const JOBS: &str = "--array=1-100%20";
/// The hooks of slurmctld.
const HOOKS: [(Hook, &str); 2] = [
    (Hook::PrologSlurmctld, "prolog-slurmctld"),
    (Hook::EpilogSlurmctld, "epilog-slurmctld"),
];

/// Measures 1,000 jobs with IPUs, against 1,000 with `/bin/true` as hooks.
pub(crate) fn measure_rate(program: &Path, proxy: &Path) {
    let (mut with_hooks, mut with_true) = (with_ipus(BedOptions::new(), program, proxy), BedOptions::new());
    for (hook, name) in HOOKS {
        let path = format!("hooks/{name}");
        with_hooks = with_hooks
            .text(&path, "")
            .hook_program(hook, &format!("{BED}/{path}"));
        with_true = with_true.hook_program(hook, "/bin/true");
    }
    let with_true = with_true.licenses("pod64:64");
    let (Some(mut hooks), Some(plain)) = (bed("slurm", with_hooks), bed("slurm", with_true)) else {
        return;
    };
    // slurmctld checked the paths of the placeholders when it started.
    for (_, name) in HOOKS {
        let path = hooks.directory().join("hooks").join(name);
        fs::remove_file(&path).expect("a placeholder");
        symlink("ipu-slurm", path).expect("a link");
    }
    start_proxy(&mut hooks);
    let (mut own, mut other) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        own.push(run_round(&hooks));
        other.push(run_round(&plain));
    }
    print_row("100 jobs, 20 at once, against /bin/true as hooks", own, other);
}

/// Runs the jobs of a round, and returns the time until the last one has left the queue.
fn run_round(bed: &Bed) -> Duration {
    let started = Instant::now();
    bed.succeed(
        "sbatch",
        &[JOBS, "--licenses=pod64:1", "-o", "/dev/null", "--wrap", "true"],
    );
    bed.wait_until("no job is left", || bed.job_ids().is_empty());
    started.elapsed()
}

/// Measures `srun true` with and without the plugin.
pub(crate) fn measure_plugin(program: &Path, pairs: usize) {
    let library = program.with_file_name("libspank_vipu.so");
    let with_plugin = BedOptions::new().spank_plugin("required", &library);
    let (Some(with), Some(without)) = (bed("slurm", with_plugin), bed("slurm", BedOptions::new())) else {
        return;
    };
    let run = |bed: &Bed| {
        let mut command = bed.command("srun");
        command.arg("true");
        time(command, "")
    };
    let (mut own, mut other) = (Vec::new(), Vec::new());
    for _ in 0..pairs {
        own.push(run(&with));
        other.push(run(&without));
    }
    print_row("srun true with the plugin, against none", own, other);
}
