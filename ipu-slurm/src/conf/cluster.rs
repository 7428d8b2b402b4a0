//! The settings of the cluster, from `vipu.conf`.

mod model;

use core::time::Duration;

use ipu_core::job::ErrorList;

use super::command::{self, CommandTemplate, RequiredPlaceholders};
use super::error::ConfError;
use super::key::Key;
use super::settings::Settings;
use super::span::Span;
use super::url;
use super::values::{absolute_path, number, switch};

use model::MAX_SECONDS;
pub use model::ModelConf;

/// The name of the node in `PoolDir`, as in slurm.conf.
const NODE_PLACEHOLDER: &str = "%n";
/// Default of `WaitInProlog` in seconds.
const WAIT_IN_PROLOG: u32 = 600;

/// The settings of `vipu.conf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConf {
    keys: ClusterKeys,
    allocation_commands: Option<AllocationCommands>,
    default_model: Option<ModelConf>,
}

/// The commands that create and remove the allocation of a job (option 1).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AllocationCommands {
    /// `AllocationCreate`, with `{allocation}` and `{agents}`.
    pub create: CommandTemplate,
    /// `AllocationRemove`, with `{allocation}`.
    pub remove: CommandTemplate,
}

/// The values of a file's cluster keys.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ClusterKeys {
    vipu_ipuof_dir: Option<String>,
    proxy: Option<String>,
    proxy_token_file: Option<String>,
    proxy_ca: Option<String>,
    /// In seconds.
    wait_in_prolog: u32,
    host_map: Option<String>,
    create: Option<CommandTemplate>,
    remove: Option<CommandTemplate>,
    pool_dir: Option<String>,
    every_job_has_one: bool,
    one_partition_per_task: bool,
}

impl ClusterConf {
    /// Parses `vipu.conf`. If it has `ApiHost`, it also describes a model of its own, as in Slurm guide
    /// §8.5.4.
    ///
    /// # Errors
    ///
    /// All errors, in the order of their lines; never empty.
    ///
    /// ```
    /// use ipu_slurm::conf::ClusterConf;
    ///
    /// let conf = ClusterConf::parse("vipu.conf", "Proxy=https://proxy:8443\nProxyCa=/etc/vipu/ca.pem\n")?;
    /// assert_eq!(conf.proxy_ca(), Some("/etc/vipu/ca.pem"));
    ///
    /// let errors = ClusterConf::parse("vipu.conf", "Proxy=https://proxy:8443\n").unwrap_err();
    /// assert_eq!(
    ///     errors[0].to_string(),
    ///     "vipu.conf:1:7: Proxy = https://proxy:8443: a proxy with TLS needs the certificate of its \
    ///      authority; add ProxyCa=/path",
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn parse(file: &str, text: &str) -> Result<Self, ErrorList<ConfError>> {
        let mut errors = Vec::new();
        let conf = Self::read(file, text, &mut errors);
        if errors.is_empty() {
            Ok(conf)
        } else {
            Err(errors.into())
        }
    }

    /// Reads `vipu.conf` as far as it is valid, and adds its errors to `errors`.
    pub(super) fn read(file: &str, text: &str, errors: &mut Vec<ConfError>) -> Self {
        let mut own = Vec::new();
        let settings = Settings::parse(file, text, &mut own);
        let mut keys = ClusterKeys::read(&settings, &mut own);
        if keys.vipu_ipuof_dir.is_none() && settings.get(Key::VipuIpuofDir).is_some() {
            // It is refused, not absent: models without IpuofDir are not further mistakes.
            keys.vipu_ipuof_dir = Some(String::new());
        }
        check_proxy(&settings, &mut own);
        check_commands(&settings, &mut own);
        let describes_model = Key::MODEL.into_iter().any(|key| settings.get(key).is_some());
        let default_model = if describes_model {
            ModelConf::read(&settings, keys.vipu_ipuof_dir.as_deref(), &mut own)
        } else {
            None
        };
        own.sort_by_key(|error| (error.line, error.column));
        errors.append(&mut own);
        let allocation_commands = match (&keys.create, &keys.remove) {
            (Some(create), Some(remove)) => Some(AllocationCommands {
                create: create.clone(),
                remove: remove.clone(),
            }),
            _ => None,
        };
        Self {
            keys,
            allocation_commands,
            default_model,
        }
    }

