//! `ipuctl render macvlan`: listing 5.2 of the RDMA guide, for the network of the IPUs.

use std::net::Ipv4Addr;
use std::path::Path;

use ipnet::Ipv4Net;
use serde::Deserialize;
use serde_json::json;

use crate::cli::{Format, MacvlanArgs};
use crate::exit_code::{Code, Failure};
use crate::input::read_input;
use crate::output::Output;
use crate::table;

/// Network of a controller whose network is not configured, as `ipcalc` assumes it.
const DEFAULT_PREFIX: u8 = 24;

/// Network at the start of the IPUs' network with the addresses that no Pod gets by default.
const DEFAULT_EXCLUDED_PREFIX: u8 = 25;

/// Maximum size of the answer in bytes.
const MAX_INPUT_BYTES: u64 = 1 << 20;

/// Answer of `ipuctl server-version --json` and `vipu --server-version --showjson`.
#[derive(Deserialize)]
struct ServerVersionAnswer {
    host: String,
}

/// Returns the MacvlanNetwork. Warns if the address of the controller cannot be compared with those of Pods.
pub(crate) fn render(arguments: &MacvlanArgs, format: Format, output: &Output) -> Result<String, Failure> {
    let controller = match &arguments.server_version_json {
        Some(file) => Some(controller_in(file)?),
        None => None,
    };
    let range = range(arguments.cidr, controller.as_deref())?;
    let exclude = excluded(range, &arguments.exclude)?;
    match controller.as_deref().map(|host| (host, host.parse::<Ipv4Addr>())) {
        Some((_, Ok(address))) => check_controller(address, range, &exclude)?,
        Some((host, Err(_))) => output.warn(&format!(
            "the address of the controller {host} is not known: check that --exclude contains it"
        )),
        None => output.warn(
            "the address of the controller is not known: check that --exclude contains it, or use \
             --server-version-json",
        ),
    }
    let ipam = ipam(range, &exclude);
    let MacvlanArgs {
        iface,
        name,
        namespace,
        ..
    } = arguments;
    let network = json!({
        "apiVersion": "mellanox.com/v1alpha1",
        "kind": "MacvlanNetwork",
        "metadata": {"name": name},
        "spec": {
            "networkNamespace": namespace,
            "master": iface,
            "mode": "bridge",
            "mtu": 1500,
            "ipam": ipam,
        },
    });
    table::render(format, &network, || {
        let ipam: String = ipam.lines().map(|line| format!("    {line}\n")).collect();
        let name = scalar(name);
        format!(
            "apiVersion: mellanox.com/v1alpha1
kind: MacvlanNetwork
metadata:
  name: {name}
spec:
  networkNamespace: \"{namespace}\"
  master: \"{iface}\"
  mode: \"bridge\"
  mtu: 1500
  ipam: |
{ipam}"
        )
    })
}

/// Returns a name as YAML text: without quotes if no reader takes it for a number or a truth value.
fn scalar(name: &str) -> String {
    if name.starts_with(|c: char| c.is_ascii_lowercase()) && name.contains('-') {
        name.to_owned()
    } else {
        format!("\"{name}\"")
    }
}

/// Returns the host of the controller, without the port.
fn controller_in(file: &Path) -> Result<String, Failure> {
    let text = read_input(file, MAX_INPUT_BYTES)?;
    let answer: ServerVersionAnswer = serde_json::from_str(&text).map_err(|error| {
        let message = "--server-version-json: the file must be the output of `ipuctl server-version --json` \
                       or `vipu --server-version --showjson`";
        Failure::because(Code::Data, message, error)
    })?;
    let host = answer
        .host
        .rsplit_once(':')
        .map_or(answer.host.as_str(), |(host, _)| host);
    Ok(host.to_owned())
}

fn range(cidr: Option<Ipv4Net>, controller: Option<&str>) -> Result<Ipv4Net, Failure> {
    if let Some(cidr) = cidr {
        return Ok(cidr);
    }
    let Some(host) = controller else {
        let message = "the network of the IPUs is unknown; set --cidr, for example --cidr 10.247.208.0/24, or \
                       --server-version-json";
        return Err(Failure::new(Code::Usage, message));
    };
    let address: Ipv4Addr = host.parse().map_err(|_| {
        let message = format!(
            "--server-version-json: host = {host:?} is not an IPv4 address, so that its network is unknown; set \
             --cidr, for example --cidr 10.247.208.0/24"
        );
        Failure::new(Code::Data, message)
    })?;
    Ipv4Net::new(address, DEFAULT_PREFIX)
        .map(|network| network.trunc())
        .map_err(|error| Failure::because(Code::Bug, "the default network is invalid", error))
}

/// Returns the excluded networks after checking that Pods get addresses.
fn excluded(range: Ipv4Net, requested: &[Ipv4Net]) -> Result<Vec<Ipv4Net>, Failure> {
    if requested.is_empty() {
        let first = Ipv4Net::new(range.network(), DEFAULT_EXCLUDED_PREFIX);
        return match first {
            Ok(first) if range.prefix_len() < DEFAULT_EXCLUDED_PREFIX => Ok(vec![first]),
            _ => Err(Failure::new(
                Code::Data,
                format!(
                    "--cidr {range} has only the {} addresses that no Pod gets by default; set --exclude to \
                     the addresses of the IPU infrastructure",
                    range.hosts().count()
                ),
            )),
        };
    }
    for network in requested {
        if network.contains(&range) {
            let message = format!("--exclude {network} leaves no address of {range}; use a smaller network");
            return Err(Failure::new(Code::Data, message));
        }
        if !range.contains(network) {
            let message = format!("--exclude {network} is not in {range}; use a network within it");
            return Err(Failure::new(Code::Data, message));
        }
    }
    Ok(requested.to_vec())
}

/// Checks that no Pod gets the address of the controller.
fn check_controller(address: Ipv4Addr, range: Ipv4Net, exclude: &[Ipv4Net]) -> Result<(), Failure> {
    if !range.contains(&address) || exclude.iter().any(|network| network.contains(&address)) {
        return Ok(());
    }
    let excluded: String = exclude
        .iter()
        .map(|network| format!("--exclude {network} "))
        .collect();
    Err(Failure::new(
        Code::Data,
        format!(
            "a Pod could get {address}, the address of the V-IPU controller; use {excluded}--exclude \
             {address}/32"
        ),
    ))
}

/// Returns the settings of the address manager, in the layout of the listing. Networks need no escapes.
fn ipam(range: Ipv4Net, exclude: &[Ipv4Net]) -> String {
    let exclude: Vec<String> = exclude.iter().map(|network| format!("\"{network}\"")).collect();
    format!(
        r#"{{
  "type": "whereabouts",
  "datastore": "kubernetes",
  "kubernetes": {{
    "kubeconfig": "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"
  }},
  "log_file" : "/var/log/whereabouts.log",
  "log_level" : "info",
  "range": "{range}",
  "exclude": [{}]
}}
"#,
        exclude.join(", ")
    )
}
