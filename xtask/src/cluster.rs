//! `cargo xtask cluster`: a Kubernetes to try things on.

use std::error::Error;
use std::path::{Path, PathBuf};

use ipu_test_cluster::{
    Cluster, ClusterLifetime, ClusterProfile, ClusterState, Durability, Options, PRODUCT, Tool, Tools,
    load as load_image, mpi_image, product_images, stop,
};

use crate::say;

/// The name of the cluster if none is given.
const DEFAULT_NAME: &str = "default";

/// Builds the programs of a cluster of this extent that are missing.
pub(crate) fn build(extent: ClusterProfile) -> Result<(), Box<dyn Error>> {
    let tools = Tools::build(&Tool::of(extent))?;
    say(&format!(
        "the programs of a cluster are in {}",
        tools.folder().display()
    ));
    Ok(())
}

/// Starts a cluster afresh as `words` say: its name, and options. One of that name that runs is ended.
pub(crate) fn up(words: &[&str]) -> Result<(), Box<dyn Error>> {
    let mut options = Options::new(ClusterLifetime::UntilStopped);
    let (mut name, mut extent) = (None, ClusterProfile::ApiServer);
    for word in words {
        match *word {
            "--fsync" => options = options.durability(Durability::Synced),
            "--controllers" => extent = extent.max(ClusterProfile::Controllers),
            "--node" => extent = ClusterProfile::Node,
            other if name.is_none() && !other.starts_with('-') => name = Some(other),
            other => return Err(format!("{other:?} is not understood").into()),
        }
    }
    let tools = Tools::build(&Tool::of(extent))?;
    let directory = directory(name)?;
    stop(&directory)?;
    let cluster = Cluster::start_with(&tools, &directory, options.extent(extent))?;
    let state = ClusterState::read(cluster.directory())?.ok_or("the cluster left no record")?;
    let kubectl = tools.path(Tool::Kubectl);
    say(&format!("a Kubernetes API server is at {}", state.url));
    say(&format!("export KUBECONFIG={}", state.kubeconfig.display()));
    say(&format!("{} get namespaces", kubectl.display()));
    if extent >= ClusterProfile::Node {
        say(&format!(
            "{} run hello --image=local/busybox:1 --restart=Never -- echo hello",
            kubectl.display()
        ));
        say(&format!(
            "Kubernetes Pods reach this machine at {}",
            cluster.host_address()
        ));
    }
    Ok(())
}

/// Loads the images that `deploy/` and `examples/kubernetes/` name into the node of this cluster, made of the programs that were
/// built beside this one; those that are missing are built.
pub(crate) fn load(name: Option<&str>) -> Result<(), Box<dyn Error>> {
    let directory = directory(name)?;
    let program = std::env::current_exe()?;
    let programs = program.parent().ok_or("this program is in no folder")?;
    for image in product_images(programs)? {
        load_image(&directory, &image)?;
        say(&format!("{} is loaded", image.name()));
    }
    let [.., launcher, _] = PRODUCT;
    match mpi_image("mpi-example:1", &programs.join(launcher), &directory)? {
        Some(image) => {
            load_image(&directory, &image)?;
            say(&format!("{} is loaded", image.name()));
        }
        None => say("mpi-example:1 is not: Open MPI and its compiler are not installed here"),
    }
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
