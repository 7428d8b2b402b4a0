//! `cargo xtask slurm matrix`: the whole matrix of jobs with IPUs, on the Slurm of a Debian suite.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{print_line, target};

/// Packages of a tree with Slurm, besides Debian's minimum.
const PACKAGES: &str = "munge,procps,slurmctld,slurmd,slurm-client,slurm-wlm-basic-plugins,curl,slurmdbd,mariadb-server-core,mariadb-client-core";
/// Environment variable of `ipu-test-slurm` with the directory of a tree.
const TREE: &str = "IPU_TEST_SLURM_TREE";
/// Environment variable of the matrix: the text that the names of its cells contain.
const SELECTION: &str = "IPU_SLURM_MATRIX";

/// Suites of Debian, with Slurm 22.05, 24.11 and 26.05.
const SUITES: [&str; 3] = ["bookworm", "trixie", "forky"];

fn suite_of(name: &str) -> Result<&str, Box<dyn Error>> {
    if SUITES.contains(&name) {
        return Ok(name);
    }
    Err(format!("suite {name:?} is unknown: use bookworm, trixie or forky").into())
}

/// Runs the matrix. The arguments are `--suite SUITE`, `--tree DIR` for an existing tree, `--tests` for all
/// tests with a Slurm instead of the matrix, and a text that the names of the cells must contain. Without a
/// suite, the Slurm of this machine runs.
pub(crate) fn matrix(arguments: &[&str]) -> Result<bool, Box<dyn Error>> {
    let (mut suite, mut tree, mut selection, mut all_tests) = (None, None, "", false);
    let mut words = arguments.iter().copied();
    while let Some(word) = words.next() {
        match word {
            "--suite" => suite = Some(suite_of(words.next().ok_or("--suite needs a name")?)?),
            "--tree" => tree = Some(PathBuf::from(words.next().ok_or("--tree needs a directory")?)),
            "--tests" => all_tests = true,
            text if !text.starts_with('-') && selection.is_empty() => selection = text,
            other => return Err(format!("unknown argument {other:?}").into()),
        }
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["test", "--package", "ipu-slurm-hooks", "--test", "slurm"]);
    if all_tests {
        command.args(["--package", "ipu-slurm-spank", "--package", "ipu-test-slurm"]);
        command.args(["--no-fail-fast", "--"]);
    } else {
        command.args(["--", "matrix::every", "--nocapture"]);
        command.env(SELECTION, selection);
    }
    match (suite, tree) {
        (Some(_), Some(tree)) => drop(command.env(TREE, std::path::absolute(tree)?)),
        (Some(suite), None) => drop(command.env(TREE, make_tree(suite)?)),
        (None, None) => {}
        (None, Some(_)) => return Err("--tree needs --suite".into()),
    }
    // A skipped test is not a run.
    Ok(command.env("CI", "true").status()?.success())
}

/// Makes the tree of a suite with debootstrap, unless it exists.
fn make_tree(suite: &str) -> Result<PathBuf, Box<dyn Error>> {
    let directory = target()?.join("slurm");
    let tree = directory.join(suite);
    if tree.exists() {
        return Ok(tree);
    }
    std::fs::create_dir_all(&directory)?;
    let unfinished = directory.join(format!("{suite}.new"));
    if unfinished.exists() {
        std::fs::remove_dir_all(&unfinished)?;
    }
    print_line(&format!("debootstrap of {suite} into {}", tree.display()));
    let mut command = Command::new("debootstrap");
    command.args(["--variant=minbase", &format!("--include={PACKAGES}"), suite]);
    command.arg(&unfinished);
    if suite == "forky" && !Path::new("/usr/share/debootstrap/scripts/forky").exists() {
        // An older debootstrap has no script of this name; that of sid is the same. The empty word keeps the
        // mirror of debootstrap.
        command.args(["", "sid"]);
    }
    if !command.status()?.success() {
        return Err(format!("debootstrap of {suite} has failed").into());
    }
    std::fs::rename(&unfinished, &tree)?;
    Ok(tree)
}
