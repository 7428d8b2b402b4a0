//! `cargo xtask gen` writes every generated file of the repository; `cargo xtask gen --check` fails if one
//! is stale. `cargo xtask crd` writes only the CRD of the IPUJob and its reference. `cargo xtask cluster
//! up` starts a Kubernetes cluster for experiments; `cargo xtask bench-cluster` benchmarks IPUJobs on one.
//! `cargo xtask package` builds the offline bundle, and `cargo xtask package slurm` that for a Slurm.
//! `cargo xtask mutants` tests the tests of a library.
//! `cargo xtask slurm matrix` tests jobs with IPUs on the Slurm of a Debian suite.

mod api;
mod chart;
mod cluster;
mod copies;
mod crd;
mod mutants;
mod package;
mod proto;
mod rules;
mod slurm;
mod wrap;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ipu_test_cluster::ClusterProfile;

/// A generated file: its path relative to the repository, and its content.
pub(crate) struct Generated {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["gen"] => run(all, Mode::Write),
        ["gen", "--check"] => run(all, Mode::Check),
        ["crd"] => run(crd::generate, Mode::Write),
        ["cluster", "build"] => cluster::build(ClusterProfile::Controllers).map(|()| true),
        ["cluster", "build", "--node"] => cluster::build(ClusterProfile::Node).map(|()| true),
        ["cluster", "build", "--cert-manager"] => cluster::build_cert_manager().map(|()| true),
        ["cluster", "up", ref arguments @ ..] => cluster::up(arguments).map(|()| true),
        ["cluster", "load"] => cluster::load(None).map(|()| true),
        ["cluster", "load", name] => cluster::load(Some(name)).map(|()| true),
        ["cluster", "down"] => cluster::down(None).map(|()| true),
        ["package"] => root().and_then(package::package).map(|()| true),
        ["package", "slurm"] => root().and_then(package::package_slurm).map(|()| true),
        ["mutants", package] => mutants::mutants(package, None),
        ["mutants", package, sample] => sample
            .parse()
            .map_err(Into::into)
            .and_then(|sample| mutants::mutants(package, Some(sample))),
        ["slurm", "matrix", ref arguments @ ..] => slurm::matrix(arguments),
        ["bench-cluster"] => bench_cluster(),
        ["cluster", "down", name] => cluster::down(Some(name)).map(|()| true),
        _ => return usage(),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => fail(&format!("xtask: {error}")),
    }
}

#[expect(
    clippy::print_stdout,
    reason = "a command-line tool prints on standard output"
)]
pub(crate) fn print_line(text: &str) {
    println!("{text}");
}

#[expect(
    clippy::print_stderr,
    reason = "a command-line tool reports on standard error"
)]
fn fail(text: &str) -> ExitCode {
    eprintln!("{text}");
    ExitCode::FAILURE
}

fn usage() -> ExitCode {
    fail(
        "usage: cargo xtask gen [--check] | crd | cluster build [--node | --cert-manager] | cluster up [NAME] [--fsync] [--controllers | --node] | cluster load [NAME] | cluster down [NAME] | package [slurm] | bench-cluster | mutants PACKAGE [SAMPLE] | slurm matrix [--suite bookworm|trixie|forky [--tree DIR]] [--tests] [CELLS]",
    );
    ExitCode::from(2)
}

/// Benchmarks concurrent IPUJobs on a control plane of its own.
fn bench_cluster() -> Result<bool, Box<dyn std::error::Error>> {
    cluster::build(ClusterProfile::Controllers)?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = ["bench", "--package", "ipu-bench", "--bench", "cluster"];
    Ok(std::process::Command::new(cargo)
        .args(arguments)
        .status()?
        .success())
}

/// Returns the folder of the repository.
fn root() -> Result<&'static Path, Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    root.ok_or_else(|| "xtask is not inside the repository".into())
}

/// Returns the absolute path of the folder of cargo's output.
fn target() -> Result<PathBuf, Box<dyn std::error::Error>> {
    let root = root()?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(std::path::absolute(target)?)
}

/// Handling of generated files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Write,
    /// Reports stale files without writing.
    Check,
}

type Files = Result<Vec<Generated>, Box<dyn std::error::Error>>;

/// Generates every generated file of the repository.
fn all(root: &Path) -> Files {
    let mut files = proto::generate(root)?;
    files.extend(rules::generate(root)?);
    files.extend(api::generate(root)?);
    files.extend(crd::generate(root)?);
    files.extend(chart::generate(root)?);
    files.extend(copies::generate(root)?);
    Ok(files)
}

fn run(generate: fn(&Path) -> Files, mode: Mode) -> Result<bool, Box<dyn std::error::Error>> {
    let root = root()?;
    let mut is_up_to_date = true;
    for file in generate(root)? {
        let path = root.join(&file.path);
        let is_unchanged = std::fs::read_to_string(&path).is_ok_and(|text| text == file.text);
        if mode == Mode::Check && !is_unchanged {
            fail(&format!(
                "{} is stale: run `cargo xtask gen` and commit it",
                file.path.display()
            ));
            is_up_to_date = false;
        } else if !is_unchanged {
            std::fs::create_dir_all(path.parent().ok_or("a generated file has no parent folder")?)?;
            std::fs::write(&path, file.text)?;
        }
    }
    Ok(is_up_to_date)
}
