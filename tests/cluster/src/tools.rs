//! The programs of a cluster: where they are, and how they are built.

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::fs;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::ClusterError;

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
    /// What runs Kubernetes Pods besides a kubelet.
    pub const SCHEDULING: [Self; 2] = [Self::KubeControllerManager, Self::KubeScheduler];

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
        }
    }

    /// The Go package of the program.
    fn package(self) -> String {
        match self {
            Self::Etcd => "go.etcd.io/etcd/server/v3".into(),
            Self::Etcdctl => "go.etcd.io/etcd/etcdctl/v3".into(),
            Self::Etcdutl => "go.etcd.io/etcd/etcdutl/v3".into(),
            _ => format!("k8s.io/kubernetes/cmd/{}", self.name()),
        }
    }
}

/// The folder with the programs.
#[derive(Clone, Debug)]
pub struct Tools {
    folder: PathBuf,
}

impl Tools {
    /// `KUBEBUILDER_ASSETS`, or else `/usr/local/kubebuilder/bin`, if everything that a cluster needs is there.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Missing`] names the first program that is not there.
    pub fn find() -> Result<Self, ClusterError> {
        let tools = Self { folder: folder() };
        match Tool::BASIC.into_iter().find(|tool| !tools.path(*tool).exists()) {
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
        let modules = Modules::read()?;
        let stale: Vec<Tool> = wanted
            .iter()
            .copied()
            .filter(|tool| !tools.is_fresh(*tool, &modules.stamp))
            .collect();
        if stale.is_empty() {
            return Ok(tools);
        }
        fs::create_dir_all(&tools.folder).map_err(|error| ClusterError::Build {
            what: names(&stale),
            detail: format!(
                "{}: {error}; set KUBEBUILDER_ASSETS to a folder of yours",
                tools.folder.display()
            ),
        })?;
        // etcd's package is called after its folder, so that its program has to be named.
        let (etcd, others): (Vec<Tool>, Vec<Tool>) = stale.into_iter().partition(|tool| *tool == Tool::Etcd);
        if !etcd.is_empty() {
            modules.build(&etcd, &tools.path(Tool::Etcd))?;
        }
        if !others.is_empty() {
            modules.build(&others, &tools.folder.join(""))?;
        }
        for tool in etcd.into_iter().chain(others) {
            fs::write(tools.stamp(tool), &modules.stamp)
                .map_err(|error| ClusterError::step("write a stamp", error))?;
        }
        Ok(tools)
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

/// The pinned Go modules.
struct Modules {
    folder: PathBuf,
    /// Tells one state of the modules from another.
    stamp: String,
    /// The version of Kubernetes, such as `v1.36.3`.
    kubernetes: String,
}

impl Modules {
    fn read() -> Result<Self, ClusterError> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools");
        let read = |name: &str| {
            fs::read_to_string(folder.join(name))
                .map_err(|error| ClusterError::step(format!("read {name} of the tools"), error))
        };
        let manifest = read("go.mod")?;
        let mut hasher = DefaultHasher::new();
        (&manifest, read("go.sum")?).hash(&mut hasher);
        let kubernetes = manifest
            .lines()
            .find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes "))
            .and_then(|rest| rest.split_whitespace().next())
            .ok_or_else(|| ClusterError::step("read go.mod", "it names no version of k8s.io/kubernetes"))?;
        Ok(Self {
            stamp: format!("{:016x}", hasher.finish()),
            kubernetes: kubernetes.to_owned(),
            folder,
        })
    }

    /// Builds programs into `output`, which is a file for one and a folder for several. Others come first on this machine.
    fn build(&self, tools: &[Tool], output: &Path) -> Result<(), ClusterError> {
        let failed = |detail: String| ClusterError::Build {
            what: names(tools),
            detail,
        };
        let numbers: Vec<&str> = self.kubernetes.trim_start_matches('v').split('.').collect();
        let version = "k8s.io/component-base/version";
        let flags = format!(
            "-s -w -X {version}.gitVersion={} -X {version}.gitMajor={} -X {version}.gitMinor={}",
            self.kubernetes,
            numbers.first().unwrap_or(&""),
            numbers.get(1).unwrap_or(&""),
        );
        let ended = Command::new("nice")
            .args([
                "-n",
                "10",
                "go",
                "build",
                "-mod=readonly",
                "-trimpath",
                "-ldflags",
                &flags,
                "-o",
            ])
            .arg(output)
            .args(tools.iter().map(|tool| tool.package()))
            .current_dir(&self.folder)
            .env("CGO_ENABLED", "0")
            .env("GOFLAGS", "")
            .output()
            .map_err(|error| failed(error.to_string()))?;
        if ended.status.success() {
            return Ok(());
        }
        Err(failed(String::from_utf8_lossy(&ended.stderr).into_owned()))
    }
}

fn folder() -> PathBuf {
    env::var_os("KUBEBUILDER_ASSETS").map_or_else(|| DEFAULT_FOLDER.into(), PathBuf::from)
}

fn names(tools: &[Tool]) -> String {
    let names: Vec<_> = tools.iter().map(|tool| tool.name()).collect();
    names.join(", ")
}
