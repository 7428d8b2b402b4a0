//! Options of a cluster.

/// Lifetime of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterLifetime {
    /// The cluster ends with the process that started it, or when it is dropped.
    WithThisProcess,
    /// The cluster runs until [`crate::stop`] is called on its directory.
    UntilStopped,
}

/// Durability of etcd across a machine crash. A process crash loses nothing in either case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// No sync: faster, for tests.
    #[default]
    WithoutSync,
    /// Every write is synced to the disk, as in production: for measurements.
    Synced,
}

/// The servers of a cluster; each profile includes the previous ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClusterProfile {
    /// etcd and kube-apiserver: objects are stored, and no controller acts on them.
    #[default]
    ApiServer,
    /// Adds kube-controller-manager and kube-scheduler: garbage collection, service accounts with tokens,
    /// jobs and deployments. Pods are bound to nodes, if any exist.
    Controllers,
    /// Adds a real node: kubelet, containerd, kube-proxy and a name server, in their own namespaces. Needs
    /// root on Linux.
    Node,
}

/// Options of a cluster.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    pub(crate) lifetime: ClusterLifetime,
    pub(crate) durability: Durability,
    pub(crate) extent: ClusterProfile,
    pub(crate) audit: Audit,
    pub(crate) domain: &'static str,
}

/// Audit logging of the API server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Audit {
    /// No audit log.
    #[default]
    Nothing,
    /// Logs every write without its content, one line of JSON each, to `logs/audit.log` in the cluster's
    /// directory.
    Writes,
}

impl Options {
    /// Returns the options of an API server with this lifetime.
    #[must_use]
    pub const fn new(lifetime: ClusterLifetime) -> Self {
        Self {
            lifetime,
            durability: Durability::WithoutSync,
            extent: ClusterProfile::ApiServer,
            audit: Audit::Nothing,
            domain: "cluster.local",
        }
    }

    /// Sets the durability.
    #[must_use]
    pub const fn durability(self, durability: Durability) -> Self {
        Self { durability, ..self }
    }

    /// Sets the profile.
    #[must_use]
    pub const fn profile(self, extent: ClusterProfile) -> Self {
        Self { extent, ..self }
    }

    /// Sets the audit logging.
    #[must_use]
    pub const fn audit(self, audit: Audit) -> Self {
        Self { audit, ..self }
    }

    /// Sets the cluster domain, the end of the DNS names of Services. Default: `cluster.local`.
    #[must_use]
    pub const fn domain(self, domain: &'static str) -> Self {
        Self { domain, ..self }
    }
}