    /// Returns the shared directory of IPUoF configuration files (`VipuIpuofDir`, no default). It is the
    /// default of `IpuofDir`. Stock Slurm refuses this key in slurm.conf.
    #[must_use]
    pub fn vipu_ipuof_dir(&self) -> Option<&str> {
        self.keys.vipu_ipuof_dir.as_deref()
    }

    /// Returns the address of the proxy (`Proxy`, no default): a URL, or `unix:/path`.
    #[must_use]
    pub fn proxy(&self) -> Option<&str> {
        self.keys.proxy.as_deref()
    }

    /// Returns the path of the file with the token for the proxy (`ProxyTokenFile`, no default).
    #[must_use]
    pub fn proxy_token_file(&self) -> Option<&str> {
        self.keys.proxy_token_file.as_deref()
    }

    /// Returns the path of the certificate of the proxy's authority (`ProxyCa`), if and only if the proxy
    /// uses TLS.
    #[must_use]
    pub fn proxy_ca(&self) -> Option<&str> {
        self.keys.proxy_ca.as_deref()
    }

    /// Returns the longest wait for IPUs in PrologSlurmctld (`WaitInProlog`, default 600 s).
    #[must_use]
    pub fn wait_in_prolog(&self) -> Duration {
        Duration::from_secs(u64::from(self.keys.wait_in_prolog))
    }

    /// Returns the path of the host map (`HostMap`, no default).
    #[must_use]
    pub fn host_map(&self) -> Option<&str> {
        self.keys.host_map.as_deref()
    }

    /// Returns the commands for allocations (`AllocationCreate` and `AllocationRemove`, no default).
    #[must_use]
    pub const fn allocation_commands(&self) -> Option<&AllocationCommands> {
        self.allocation_commands.as_ref()
    }

    /// Returns the directory of a node's static partitions (`PoolDir`, no default). `%n` in it is the name of
    /// the node.
    #[must_use]
    pub fn pool_dir(&self, node: &str) -> Option<String> {
        let pattern = self.keys.pool_dir.as_deref()?;
        Some(pattern.replace(NODE_PLACEHOLDER, node))
    }

    /// Returns whether every job on a node with static partitions has one of them, all of one size
    /// (`EveryJobHasOne`, default 0).
    #[must_use]
    pub const fn every_job_has_one(&self) -> bool {
        self.keys.every_job_has_one
    }

    /// Returns whether a job may have several static partitions on a node, one for each of its tasks there
    /// (`OnePartitionPerTask`, default 0).
    #[must_use]
    pub const fn one_partition_per_task(&self) -> bool {
        self.keys.one_partition_per_task
    }

    /// Returns the model that `vipu.conf` itself describes.
    #[must_use]
    pub const fn default_model(&self) -> Option<&ModelConf> {
        self.default_model.as_ref()
    }

    /// Checks that the cluster keys in the file of a model have the values of this file.
    pub(super) fn check_repeated(&self, settings: &Settings<'_>, errors: &mut Vec<ConfError>) {
        let repeated = ClusterKeys::read(settings, errors);
        for key in Key::CLUSTER {
            let value = repeated.value(key);
            if let (Some(span), true) = (
                settings.get(key),
                value.is_some() && value != self.keys.value(key),
            ) {
                let rule = "is a key of the cluster and differs from vipu.conf";
                errors.push(span.error(key.name(), rule, "set it in vipu.conf only"));
            }
        }
    }
}

