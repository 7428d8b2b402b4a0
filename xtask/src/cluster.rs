//! `cargo xtask cluster`: a Kubernetes cluster for experiments.

use std::error::Error;
use std::path::PathBuf;

use ipu_test_cluster::{
    Cluster, ClusterLifetime, ClusterProfile, ClusterState, Durability, Options, PRODUCT, Tool, Tools,
    load as load_image, mpi_image, product_images, stop,
};

use crate::{print_line, target};

/// Default cluster name.
const DEFAULT_NAME: &str = "default";

/// Builds the missing programs of a cluster profile; with a node, Kueue too, which only tests need.
pub(crate) fn build(profile: ClusterProfile) -> Result<(), Box<dyn Error>> {
    let mut tools = programs(profile);
    if profile >= ClusterProfile::Node {
        tools.extend(Tool::KUEUE);
    }
    build_tools(&tools)
}

/// Builds cert-manager, which only a soak needs.
pub(crate) fn build_cert_manager() -> Result<(), Box<dyn Error>> {
    build_tools(&Tool::CERT_MANAGER)
}

fn build_tools(tools: &[Tool]) -> Result<(), Box<dyn Error>> {
    let tools = Tools::build(tools)?;
    print_line(&format!(
        "the programs of a cluster are in {}",
        tools.folder().display()
    ));
    Ok(())
}

/// Returns the programs of a cluster profile, and those that install the chart on a node and check it.
fn programs(profile: ClusterProfile) -> Vec<Tool> {
    let mut programs = Tool::of(profile);
    if profile >= ClusterProfile::Node {
        programs.extend(Tool::HELM);
        programs.push(Tool::Kubeconform);
    }
    programs
}

/// Starts a new cluster; the arguments are its name and options. Stops a running cluster of that name
/// first.
pub(crate) fn up(arguments: &[&str]) -> Result<(), Box<dyn Error>> {
    let mut options = Options::new(ClusterLifetime::UntilStopped);
    let (mut name, mut profile) = (None, ClusterProfile::ApiServer);
    for argument in arguments {
        match *argument {
            "--fsync" => options = options.durability(Durability::Synced),
            "--controllers" => profile = profile.max(ClusterProfile::Controllers),
            "--node" => profile = ClusterProfile::Node,
            other if name.is_none() && !other.starts_with('-') => name = Some(other),
            other => return Err(format!("unknown argument {other:?}").into()),
        }
    }
    let tools = Tools::build(&programs(profile))?;
    let directory = directory(name)?;
    stop(&directory)?;
    let cluster = Cluster::start_with(&tools, &directory, options.profile(profile))?;
    let state = ClusterState::read(cluster.directory())?.ok_or("the cluster has no state file")?;
    let kubectl = tools.path(Tool::Kubectl);
    print_line(&format!("a Kubernetes API server is at {}", state.url));
    print_line(&format!("export KUBECONFIG={}", state.kubeconfig.display()));
    print_line(&format!("{} get namespaces", kubectl.display()));
    if profile >= ClusterProfile::Node {
        print_line(&format!(
            "{} run hello --image=local/busybox:1 --restart=Never -- echo hello",
            kubectl.display()
        ));
        print_line(&format!("Pods reach this machine at {}", cluster.host_address()));
    }
    Ok(())
}

/// Loads the images of `deploy/` and `examples/kubernetes/` into the node of this cluster. The images
/// contain the programs built next to this one; missing programs are built.
pub(crate) fn load(name: Option<&str>) -> Result<(), Box<dyn Error>> {
    let directory = directory(name)?;
    let program = std::env::current_exe()?;
    let programs = program.parent().ok_or("this program is in no folder")?;
    for image in product_images(programs)? {
        load_image(&directory, &image)?;
        print_line(&format!("loaded {}", image.name()));
    }
    let [.., launcher, _] = PRODUCT;
    match mpi_image("mpi-example:1", &programs.join(launcher), &directory)? {
        Some(image) => {
            load_image(&directory, &image)?;
            print_line(&format!("loaded {}", image.name()));
        }
        None => print_line("skipped mpi-example:1: Open MPI and its compiler are not installed"),
    }
    Ok(())
}

/// Stops the cluster of this name.
pub(crate) fn down(name: Option<&str>) -> Result<(), Box<dyn Error>> {
    let directory = directory(name)?;
    if !stop(&directory)? {
        print_line(&format!("no cluster in {}", directory.display()));
    }
    Ok(())
}

fn directory(name: Option<&str>) -> Result<PathBuf, Box<dyn Error>> {
    let name = name.unwrap_or(DEFAULT_NAME);
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
        return Err(format!("cluster name {name:?} is invalid: use letters, digits and '-'").into());
    }
    Ok(target()?.join("cluster").join(name))
}
