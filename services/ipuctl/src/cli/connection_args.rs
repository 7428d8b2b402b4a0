//! Flags of the connections to a proxy and to a controller.

use std::path::PathBuf;

use clap::Args;
use vipu_proxy::PlacementSetting;

/// Flags of a connection to a proxy.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Proxy options")]
pub(crate) struct ProxyArgs {
    /// URL of a vipu-proxy to use instead of a local server
    #[arg(long, global = true, value_name = "URL", env = "IPUCTL_PROXY")]
    #[arg(hide_short_help = true)]
    pub(crate) proxy: Option<String>,

    /// Token file for the proxy, read for every request
    #[arg(long, global = true, value_name = "FILE", env = "IPUCTL_PROXY_TOKEN_FILE")]
    #[arg(hide_short_help = true)]
    pub(crate) proxy_token_file: Option<PathBuf>,

    /// CA certificate of the proxy, for https
    #[arg(long, global = true, value_name = "PEM FILE", env = "IPUCTL_PROXY_CA")]
    #[arg(hide_short_help = true)]
    pub(crate) proxy_ca: Option<PathBuf>,

    /// Client certificate for the proxy
    #[arg(long, global = true, value_name = "PEM FILE", env = "IPUCTL_PROXY_CERT")]
    #[arg(requires_all = ["proxy_key", "proxy_ca"], hide_short_help = true)]
    pub(crate) proxy_cert: Option<PathBuf>,

    /// Private key of the client certificate for the proxy
    #[arg(long, global = true, value_name = "PEM FILE", env = "IPUCTL_PROXY_KEY")]
    #[arg(requires = "proxy_cert", hide_short_help = true)]
    pub(crate) proxy_key: Option<PathBuf>,
}

/// Flags of a connection to a controller with TLS or access keys.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Controller TLS and credentials")]
pub(crate) struct ControllerCredentials {
    /// CA certificate of the controller; enables TLS
    #[arg(long, global = true, value_name = "PEM FILE", env = "IPUCTL_TLS_CA")]
    #[arg(hide_short_help = true)]
    pub(crate) tls_ca: Option<PathBuf>,

    /// Client certificate
    #[arg(long, global = true, value_name = "PEM FILE", env = "IPUCTL_TLS_CERT")]
    #[arg(requires = "tls_key", hide_short_help = true)]
    pub(crate) tls_cert: Option<PathBuf>,

    /// Private key of the client certificate
    #[arg(long, global = true, value_name = "PEM FILE", env = "IPUCTL_TLS_KEY")]
    #[arg(requires = "tls_cert", hide_short_help = true)]
    pub(crate) tls_key: Option<PathBuf>,

    /// V-IPU user id
    #[arg(long, global = true, value_name = "ID", env = "IPUCTL_USER_ID")]
    #[arg(hide_short_help = true)]
    pub(crate) user_id: Option<String>,

    /// File with the access key of the V-IPU user
    #[arg(long, global = true, value_name = "FILE", env = "IPUCTL_ACCESS_KEY_FILE")]
    #[arg(requires = "user_id", hide_short_help = true)]
    pub(crate) access_key_file: Option<PathBuf>,
}

/// Placement of the local server, which the proxy of `--proxy` decides itself.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Placement options")]
pub(crate) struct PlacementArgs {
    /// Placement of new partitions: first-fit, best-fit, wasm:FILE, or delegated to the controller [default:
    /// first-fit]
    #[arg(long, global = true, value_name = "PLACEMENT")]
    pub(crate) placement: Option<PlacementSetting>,

    /// Let this request preempt preemptible partitions of lower priority
    #[arg(long, global = true)]
    pub(crate) preemption: bool,
}

impl PlacementArgs {
    /// Returns the first option that is set. A proxy has settings of its own for all of them.
    pub(crate) const fn first_option(&self) -> Option<&'static str> {
        if self.placement.is_some() {
            Some("--placement")
        } else if self.preemption {
            Some("--preemption")
        } else {
            None
        }
    }
}
