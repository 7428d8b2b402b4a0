//! The programs of a cluster: where they are, and how they are built.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::ClusterError;
use crate::modules::{Module, Modules};
use crate::options::ClusterProfile;

/// Where the programs are if `KUBEBUILDER_ASSETS` does not say: where other projects look for them, too.
const DEFAULT_FOLDER: &str = "/usr/local/kubebuilder/bin";

/// A program that the pinned modules build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tool {
    /// The store of the API server.
    Etcd,
    /// Takes snapshots of a running etcd.
    Etcdctl,
    /// Makes an etcd from a snapshot.
    Etcdutl,
    /// The API server.
    KubeApiserver,
    /// What a person types.
    Kubectl,
    /// The controllers that come with Kubernetes.
    KubeControllerManager,
    /// The scheduler of Kubernetes Pods.
    KubeScheduler,
    /// What runs Kubernetes Pods on a node.
    Kubelet,
    /// What leads Services to Kubernetes Pods on a node.
    KubeProxy,
    /// The container runtime of a node.
    Containerd,
    /// What containerd starts for each Kubernetes Pod.
    ContainerdShim,
    /// What loads images into containerd.
    Ctr,
    /// What answers Kubernetes Pods for the names of Services: `tools/cluster-dns`, of this repository.
    ClusterDns,
}

impl Tool {
    /// What a [`crate::Cluster`] needs.
    pub const BASIC: [Self; 5] = [
        Self::Etcd,
        Self::Etcdctl,
        Self::Etcdutl,
        Self::KubeApiserver,
        Self::Kubectl,
    ];
    /// What [`ClusterProfile::Controllers`] needs besides.
    pub const SCHEDULING: [Self; 2] = [Self::KubeControllerManager, Self::KubeScheduler];
    /// What [`ClusterProfile::Node`] needs besides.
    pub const NODE: [Self; 6] = [
        Self::Kubelet,
        Self::KubeProxy,
        Self::Containerd,
        Self::ContainerdShim,
        Self::Ctr,
        Self::ClusterDns,
    ];

    /// All that a cluster of this extent needs.
    #[must_use]
    pub fn of(extent: ClusterProfile) -> Vec<Self> {
        let mut tools = Self::BASIC.to_vec();
        if extent >= ClusterProfile::Controllers {
            tools.extend(Self::SCHEDULING);
        }
        if extent >= ClusterProfile::Node {
            tools.extend(Self::NODE);
        }
        tools
    }

    /// The name of the program.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Etcdctl => "etcdctl",
            Self::Etcdutl => "etcdutl",
            Self::KubeApiserver => "kube-apiserver",
            Self::Kubectl => "kubectl",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::KubeScheduler => "kube-scheduler",
            Self::Kubelet => "kubelet",
            Self::KubeProxy => "kube-proxy",
            Self::Containerd => "containerd",
            Self::ContainerdShim => "containerd-shim-runc-v2",
            Self::Ctr => "ctr",
            Self::ClusterDns => "cluster-dns",
        }
    }

    /// The Go package of the program.
    pub(crate) fn package(self) -> String {
        match self {
            Self::Etcd => "go.etcd.io/etcd/server/v3".into(),
            Self::Etcdctl => "go.etcd.io/etcd/etcdctl/v3".into(),
            Self::Etcdutl => "go.etcd.io/etcd/etcdutl/v3".into(),
            Self::Containerd | Self::ContainerdShim | Self::Ctr => {
                format!("github.com/containerd/containerd/v2/cmd/{}", self.name())
            }
            Self::ClusterDns => "./cluster-dns".into(),
            _ => format!("k8s.io/kubernetes/cmd/{}", self.name()),
        }
    }

    pub(crate) const fn module(self) -> Module {
        match self {
            Self::Containerd | Self::ContainerdShim | Self::Ctr => Module::Containerd,
            _ => Module::Kubernetes,
        }
    }
}

/// The folder with the programs.
#[derive(Clone, Debug)]
pub struct Tools {
    folder: PathBuf,
}

impl Tools {
    /// `KUBEBUILDER_ASSETS`, or else `/usr/local/kubebuilder/bin`, if everything that an API server needs is there.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Missing`] names the first program that is not there.
    pub fn find() -> Result<Self, ClusterError> {
        Self::find_for(ClusterProfile::ApiServer)
    }

    /// The same, for a cluster of this extent.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Missing`] names the first program that is not there.
    pub fn find_for(extent: ClusterProfile) -> Result<Self, ClusterError> {
        let tools = Self { folder: folder() };
        let missing = Tool::of(extent)
            .into_iter()
            .find(|tool| !tools.path(*tool).exists());
        match missing {
            Some(tool) => Err(ClusterError::Missing(tools.path(tool))),
            None => Ok(tools),
        }
    }

    /// The same, after building those of `wanted` that are missing or that were built here from other modules. Programs
    /// that somebody else put there are used as they are. Needs Go, and its module proxy or cache.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Build`].
    pub fn build(wanted: &[Tool]) -> Result<Self, ClusterError> {
        let tools = Self { folder: folder() };
        for module in [Module::Kubernetes, Module::Containerd] {
            let modules = Modules::read(module)?;
            let stale: Vec<Tool> = wanted
                .iter()
                .copied()
                .filter(|tool| tool.module() == module && !tools.is_fresh(*tool, modules.stamp(*tool)))
                .collect();
            if !stale.is_empty() {
                tools.replace(&modules, &stale)?;
            }
        }
        Ok(tools)
    }

    /// Builds these beside the folder and moves them in: who runs one meanwhile has the old or the new one.
    fn replace(&self, modules: &Modules, stale: &[Tool]) -> Result<(), ClusterError> {
        let failed = |error: std::io::Error| ClusterError::Build {
            what: names(stale),
            detail: format!(
                "{}: {error}; set KUBEBUILDER_ASSETS to a folder of yours",
                self.folder.display()
            ),
        };
        let fresh = self.folder.join(format!(".building-{}", std::process::id()));
        fs::create_dir_all(&fresh).map_err(failed)?;
        let built = modules.build(stale, &fresh);
        let moved = built.and_then(|()| {
            for tool in stale {
                fs::rename(fresh.join(tool.name()), self.path(*tool)).map_err(failed)?;
                fs::write(self.stamp(*tool), modules.stamp(*tool)).map_err(failed)?;
            }
            Ok(())
        });
        fs::remove_dir_all(&fresh).map_err(failed)?;
        moved
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where this program is, or would be.
    #[must_use]
    pub fn path(&self, tool: Tool) -> PathBuf {
        self.folder.join(tool.name())
    }

    fn stamp(&self, tool: Tool) -> PathBuf {
        self.folder.join(format!(".{}.ipu-sdk", tool.name()))
    }

    fn is_fresh(&self, tool: Tool, stamp: &str) -> bool {
        let built_here = fs::read_to_string(self.stamp(tool)).ok();
        self.path(tool).exists() && built_here.is_none_or(|of| of == stamp)
    }
}

fn folder() -> PathBuf {
    env::var_os("KUBEBUILDER_ASSETS").map_or_else(|| DEFAULT_FOLDER.into(), PathBuf::from)
}

pub(crate) fn names(tools: &[Tool]) -> String {
    let names: Vec<_> = tools.iter().map(|tool| tool.name()).collect();
    names.join(", ")
}
