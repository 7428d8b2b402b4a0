//! Inputs of a job's processes, so that Poplar and MPI find their IPUs and each other: environment, IPUoF
//! configuration, hostfile. Rendering only, without I/O.

mod config;
mod mpi;

use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::time::Duration;

pub use self::config::{GcdConfig, IpuofConfig, IpuofDevice};
pub use self::mpi::{MpiEnv, hostfile};
use crate::ids::PartitionId;

/// Default time that Poplar waits for a response of the controller: the value that PopRun passes.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);

/// The environment variables by which a Poplar program finds its GCD of a partition (seed 002 §8.1).
///
/// ```
/// use ipu_core::{IpuofEnv, PartitionId};
///
/// let env = IpuofEnv::new("10.5.212.116", 8090, PartitionId::new("p-mnist-0")?, 1);
/// let lines: Vec<String> = env.vars().into_iter().map(|(name, value)| format!("{name}={value}")).collect();
/// assert_eq!(lines, [
///     "IPUOF_VIPU_API_HOST=10.5.212.116",
///     "IPUOF_VIPU_API_PORT=8090",
///     "IPUOF_VIPU_API_PARTITION_ID=p-mnist-0",
///     "IPUOF_VIPU_API_GCD_ID=1",
///     "IPUOF_VIPU_API_TIMEOUT=120",
/// ]);
/// # Ok::<(), ipu_core::NameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpuofEnv {
    host: String,
    port: u16,
    partition: PartitionId,
    gcd: u32,
    timeout: Duration,
    config_path: Option<String>,
}

impl IpuofEnv {
    /// Creates the variables for GCD `gcd` of `partition` at the controller `host`:`port`, as its users reach
    /// it.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16, partition: PartitionId, gcd: u32) -> Self {
        Self {
            host: host.into(),
            port,
            partition,
            gcd,
            timeout: DEFAULT_TIMEOUT,
            config_path: None,
        }
    }

    /// Sets another timeout than 120 seconds; rounded up to whole seconds.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the path of an IPUoF configuration file, for programs that read one instead of querying the
    /// controller.
    #[must_use]
    pub fn with_config_path(mut self, path: impl Into<String>) -> Self {
        self.config_path = Some(path.into());
        self
    }

    /// Returns the variables, always in this order: host, port, partition, GCD, timeout, and the path if
    /// there is one.
    #[must_use]
    pub fn vars(&self) -> Vec<(&'static str, String)> {
        let seconds = self
            .timeout
            .as_secs()
            .saturating_add(u64::from(self.timeout.subsec_nanos() > 0));
        let mut vars: Vec<(&'static str, String)> = [
            ("IPUOF_VIPU_API_HOST", self.host.clone()),
            ("IPUOF_VIPU_API_PORT", self.port.to_string()),
            ("IPUOF_VIPU_API_PARTITION_ID", self.partition.to_string()),
            ("IPUOF_VIPU_API_GCD_ID", self.gcd.to_string()),
            ("IPUOF_VIPU_API_TIMEOUT", seconds.to_string()),
        ]
        .into();
        vars.extend(
            self.config_path
                .iter()
                .map(|path| ("IPUOF_CONFIG_PATH", path.clone())),
        );
        vars
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_config_path_comes_last_and_the_timeout_is_rounded_up_to_seconds() {
        let env = IpuofEnv::new("h", 1, PartitionId::new("p").unwrap(), 0)
            .with_timeout(Duration::from_millis(300_500))
            .with_config_path("/tmp/p_ipuof.conf");
        let vars = env.vars();
        assert_eq!(vars[4].1, "301");
        assert_eq!(
            vars.last().unwrap(),
            &("IPUOF_CONFIG_PATH", String::from("/tmp/p_ipuof.conf"))
        );
    }
}
