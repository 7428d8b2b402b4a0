//! `cargo xtask cluster`: a Kubernetes API server to try things on.

use std::error::Error;
use std::path::{Path, PathBuf};

use ipu_test_cluster::{Cluster, Durability, Life, State, Tool, Tools, stop};

use crate::say;

/// The name of the cluster if none is given.
const DEFAULT_NAME: &str = "default";

/// Builds the programs of a cluster that are missing.
pub(crate) fn build() -> Result<(), Box<dyn Error>> {
    let tools = Tools::build(&Tool::BASIC)?;
    say(&format!(
        "the programs of a cluster are in {}",
        tools.folder().display()
    ));
    Ok(())
}

/// Starts the cluster of this name afresh; one that runs is ended.
pub(crate) fn up(name: Option<&str>, durability: Durability) -> Result<(), Box<dyn Error>> {
    let tools = Tools::build(&Tool::BASIC)?;
    let directory = directory(name)?;
    stop(&directory)?;
    let cluster = Cluster::start(&tools, &directory, Life::UntilStopped, durability)?;
    let state = State::read(cluster.directory())?.ok_or("the cluster left no record")?;
    say(&format!("a Kubernetes API server is at {}", state.url));
    say(&format!("export KUBECONFIG={}", state.kubeconfig.display()));
    say(&format!("{} get namespaces", tools.path(Tool::Kubectl).display()));
    Ok(())
}

/// Ends the cluster of this name.
pub(crate) fn down(name: Option<&str>) -> Result<(), Box<dyn Error>> {
    let directory = directory(name)?;
    if !stop(&directory)? {
        say(&format!("no cluster is in {}", directory.display()));
    }
    Ok(())
}

fn directory(name: Option<&str>) -> Result<PathBuf, Box<dyn Error>> {
    let name = name.unwrap_or(DEFAULT_NAME);
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
        return Err(format!("{name:?} is not a name of a cluster: letters, digits and '-'").into());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .ok_or("xtask is not inside the repository")?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(std::path::absolute(target)?.join("cluster").join(name))
}
