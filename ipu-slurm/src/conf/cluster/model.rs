//! The settings of a model: a V-IPU controller and the limits of its jobs.

use core::time::Duration;

use ipu_core::IpuCount;
use ipu_core::job::ErrorList;

use super::ClusterConf;
use crate::conf::error::{ConfError, absent};
use crate::conf::key::Key;
use crate::conf::settings::Settings;
use crate::conf::values::{absolute_path, feature, host, number, switch};

/// Default of `ApiPort` (Slurm guide §8.5.2).
const API_PORT: u16 = 8090;
/// Default of `MaxIpusPerJob` (Slurm guide §8.5.2).
const MAX_IPUS_PER_JOB: u32 = 256;
/// Default of `ApiTimeout` in seconds (Slurm guide §8.5.2).
const API_TIMEOUT: u32 = 50;
/// Maximum of a timeout in seconds: the largest `PrologEpilogTimeout` that Slurm takes is 65,533.
pub(super) const MAX_SECONDS: u32 = 65_533;

/// The settings of one GRES model, from `<model>.conf` or `vipu.conf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelConf {
    api_host: String,
    api_port: u16,
    ipuof_dir: String,
    max_ipus_per_job: u32,
    api_timeout: u32,
    force_delete_partition: bool,
    use_reconfig_partition: bool,
    node_feature: Option<String>,
}

impl ModelConf {
    /// Parses `<model>.conf`. The file may be a link to `vipu.conf` or a copy of it: keys of the cluster are
    /// accepted if they have the values of `cluster`.
    ///
    /// # Errors
    ///
    /// All errors, in the order of their lines; never empty.
    ///
    /// ```
    /// use ipu_slurm::conf::{ClusterConf, ModelConf};
    ///
    /// let cluster = ClusterConf::parse("vipu.conf", "VipuIpuofDir=/home/ipuof\n")?;
    /// let model = ModelConf::parse("pod64.conf", "ApiHost=fd00::7\n", &cluster)?;
    /// assert_eq!((model.api_address().as_str(), model.ipuof_dir()), ("[fd00::7]:8090", "/home/ipuof"));
    ///
    /// let text = "ApiHost=fd00::7\nVipuIpuofDir=/tmp\n";
    /// assert_eq!(
    ///     ModelConf::parse("pod64.conf", text, &cluster).unwrap_err()[0].to_string(),
    ///     "pod64.conf:2:14: VipuIpuofDir = /tmp: is a key of the cluster and differs from vipu.conf; \
    ///      set it in vipu.conf only",
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn parse(file: &str, text: &str, cluster: &ClusterConf) -> Result<Self, ErrorList<ConfError>> {
        let mut errors = Vec::new();
        let settings = Settings::parse(file, text, &mut errors);
        cluster.check_repeated(&settings, &mut errors);
        let model = Self::read(&settings, cluster.vipu_ipuof_dir(), &mut errors);
        errors.sort_by_key(|error| (error.line, error.column));
        match model {
            Some(model) if errors.is_empty() => Ok(model),
            Some(_) | None => Err(errors.into()),
        }
    }

    /// Reads the keys of a model. `default_dir` is the directory of a model without `IpuofDir`.
    pub(super) fn read(
        settings: &Settings<'_>,
        default_dir: Option<&str>,
        errors: &mut Vec<ConfError>,
    ) -> Option<Self> {
        let api_host = settings.read(Key::ApiHost, host, errors);
        if settings.get(Key::ApiHost).is_none() {
            let rule = "a model has the host of its V-IPU controller";
            errors.push(absent(settings.file, "ApiHost", rule, "add ApiHost=host"));
        }
        let api_port = settings.read(Key::ApiPort, number(1..=u16::MAX, API_PORT), errors);
        let ipuof_dir = settings.read(Key::IpuofDir, absolute_path, errors);
        if settings.get(Key::IpuofDir).is_none() && default_dir.is_none() {
            let rule = "a model has a directory for IPUoF configuration files";
            let fix = "add IpuofDir=/path here or VipuIpuofDir=/path to vipu.conf";
            errors.push(absent(settings.file, "IpuofDir", rule, fix));
        }
        let ipus = number(1..=IpuCount::MAX.get(), 64);
        let max_ipus_per_job = settings.read(Key::MaxIpusPerJob, ipus, errors);
        let timeout = number(1..=MAX_SECONDS, API_TIMEOUT);
        let api_timeout = settings.read(Key::ApiTimeout, timeout, errors);
        let force_delete_partition = settings.read(Key::ForceDeletePartition, switch, errors);
        let use_reconfig_partition = settings.read(Key::UseReconfigPartition, switch, errors);
        let node_feature = settings.read(Key::NodeFeature, feature, errors);
        Some(Self {
            api_host: api_host?,
            api_port: api_port.unwrap_or(API_PORT),
            ipuof_dir: ipuof_dir.or_else(|| default_dir.map(str::to_owned))?,
            max_ipus_per_job: max_ipus_per_job.unwrap_or(MAX_IPUS_PER_JOB),
            api_timeout: api_timeout.unwrap_or(API_TIMEOUT),
            force_delete_partition: force_delete_partition.unwrap_or(false),
            use_reconfig_partition: use_reconfig_partition.unwrap_or(false),
            node_feature,
        })
    }

    /// Returns the host name or IP address of the V-IPU controller (`ApiHost`).
    #[must_use]
    pub fn api_host(&self) -> &str {
        &self.api_host
    }

    /// Returns the port of the V-IPU controller (`ApiPort`, default 8090).
    #[must_use]
    pub const fn api_port(&self) -> u16 {
        self.api_port
    }

    /// Returns `ApiHost:ApiPort`, with an IPv6 address in brackets.
    #[must_use]
    pub fn api_address(&self) -> String {
        let Self {
            api_host, api_port, ..
        } = self;
        if api_host.contains(':') {
            format!("[{api_host}]:{api_port}")
        } else {
            format!("{api_host}:{api_port}")
        }
    }

    /// Returns the directory of the jobs' IPUoF configuration files (`IpuofDir`, default `VipuIpuofDir` of
    /// `vipu.conf`).
    #[must_use]
    pub fn ipuof_dir(&self) -> &str {
        &self.ipuof_dir
    }

    /// Returns the maximum number of IPUs of a job (`MaxIpusPerJob`, default 256). It need not be a power of
    /// two.
    #[must_use]
    pub const fn max_ipus_per_job(&self) -> u32 {
        self.max_ipus_per_job
    }

    /// Returns the timeout of the commands for allocations (`ApiTimeout`, default 50 s).
    #[must_use]
    pub fn api_timeout(&self) -> Duration {
        Duration::from_secs(u64::from(self.api_timeout))
    }

    /// Returns whether a partition whose removal fails is removed by force (`ForceDeletePartition`, default
    /// 0).
    #[must_use]
    pub const fn force_delete_partition(&self) -> bool {
        self.force_delete_partition
    }

    /// Returns whether jobs get reconfigurable partitions (`UseReconfigPartition`, default 0).
    #[must_use]
    pub const fn use_reconfig_partition(&self) -> bool {
        self.use_reconfig_partition
    }

    /// Returns the Feature of the nodes that reach the IPUs, if some nodes do not (`NodeFeature`).
    #[must_use]
    pub fn node_feature(&self) -> Option<&str> {
        self.node_feature.as_deref()
    }
}
