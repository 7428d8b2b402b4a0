//! The symbols of the library.

use std::process::Command;

use crate::library;

/// Slurm starts a helper for every job if a plugin has `slurm_spank_job_prolog` or `slurm_spank_job_epilog`,
/// which costs 15 to 21 ms per `srun`.
const EXPORTED: [&str; 6] = [
    "plugin_name",
    "plugin_type",
    "plugin_version",
    "slurm_spank_init",
    "slurm_spank_init_post_opt",
    "spank_plugin_version",
];

const RESOLVED_BY_SLURM: [&str; 6] = [
    "slurm_error",
    "spank_context",
    "spank_job_control_setenv",
    "spank_job_control_unsetenv",
    "spank_option_register",
    "spank_setenv",
];

#[test]
fn the_library_exports_this_list_and_nothing_else() {
    assert_eq!(symbols("--defined-only"), EXPORTED);
}

#[test]
fn the_library_needs_this_list_of_slurm() {
    let needed = symbols("--undefined-only");
    let of_slurm: Vec<&String> = needed
        .iter()
        .filter(|name| name.starts_with("slurm_") || name.starts_with("spank_"))
        .collect();
    assert_eq!(of_slurm, RESOLVED_BY_SLURM);
}

/// Returns the sorted names of dynamic symbols.
fn symbols(kind: &str) -> Vec<String> {
    let output = Command::new("nm")
        .args(["--dynamic", "--format=just-symbols", kind])
        .arg(library())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut names: Vec<String> = text.lines().map(str::to_owned).collect();
    names.sort();
    names
}
