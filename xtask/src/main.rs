//! `cargo xtask gen` writes every generated file of the repository; `cargo xtask gen --check` fails when one is stale.
//! `cargo xtask crd` writes the definition of the IPUJob and its reference alone.
//! `cargo xtask cluster up` starts a Kubernetes to try things on; `cargo xtask bench-cluster` measures IPUJobs on one.

mod api;
mod cluster;
mod crd;
mod proto;
mod rules;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ipu_test_cluster::ClusterProfile;

/// A generated file: where it belongs (relative to the repository) and what it must hold.
pub(crate) struct Generated {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["gen"] => run(all, Mode::Write),
        ["gen", "--check"] => run(all, Mode::Check),
        ["crd"] => run(crd::generate, Mode::Write),
        ["cluster", "build"] => cluster::build(ClusterProfile::Controllers).map(|()| true),
        ["cluster", "build", "--node"] => cluster::build(ClusterProfile::Node).map(|()| true),
        ["cluster", "up", ref words @ ..] => cluster::up(words).map(|()| true),
        ["cluster", "load"] => cluster::load(None).map(|()| true),
        ["cluster", "load", name] => cluster::load(Some(name)).map(|()| true),
        ["cluster", "down"] => cluster::down(None).map(|()| true),
        ["bench-cluster"] => bench_cluster(),
        ["cluster", "down", name] => cluster::down(Some(name)).map(|()| true),
        _ => return usage(),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => report(&format!("xtask: {error}")),
    }
}

#[expect(
    clippy::print_stdout,
    reason = "a command-line tool answers on standard output"
)]
pub(crate) fn say(text: &str) {
    println!("{text}");
}

#[expect(clippy::print_stderr, reason = "a command-line tool talks on standard error")]
fn report(text: &str) -> ExitCode {
    eprintln!("{text}");
    ExitCode::FAILURE
}

fn usage() -> ExitCode {
    report(
        "usage: cargo xtask gen [--check] | crd | cluster build [--node] | cluster up [NAME] [--fsync] [--controllers | --node] | cluster load [NAME] | cluster down [NAME] | bench-cluster",
    );
    ExitCode::from(2)
}

/// Measures IPUJobs at once on a control plane of its own.
fn bench_cluster() -> Result<bool, Box<dyn std::error::Error>> {
    cluster::build(ClusterProfile::Controllers)?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let words = ["bench", "--package", "ipu-bench", "--bench", "cluster"];
    Ok(std::process::Command::new(cargo).args(words).status()?.success())
}

/// What is done with generated files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Write,
    /// Nothing is written, and a stale file is named.
    Check,
}

type Files = Result<Vec<Generated>, Box<dyn std::error::Error>>;

/// Every generated file of the repository.
fn all(root: &Path) -> Files {
    let mut files = proto::generate(root)?;
    files.extend(rules::generate(root)?);
    files.extend(api::generate(root)?);
    files.extend(crd::generate(root)?);
    Ok(files)
}

fn run(generate: fn(&Path) -> Files, mode: Mode) -> Result<bool, Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .ok_or("xtask is not inside the repository")?;
    let mut fresh = true;
    for file in generate(root)? {
        let path = root.join(&file.path);
        let same = std::fs::read_to_string(&path).is_ok_and(|text| text == file.text);
        if mode == Mode::Check && !same {
            report(&format!(
                "{} is stale: run `cargo xtask gen` and commit it",
                file.path.display()
            ));
            fresh = false;
        } else if !same {
            std::fs::create_dir_all(path.parent().ok_or("a generated file has a folder")?)?;
            std::fs::write(&path, file.text)?;
        }
    }
    Ok(fresh)
}
