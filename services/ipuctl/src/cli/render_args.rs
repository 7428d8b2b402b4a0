//! Arguments of `ipuctl render`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use ipnet::Ipv4Net;

/// A configuration file to print.
#[derive(Debug, Subcommand)]
pub(crate) enum Render {
    /// Print the MacvlanNetwork that connects Pods to the network of the IPUs
    Macvlan(MacvlanArgs),
    /// Print the systemd drop-in that removes the limit of locked memory
    Memlock(MemlockArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  vipu --server-version --showjson |
    ipuctl render macvlan --server-version-json - --iface ens1f0
      Pods get addresses of the /24 network of the controller
  ipuctl render macvlan --iface ens1f0 --cidr 10.247.208.0/24
      Pods get addresses from 10.247.208.128 on")]
pub(crate) struct MacvlanArgs {
    /// Answer of `ipuctl server-version --json`; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) server_version_json: Option<PathBuf>,

    /// Network interface of the nodes that reaches the IPUs
    #[arg(long, value_name = "NAME", value_parser = interface)]
    pub(crate) iface: String,

    /// Network of the IPUs [default: the /24 network of the controller]
    #[arg(long, value_name = "NET", value_parser = network)]
    pub(crate) cidr: Option<Ipv4Net>,

    /// Addresses that no Pod gets; repeatable [default: the first 128]
    #[arg(long, value_name = "NET", value_parser = network)]
    pub(crate) exclude: Vec<Ipv4Net>,

    /// Name of the network, for the annotation of Pods
    #[arg(long, value_name = "NAME", default_value = "rdma-net", value_parser = label)]
    pub(crate) name: String,

    /// Namespace of the Pods
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = label)]
    pub(crate) namespace: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  sudo mkdir -p /etc/systemd/system/containerd.service.d
  ipuctl render memlock --runtime containerd | sudo tee \\
    /etc/systemd/system/containerd.service.d/memlock.conf")]
pub(crate) struct MemlockArgs {
    /// Container runtime of the nodes
    #[arg(long, value_enum)]
    pub(crate) runtime: Runtime,
}

/// Container runtime of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Runtime {
    /// The containerd of a usual Kubernetes.
    Containerd,
    /// The containerd of a server of K3s.
    K3s,
    /// The containerd of an agent of K3s.
    K3sAgent,
    /// Docker Engine.
    Docker,
}

/// Parses the name of a network interface, as the kernel checks it.
fn interface(text: &str) -> Result<String, String> {
    let is_valid = (1..=15).contains(&text.len())
        && !matches!(text, "." | "..")
        && text
            .bytes()
            .all(|b| b.is_ascii_graphic() && !b"/:\"\\".contains(&b));
    if is_valid {
        Ok(text.to_owned())
    } else {
        Err("must be a network interface of 1 to 15 characters; use ens1f0, for example".into())
    }
}

/// Parses an IPv4 network without host bits.
fn network(text: &str) -> Result<Ipv4Net, String> {
    let network: Ipv4Net = text
        .parse()
        .map_err(|_| "must be an IPv4 network; use 10.247.208.0/24, for example")?;
    if network.addr() != network.network() {
        return Err(format!("has bits of a host; use {}", network.trunc()));
    }
    Ok(network)
}

/// Parses a name of Kubernetes.
fn label(text: &str) -> Result<String, String> {
    let is_inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let is_valid = (1..=63).contains(&text.len())
        && text.bytes().all(is_inner)
        && !text.starts_with('-')
        && !text.ends_with('-');
    if is_valid {
        Ok(text.to_owned())
    } else {
        Err("must have 1 to 63 lower-case letters, digits and '-'; use rdma-net, for example".into())
    }
}
