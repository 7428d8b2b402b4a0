//! Hooks of static partitions in a Slurm: Prolog asks `scontrol` for the partitions of the job.

use std::path::Path;

use ipu_test_slurm::{BED, BedOptions, Hook, NODES, bed};

use super::node_hooks::{GUIDE_EPILOG, GUIDE_PROLOG, create_pool};
use super::print_row;
use super::turns::{run_jobs, sum, timed_hook};

/// Measures Prolog and Epilog of jobs on one node.
pub(crate) fn measure(program: &Path, pairs: usize) {
    let guide = |script: &str| script.replace("@DATA@", "@BED@/guide");
    let options = BedOptions::new()
        .node_gres("vipu:2:2")
        .copy("hooks/ipu-slurm", program)
        .text("etc/vipu.conf", &format!("PoolDir={BED}/pool-%n\n"));
    let options = timed_hook(options, Hook::Prolog, "prolog", &guide(GUIDE_PROLOG));
    let options = timed_hook(options, Hook::Epilog, "epilog", &guide(GUIDE_EPILOG));
    let Some(bed) = bed("slurm", options) else { return };
    create_pool(&bed.directory().join("guide"));
    create_pool(&bed.directory().join(format!("pool-{}", NODES[0])));
    let arguments = ["-w", NODES[0], "--gres=vipu:2:1"];
    let times = run_jobs(&bed, pairs, &arguments, &["prolog", "epilog"]);
    let (own, guide) = sum(&times[0], &times[1]);
    print_row(
        "Prolog with scontrol + Epilog against the guide's scripts",
        own,
        guide,
    );
}
