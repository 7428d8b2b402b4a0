//! `cargo xtask gen` writes every generated file of the repository; `cargo xtask gen --check` fails when one is stale.
//! `cargo xtask cluster up` starts a Kubernetes API server to try things on.

mod api;
mod cluster;
mod proto;
mod rules;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ipu_test_cluster::Durability;

/// A generated file: where it belongs (relative to the repository) and what it must hold.
pub(crate) struct Generated {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["gen"] => run(false),
        ["gen", "--check"] => run(true),
        ["cluster", "build"] => cluster::build().map(|()| true),
        ["cluster", "up"] => cluster::up(None, Durability::WithoutSync).map(|()| true),
        ["cluster", "up", "--fsync"] => cluster::up(None, Durability::Synced).map(|()| true),
        ["cluster", "up", name] => cluster::up(Some(name), Durability::WithoutSync).map(|()| true),
        ["cluster", "up", name, "--fsync"] => cluster::up(Some(name), Durability::Synced).map(|()| true),
        ["cluster", "down"] => cluster::down(None).map(|()| true),
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
        "usage: cargo xtask gen [--check] | cluster build | cluster up [NAME] [--fsync] | cluster down [NAME]",
    );
    ExitCode::from(2)
}

fn run(check: bool) -> Result<bool, Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .ok_or("xtask is not inside the repository")?;
    let mut fresh = true;
    let mut files = proto::generate(root)?;
    files.extend(rules::generate(root)?);
    files.extend(api::generate(root)?);
    for file in files {
        let path = root.join(&file.path);
        let same = std::fs::read_to_string(&path).is_ok_and(|text| text == file.text);
        if check && !same {
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
