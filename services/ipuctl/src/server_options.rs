//! Options of the local server, by which a command recognizes the server that it needs.

use std::path::{Path, PathBuf};

use ipu_vipu_client::ControllerEndpoint;
use serde::{Deserialize, Serialize};
use vipu_proxy::PlacementSetting;

use crate::cli::Global;
use crate::exit_code::{Code, Failure};

/// Options of a local server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerOptions {
    /// Version of the program.
    version: String,
    pub(crate) controller: Option<ControllerOptions>,
    pub(crate) placement: PlacementOptions,
    /// Time after which an unused server ends, in milliseconds.
    pub(crate) idle_millis: u64,
}

/// V-IPU controller with its credentials. Without one, the server simulates a Pod16.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ControllerOptions {
    /// `HOST:PORT`.
    pub(crate) address: String,
    pub(crate) ca: Option<PathBuf>,
    /// Client certificate and its key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
    /// User id, and the file with the access key.
    pub(crate) user: Option<(String, PathBuf)>,
}

/// Options that a server changes without an effect on existing partitions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlacementOptions {
    pub(crate) placement: Option<PlacementSetting>,
    pub(crate) preemption: bool,
}

impl ServerOptions {
    /// Returns the options for this command line; `controller` is the configured address, if any.
    pub(crate) fn new(global: &Global, controller: Option<&ControllerEndpoint>) -> Result<Self, Failure> {
        let placement = &global.placement_args;
        Ok(Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            controller: controller
                .map(|address| ControllerOptions::new(global, address))
                .transpose()?,
            placement: PlacementOptions {
                placement: match &placement.placement {
                    Some(PlacementSetting::Wasm(file)) => Some(PlacementSetting::Wasm(absolute(file)?)),
                    mode => mode.clone(),
                },
                preemption: placement.preemption,
            },
            idle_millis: global.server_idle_millis,
        })
    }

    /// Returns whether a server with `other` options has the same version and controller.
    pub(crate) fn has_same_hardware(&self, other: &Self) -> bool {
        self.version == other.version && self.controller == other.controller
    }

    /// Returns version and controller as they are shown to people.
    pub(crate) fn description(&self, state: &Path) -> String {
        format!("{} with ipuctl {}", self.target(state), self.version)
    }

    /// Returns the controller as it is shown to people.
    pub(crate) fn target(&self, state: &Path) -> String {
        match &self.controller {
            Some(controller) => format!("V-IPU controller {}", controller.address),
            None => format!("simulated Pod16 in {}", state.display()),
        }
    }
}

impl ControllerOptions {
    fn new(global: &Global, address: &ControllerEndpoint) -> Result<Self, Failure> {
        let credentials = &global.credentials;
        let file = |path: &PathBuf| absolute(path);
        let identity = match (&credentials.tls_cert, &credentials.tls_key) {
            (Some(certificate), Some(key)) => Some((file(certificate)?, file(key)?)),
            _ => None,
        };
        let user = match (&credentials.user_id, &credentials.access_key_file) {
            (Some(user), Some(key)) => Some((user.clone(), file(key)?)),
            (Some(_), None) => {
                return Err(Failure::new(Code::Usage, "--user-id requires --access-key-file"));
            }
            _ => None,
        };
        Ok(Self {
            address: address.to_string(),
            ca: credentials.tls_ca.as_ref().map(file).transpose()?,
            identity,
            user,
        })
    }
}

/// Returns the absolute path of an existing file, because the server has another working directory.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let unreadable = |error| Failure::because(Code::NotFound, format!("read {}", path.display()), error);
    std::fs::metadata(path).map_err(unreadable)?;
    std::path::absolute(path).map_err(unreadable)
}
