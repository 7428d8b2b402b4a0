//! The persisted state of a persistent cluster, so that another process can stop it.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::ClusterError;
use crate::image::Image;
use crate::node::load_into;
use crate::node_sandbox::remove_cgroups;
use crate::options::ClusterProfile;
use crate::process::ServerRecord;
use crate::tools::Tools;

/// Name of the state file in the cluster directory.
const FILE: &str = "state.json";

/// State of a persistent cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClusterState {
    /// URL of the API server.
    pub url: String,
    /// Kubeconfig of the administrator.
    pub kubeconfig: PathBuf,
    /// Running servers in start order; they stop in reverse order.
    pub(crate) servers: Vec<ServerRecord>,
    /// Control group of its node, if any.
    #[serde(default)]
    pub(crate) cgroup: Option<String>,
    /// First process of its node.
    #[serde(default)]
    pub(crate) machine: Option<i32>,
}

impl ClusterState {
    /// Reads the state of the cluster in `directory`; `None` if no cluster was started there.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Step`] if the file is damaged.
    pub fn read(directory: &Path) -> Result<Option<Self>, ClusterError> {
        let path = directory.join(FILE);
        let Ok(text) = fs::read_to_string(&path) else {
            return Ok(None);
        };
        serde_json::from_str(&text)
            .map(Some)
            .map_err(|error| ClusterError::step(format!("read {}", path.display()), error))
    }

    pub(crate) fn write(&self, directory: &Path) -> Result<(), ClusterError> {
        let failed = |error: String| ClusterError::step("write the state of a cluster", error);
        let text = serde_json::to_string_pretty(self).map_err(|error| failed(error.to_string()))?;
        fs::write(directory.join(FILE), text).map_err(|error| failed(error.to_string()))
    }
}

/// Loads an image into the node of the cluster in `directory`, which another process started.
///
/// # Errors
///
/// [`ClusterError::Step`], even if there is no cluster, or none with a node.
pub fn load(directory: &Path, image: &Image) -> Result<(), ClusterError> {
    let machine = ClusterState::read(directory)?.and_then(|state| state.machine);
    let pid = machine.ok_or_else(|| {
        ClusterError::step(
            "load an image",
            format!("no cluster with a node is in {}", directory.display()),
        )
    })?;
    load_into(
        pid,
        &Tools::find_for(ClusterProfile::Node)?,
        &directory.join("node"),
        image,
    )
}

/// Stops the cluster in `directory` and removes its files. Returns whether a cluster existed.
///
/// # Errors
///
/// [`ClusterError::Step`] if its files cannot be read or removed.
pub fn stop(directory: &Path) -> Result<bool, ClusterError> {
    let Some(state) = ClusterState::read(directory)? else {
        return Ok(false);
    };
    for server in state.servers.iter().rev() {
        server.kill();
    }
    if let Some(cgroup) = &state.cgroup {
        remove_cgroups(cgroup);
    }
    fs::remove_dir_all(directory)
        .map_err(|error| ClusterError::step(format!("remove {}", directory.display()), error))?;
    Ok(true)
}
