//! Tests of the plugin in a real Slurm.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod lua;
mod options;
mod symbols;

use std::env;
use std::fs;
use std::path::PathBuf;

use ipu_test_slurm::{Bed, BedOptions, Hook, bed};

/// Records the environment of a hook in `records/<job>.<context>`, that of a step's TaskProlog with the step.
/// From Slurm 26.05 on, a batch script has the step -5.
pub(crate) const RECORD: &str =
    "env >/run/slurm-bed/records/$SLURM_JOB_ID.$SLURM_SCRIPT_CONTEXT${SLURM_STEP_ID##-*}";

/// Returns the library as `cargo test` built it, next to the test.
pub(crate) fn library() -> PathBuf {
    env::current_exe().unwrap().with_file_name("libspank_vipu.so")
}

/// Returns a bed with the plugin and hooks that record their environments.
pub(crate) fn bed_with_plugin(test: &str) -> Option<Bed> {
    let hooks = [
        Hook::PrologSlurmctld,
        Hook::EpilogSlurmctld,
        Hook::Prolog,
        Hook::Epilog,
        Hook::TaskProlog,
    ];
    let options = BedOptions::new()
        .licenses("pod64:64")
        .spank_plugin("optional", &library());
    let options = hooks
        .into_iter()
        .fold(options, |options, hook| options.hook_script(hook, RECORD));
    bed(test, options)
}

/// Returns the variables with `VIPU_` of a recorded environment, sorted, without those that Slurm derives
/// from the options. Waits until the hook has run.
pub(crate) fn recorded(bed: &Bed, record: &str) -> Vec<String> {
    let path = bed.directory().join("records").join(record);
    let text = bed.wait_for(&format!("{record} is recorded"), || {
        let text = fs::read_to_string(&path).ok()?;
        text.contains("SLURM_JOB_UID=").then_some(text)
    });
    let mut lines: Vec<String> = text
        .lines()
        .filter(|line| line.contains("VIPU_") && !line.contains("_OPTION_vipu_"))
        .map(str::to_owned)
        .collect();
    lines.sort();
    lines
}
