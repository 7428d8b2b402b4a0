//! The environment variables by which a Poplar program finds its IPUs.

use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::time::Duration;

use crate::ids::PartitionId;

/// Default time that Poplar waits for a response of the controller: the value that PopRun passes.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);

/// Variable of the number of seconds that Poplar waits for the controller. It selects nothing, so a job may
/// set it.
const TIMEOUT: &str = "IPUOF_VIPU_API_TIMEOUT";

/// The environment variables by which a Poplar program finds its GCD of a partition (RDMA guide §8.1).
///
/// ```
/// use ipu_core::PartitionId;
/// use ipu_core::render::IpuofEnv;
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
    /// Name of the variable with the partition.
    pub const PARTITION: &'static str = "IPUOF_VIPU_API_PARTITION_ID";

    /// Names of all variables by which Poplar finds IPUs. Unset them in an environment that a process
    /// inherits, before you set those of its own partition.
    pub const NAMES: [&'static str; 6] = [
        "IPUOF_VIPU_API_HOST",
        "IPUOF_VIPU_API_PORT",
        Self::PARTITION,
        "IPUOF_VIPU_API_GCD_ID",
        TIMEOUT,
        "IPUOF_CONFIG_PATH",
    ];

    /// Returns whether the variable `name` selects IPUs: an IPUoF configuration file, or any variable of the
    /// V-IPU API except its timeout. A manifest must not set it, because a stale value selects the IPUs of
    /// another job.
    ///
    /// ```
    /// use ipu_core::render::IpuofEnv;
    ///
    /// assert!(IpuofEnv::selects_ipus("IPUOF_CONFIG_PATH"));
    /// assert!(!IpuofEnv::selects_ipus("IPUOF_VIPU_API_TIMEOUT"));
    /// ```
    #[must_use]
    pub fn selects_ipus(name: &str) -> bool {
        name != TIMEOUT && (name.starts_with("IPUOF_VIPU_API_") || Self::NAMES.contains(&name))
    }

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
        let values = [
            self.host.clone(),
            self.port.to_string(),
            self.partition.to_string(),
            self.gcd.to_string(),
            seconds.to_string(),
        ];
        let values = values.into_iter().chain(self.config_path.clone());
        Self::NAMES.into_iter().zip(values).collect()
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
