//! The SPANK plugin in the Slurm of this host.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::render_command::Report;
use crate::slurm_commands::DIRECTORIES;

/// Part of Slurm's line about a plugin of another version. Slurm skips an `optional` one.
const OTHER_VERSION: &str = "Incompatible Slurm plugin";

/// Parts of Slurm's lines about its own files. No command then starts.
const REFUSED: [&str; 2] = ["Parsing error", "Parse error"];

/// Checks that Slurm loads the plugin.
pub(super) fn check(report: &mut Report, directory: &Path) {
    // A host without srun submits no jobs.
    let Some(srun) = find_srun(&DIRECTORIES) else {
        return;
    };
    let output = Command::new(srun)
        .arg("--help")
        .env("SLURM_CONF", directory.join("slurm.conf"))
        .output();
    let Ok(output) = output else { return };
    if String::from_utf8_lossy(&output.stdout).contains("--ipus") {
        return;
    }
    let messages = String::from_utf8_lossy(&output.stderr);
    match refusal(&messages) {
        Some(line) => report.first_error(&line),
        None => report.error(finding(&messages)),
    }
}

/// Returns the first `srun` of these directories.
fn find_srun(directories: &[&str]) -> Option<PathBuf> {
    let mut programs = directories
        .iter()
        .map(|directory| Path::new(directory).join("srun"));
    programs.find(|program| program.exists())
}

/// Returns the finding of a Slurm that refuses a line of its files.
fn refusal(messages: &str) -> Option<String> {
    let is_refusal = |line: &&str| REFUSED.iter().any(|words| line.contains(words));
    let lines: Vec<&str> = messages.lines().map(str::trim).filter(is_refusal).collect();
    (!lines.is_empty()).then(|| {
        format!(
            "srun --help: Slurm refuses its files ({}); correct the line",
            lines.join("; ")
        )
    })
}

/// Returns the finding of a Slurm without the options; `messages` is the error output of `srun`.
fn finding(messages: &str) -> String {
    let line = |words: &[&str]| {
        let mut lines = messages.lines();
        lines.find(|line| words.iter().any(|word| line.contains(word)))
    };
    if let Some(reason) = line(&[OTHER_VERSION]) {
        return format!(
            "srun --help has no --ipus ({}): the SPANK plugin is of another version; install that of an ipu-slurm \
             that knows this Slurm, and restart slurmd",
            reason.trim()
        );
    }
    let reason = line(&["error", "fatal"]).unwrap_or("the plugin is not loaded");
    format!(
        "srun --help has no --ipus ({}); install the SPANK plugin of this release, and its line in plugstack.conf",
        reason.trim()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_srun_of_a_slurm_elsewhere_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        assert_eq!(find_srun(&["/nonexistent", path]), None);
        std::fs::write(directory.path().join("srun"), "").unwrap();
        assert_eq!(
            find_srun(&["/nonexistent", path]),
            Some(directory.path().join("srun"))
        );
    }

    #[test]
    fn a_line_that_slurm_refuses_is_no_finding_about_the_plugin() {
        let messages = "srun: error: _parse_next_key: Parsing error at unrecognized key: Licences\n\
                        srun: error: Parse error in file /etc/slurm/slurm.conf line 3: \"Licences=pod16:16\"\n\
                        srun: fatal: Unable to process configuration file\n";
        assert_eq!(
            refusal(messages).as_deref(),
            Some(
                "srun --help: Slurm refuses its files (srun: error: _parse_next_key: Parsing error at unrecognized key: \
                 Licences; srun: error: Parse error in file /etc/slurm/slurm.conf line 3: \"Licences=pod16:16\"); \
                 correct the line"
            )
        );
        assert_eq!(refusal("srun: error: Failed to load plugin x.so\n"), None);
    }

    #[test]
    fn the_line_about_the_version_wins() {
        let messages = "srun: x.so: Incompatible Slurm plugin spank version (23.02.0)\n\
                        srun: error: spank: plugstack.conf:1: Failed to load plugin x.so. Aborting.\n";
        assert!(finding(messages).contains("of another version"));
        assert!(finding("srun: error: no such file\n").contains("(srun: error: no such file); install"));
        assert!(finding("").contains("(the plugin is not loaded)"));
    }
}
