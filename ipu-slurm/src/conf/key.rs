//! The keys of `vipu.conf` and `<model>.conf`.

/// A key. The first eight are those of a model, the others those of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    ApiHost,
    ApiPort,
    IpuofDir,
    MaxIpusPerJob,
    ApiTimeout,
    ForceDeletePartition,
    UseReconfigPartition,
    NodeFeature,
    VipuIpuofDir,
    Proxy,
    ProxyTokenFile,
    ProxyCa,
    WaitInProlog,
    HostMap,
    AllocationCreate,
    AllocationRemove,
    PoolDir,
    EveryJobHasOne,
    OnePartitionPerTask,
}

impl Key {
    /// The keys of a model.
    pub(super) const MODEL: [Self; 8] = [
        Self::ApiHost,
        Self::ApiPort,
        Self::IpuofDir,
        Self::MaxIpusPerJob,
        Self::ApiTimeout,
        Self::ForceDeletePartition,
        Self::UseReconfigPartition,
        Self::NodeFeature,
    ];
    /// The keys of the cluster.
    pub(super) const CLUSTER: [Self; 11] = [
        Self::VipuIpuofDir,
        Self::Proxy,
        Self::ProxyTokenFile,
        Self::ProxyCa,
        Self::WaitInProlog,
        Self::HostMap,
        Self::AllocationCreate,
        Self::AllocationRemove,
        Self::PoolDir,
        Self::EveryJobHasOne,
        Self::OnePartitionPerTask,
    ];

    pub(super) fn all() -> impl Iterator<Item = Self> {
        Self::MODEL.into_iter().chain(Self::CLUSTER)
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ApiHost => "ApiHost",
            Self::ApiPort => "ApiPort",
            Self::IpuofDir => "IpuofDir",
            Self::MaxIpusPerJob => "MaxIpusPerJob",
            Self::ApiTimeout => "ApiTimeout",
            Self::ForceDeletePartition => "ForceDeletePartition",
            Self::UseReconfigPartition => "UseReconfigPartition",
            Self::NodeFeature => "NodeFeature",
            Self::VipuIpuofDir => "VipuIpuofDir",
            Self::Proxy => "Proxy",
            Self::ProxyTokenFile => "ProxyTokenFile",
            Self::ProxyCa => "ProxyCa",
            Self::WaitInProlog => "WaitInProlog",
            Self::HostMap => "HostMap",
            Self::AllocationCreate => "AllocationCreate",
            Self::AllocationRemove => "AllocationRemove",
            Self::PoolDir => "PoolDir",
            Self::EveryJobHasOne => "EveryJobHasOne",
            Self::OnePartitionPerTask => "OnePartitionPerTask",
        }
    }

    /// Returns whether white space separates parts of the value.
    pub(super) const fn has_words(self) -> bool {
        matches!(self, Self::AllocationCreate | Self::AllocationRemove)
    }
}