impl ClusterKeys {
    fn read(settings: &Settings<'_>, errors: &mut Vec<ConfError>) -> Self {
        let wait = number(0..=MAX_SECONDS, WAIT_IN_PROLOG);
        let create = command::parse(RequiredPlaceholders::AllocationAndAgents);
        let remove = command::parse(RequiredPlaceholders::Allocation);
        Self {
            vipu_ipuof_dir: settings.read(Key::VipuIpuofDir, absolute_path, errors),
            proxy: settings.read(Key::Proxy, url::parse, errors),
            proxy_token_file: settings.read(Key::ProxyTokenFile, absolute_path, errors),
            proxy_ca: settings.read(Key::ProxyCa, absolute_path, errors),
            wait_in_prolog: settings
                .read(Key::WaitInProlog, wait, errors)
                .unwrap_or(WAIT_IN_PROLOG),
            host_map: settings.read(Key::HostMap, absolute_path, errors),
            create: settings.read(Key::AllocationCreate, create, errors),
            remove: settings.read(Key::AllocationRemove, remove, errors),
            pool_dir: settings.read(Key::PoolDir, absolute_path, errors),
            every_job_has_one: settings
                .read(Key::EveryJobHasOne, switch, errors)
                .unwrap_or(false),
            one_partition_per_task: settings
                .read(Key::OnePartitionPerTask, switch, errors)
                .unwrap_or(false),
        }
    }

    /// Returns the value of a cluster key as text, or its default.
    fn value(&self, key: Key) -> Option<String> {
        match key {
            Key::VipuIpuofDir => self.vipu_ipuof_dir.clone(),
            Key::Proxy => self.proxy.clone(),
            Key::ProxyTokenFile => self.proxy_token_file.clone(),
            Key::ProxyCa => self.proxy_ca.clone(),
            Key::WaitInProlog => Some(self.wait_in_prolog.to_string()),
            Key::HostMap => self.host_map.clone(),
            Key::AllocationCreate => self.create.as_ref().map(ToString::to_string),
            Key::AllocationRemove => self.remove.as_ref().map(ToString::to_string),
            Key::PoolDir => self.pool_dir.clone(),
            Key::EveryJobHasOne => Some(u8::from(self.every_job_has_one).to_string()),
            Key::OnePartitionPerTask => Some(u8::from(self.one_partition_per_task).to_string()),
            Key::ApiHost
            | Key::ApiPort
            | Key::IpuofDir
            | Key::MaxIpusPerJob
            | Key::ApiTimeout
            | Key::ForceDeletePartition
            | Key::UseReconfigPartition
            | Key::NodeFeature => None,
        }
    }
}

/// Checks the pair of URL and certificate, by the rules of the proxy's client.
fn check_proxy(settings: &Settings<'_>, errors: &mut Vec<ConfError>) {
    let ca = settings.get(Key::ProxyCa);
    let uses_tls = |url: &Span<'_>| url.text().starts_with("https://");
    match (settings.get(Key::Proxy), ca) {
        (Some(url), None) if uses_tls(&url) => errors.push(url.error(
            Key::Proxy.name(),
            "a proxy with TLS needs the certificate of its authority",
            "add ProxyCa=/path",
        )),
        (Some(url), Some(ca)) if !uses_tls(&url) && !ca.text().is_empty() => errors.push(ca.error(
            Key::ProxyCa.name(),
            "Proxy has no TLS",
            "write https:// in Proxy, or remove ProxyCa",
        )),
        _ => {}
    }
}

/// Checks that an allocation that is created can be removed, and the reverse.
fn check_commands(settings: &Settings<'_>, errors: &mut Vec<ConfError>) {
    let keys = [Key::AllocationCreate, Key::AllocationRemove];
    for (key, other) in [(keys[0], keys[1]), (keys[1], keys[0])] {
        if let (Some(value), None) = (settings.get(key), settings.get(other)) {
            let other = other.name();
            errors.push(value.error(key.name(), format!("needs {other} too"), format!("add {other}")));
        }
    }
}
