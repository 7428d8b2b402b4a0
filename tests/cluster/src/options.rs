//! What a cluster is made of, and how long it lives.

/// How long a cluster lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterLifetime {
    /// It ends with the process that started it, or when it is dropped.
    WithThisProcess,
    /// Until [`crate::stop`] is called on its directory.
    UntilStopped,
}

/// What etcd does for a crash of the machine. A crash of the processes loses nothing in either case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Nothing: faster, for tests.
    #[default]
    WithoutSync,
    /// It syncs every write to the disk, as in production: for measurements.
    Synced,
}

/// How much of a Kubernetes there is; each step has what those before it have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ClusterProfile {
    /// etcd and kube-apiserver: objects are stored, and nobody acts on them.
    #[default]
    ApiServer,
    /// kube-controller-manager and kube-scheduler besides: garbage collection, service accounts with their tokens, jobs and
    /// deployments; Kubernetes Pods are bound to nodes, if there are any.
    Controllers,
    /// A real node besides: kubelet, containerd, kube-proxy and a name server, in namespaces of their own. Needs root on Linux.
    Node,
}

/// How a cluster is to be.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    pub(crate) life: ClusterLifetime,
    pub(crate) durability: Durability,
    pub(crate) extent: ClusterProfile,
    pub(crate) audit: Audit,
}

/// Whether the API server writes down who wrote what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Audit {
    /// It does not.
    #[default]
    Nothing,
    /// Every write, without its content, a line of JSON each: `logs/audit.log` in the cluster's directory.
    Writes,
}

impl Options {
    /// An API server that lives so long.
    #[must_use]
    pub const fn new(life: ClusterLifetime) -> Self {
        Self {
            life,
            durability: Durability::WithoutSync,
            extent: ClusterProfile::ApiServer,
            audit: Audit::Nothing,
        }
    }

    /// With this durability.
    #[must_use]
    pub const fn durability(self, durability: Durability) -> Self {
        Self { durability, ..self }
    }

    /// With this much of a Kubernetes.
    #[must_use]
    pub const fn extent(self, extent: ClusterProfile) -> Self {
        Self { extent, ..self }
    }

    /// With this written down.
    #[must_use]
    pub const fn audit(self, audit: Audit) -> Self {
        Self { audit, ..self }
    }
}
