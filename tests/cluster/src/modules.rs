//! The pinned Go modules that the programs are built from.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::ClusterError;
use crate::tools::{Tool, names};

/// One set of modules. There are two because containerd and Kubernetes want different versions of what they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Module {
    /// Kubernetes and etcd.
    Kubernetes,
    Containerd,
}

/// The pinned Go modules of one set.
pub(crate) struct Modules {
    folder: PathBuf,
    /// Tells one state of the modules from another.
    stamp: String,
    /// The same for what is built of a source in this repository.
    own_stamp: String,
    /// What the linker is told.
    linker: String,
    tags: &'static str,
}

impl Modules {
    pub(crate) fn read(module: Module) -> Result<Self, ClusterError> {
        let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools");
        let (folder, tags) = match module {
            Module::Kubernetes => (all, ""),
            // File systems that no test has.
            Module::Containerd => (all.join("containerd"), "no_btrfs no_zfs no_devmapper"),
        };
        let read = |name: &str| {
            fs::read_to_string(folder.join(name))
                .map_err(|error| ClusterError::step(format!("read {name} of the tools"), error))
        };
        let manifest = read("go.mod")?;
        let mut hasher = DefaultHasher::new();
        (&manifest, read("go.sum")?).hash(&mut hasher);
        let stamp = format!("{:016x}", hasher.finish());
        let linker = match module {
            Module::Kubernetes => {
                read("cluster-dns/main.go")?.hash(&mut hasher);
                kubernetes_version(&manifest)?
            }
            Module::Containerd => String::new(),
        };
        Ok(Self {
            stamp,
            own_stamp: format!("{:016x}", hasher.finish()),
            linker,
            folder,
            tags,
        })
    }

    pub(crate) fn stamp(&self, tool: Tool) -> &str {
        match tool {
            Tool::ClusterDns => &self.own_stamp,
            _ => &self.stamp,
        }
    }

    /// Builds programs into a folder. Others come first on this machine.
    pub(crate) fn build(&self, tools: &[Tool], output: &Path) -> Result<(), ClusterError> {
        // etcd's package is called after its folder, so that its program has to be named.
        let (etcd, others): (Vec<Tool>, Vec<Tool>) = tools.iter().partition(|tool| **tool == Tool::Etcd);
        if !etcd.is_empty() {
            self.go_build(&etcd, &output.join(Tool::Etcd.name()))?;
        }
        if !others.is_empty() {
            self.go_build(&others, &output.join(""))?;
        }
        Ok(())
    }

    /// `output` is a file for one and a folder for several.
    fn go_build(&self, tools: &[Tool], output: &Path) -> Result<(), ClusterError> {
        let failed = |detail: String| ClusterError::Build {
            what: names(tools),
            detail,
        };
        let ended = Command::new("nice")
            .args([
                "-n",
                "10",
                "go",
                "build",
                "-mod=readonly",
                "-trimpath",
                "-tags",
                self.tags,
            ])
            .args(["-ldflags", &format!("-s -w {}", self.linker), "-o"])
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

/// How the linker is told which version of Kubernetes this is, such as `v1.36.3`.
fn kubernetes_version(manifest: &str) -> Result<String, ClusterError> {
    let version = manifest
        .lines()
        .find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes "))
        .and_then(|rest| rest.split_whitespace().next())
        .ok_or_else(|| ClusterError::step("read go.mod", "it names no version of k8s.io/kubernetes"))?;
    let numbers: Vec<&str> = version.trim_start_matches('v').split('.').collect();
    let package = "k8s.io/component-base/version";
    Ok(format!(
        "-X {package}.gitVersion={version} -X {package}.gitMajor={} -X {package}.gitMinor={}",
        numbers.first().unwrap_or(&""),
        numbers.get(1).unwrap_or(&""),
    ))
}
