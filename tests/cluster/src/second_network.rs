//! A second network of a node, which stands for the network of the IPUs: a veth pair whose other end is in a
//! network namespace with one server. Pods with the annotation of Multus are connected to it by macvlan.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::error::ClusterError;
use crate::node::{NodeSandbox, network_config};
use crate::node_sandbox::{PLUGINS, inside};
use crate::process::Server;
use crate::ready::run;
use crate::tools::Tool;

/// The stand-in for Multus.
const POD_NETWORKS: &str = include_str!("pod_networks.sh");

/// Name of its plugin.
const PLUGIN: &str = "pod-networks";

/// Creates the network. Pods reach the server through the node, too, as the proxy does.
const SETUP: &str = r#"
set -e
ip netns add ipus
ip link add name ipu0 type veth peer name far0 netns ipus
ip addr add 10.247.208.1/24 dev ipu0
ip link set ipu0 up
ip -netns ipus link set lo up
ip -netns ipus addr add 10.247.208.2/24 dev far0
ip -netns ipus link set far0 up
ip -netns ipus route add default via 10.247.208.1
"#;

impl NodeSandbox<'_> {
    /// Creates the network, and starts `program` at its address 10.247.208.2.
    pub(crate) fn start_second_network(
        &self,
        program: &Path,
        arguments: &[String],
    ) -> Result<Server, ClusterError> {
        let folder = self.folder()?;
        let write_error = |error: std::io::Error| ClusterError::step("set up a second network", error);
        let mut setup = self.command();
        setup.args(["sh", "-c", SETUP]);
        run(setup)?;
        let plugin = folder.join("plugins").join(PLUGIN);
        let settings = format!(
            "#!/bin/sh\nplugins={PLUGINS}\nkubectl='{}'\nkubeconfig='{}'\n",
            self.tools.path(Tool::Kubectl).display(),
            self.directory.join("admin.kubeconfig").display(),
        );
        fs::write(&plugin, settings + POD_NETWORKS).map_err(write_error)?;
        fs::set_permissions(&plugin, Permissions::from_mode(0o755)).map_err(write_error)?;
        // containerd watches the folder. A rename is one change.
        let networks = folder.join("networks");
        let staged = networks.join("pods.new");
        fs::write(&staged, network_config(PLUGIN).to_string()).map_err(write_error)?;
        fs::rename(&staged, networks.join("pods.conflist")).map_err(write_error)?;
        let mut wrapper = inside(self.machine.first().pid(), self.tools.folder());
        wrapper.extend(["ip", "netns", "exec", "ipus"].map(String::from));
        let log = self.directory.join("logs").join("second-network.log");
        Server::start(
            "second-network",
            &wrapper,
            program,
            arguments,
            &log,
            self.lifetime,
        )
    }
}
