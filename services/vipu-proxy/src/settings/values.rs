//! Values of single settings.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use ipu_core::placement::PlacementMode;
use serde::{Deserialize, Serialize};

use super::{SettingError, invalid_setting};

/// Placement of new partitions. Its text form is the name of a mode, or `wasm:FILE`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum PlacementSetting {
    /// A mode with a built-in policy, or delegated to the controller.
    Mode(PlacementMode),
    /// The policy in this WebAssembly module.
    Wasm(PathBuf),
}

impl FromStr for PlacementSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("wasm:") {
            Some("") => Err("wasm: names no file; use wasm:FILE".to_owned()),
            Some(file) => Ok(Self::Wasm(file.into())),
            None => match text.parse() {
                Ok(mode) => Ok(Self::Mode(mode)),
                Err(error) => Err(format!("{error}, or wasm:FILE")),
            },
        }
    }
}

impl TryFrom<String> for PlacementSetting {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<PlacementSetting> for String {
    fn from(setting: PlacementSetting) -> Self {
        setting.to_string()
    }
}

impl fmt::Display for PlacementSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mode(mode) => mode.fmt(f),
            Self::Wasm(file) => write!(f, "wasm:{}", file.display()),
        }
    }
}

impl PlacementSetting {
    /// Loads the policy.
    pub(super) fn load(&self, name: &'static str) -> Result<PlacementMode, SettingError> {
        match self {
            Self::Mode(mode) => Ok(mode.clone()),
            #[cfg(feature = "wasm")]
            Self::Wasm(file) => match ipu_allocator::WasmPolicy::load(file) {
                Ok(policy) => Ok(PlacementMode::explicit(policy)),
                Err(error) => {
                    let rule = ipu_core::ErrorChain(&error).to_string();
                    Err(invalid_setting(name, &self.to_string(), &rule))
                }
            },
            #[cfg(not(feature = "wasm"))]
            Self::Wasm(_) => {
                let rule = "this program is built without the feature `wasm`; build it with this feature, or use \
                            a built-in placement";
                Err(invalid_setting(name, &self.to_string(), rule))
            }
        }
    }
}

/// Order of the controllers with enough capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Selection {
    /// The order of the list.
    Serial,
    /// The smallest largest free block first.
    Tightest,
    /// The most free IPUs first.
    MostFree,
}

/// Read access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ReadAccess {
    /// Every client.
    Open,
    /// Authenticated clients only.
    Closed,
}

/// Authentication without tokens and certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Auth {
    /// Admits every client.
    None,
}

/// Quota of a namespace or an account.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub struct QuotaSetting {
    /// Namespace of the quota.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Account of the quota, instead of a namespace.
    #[serde(default)]
    pub account: Option<String>,
    /// Namespaces that may charge the account, `*` for all of them. Required for an account.
    #[serde(default)]
    pub namespaces: Vec<String>,
    /// Maximum number of IPUs; unlimited if unset.
    #[serde(default)]
    pub max_ipus: Option<u32>,
    /// Maximum number of partitions; unlimited if unset.
    #[serde(default)]
    pub max_partitions: Option<u32>,
}

/// Highest priority of requests.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub struct PrioritySetting {
    /// Namespace of the owners; none stands for every namespace without an entry of its own.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Highest priority.
    pub max_priority: i32,
}
