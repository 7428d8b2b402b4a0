//! The pinned Go modules of the programs.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Tool, names};
use crate::error::ClusterError;
use crate::ready::run;

/// A set of modules. There are several because their programs need different versions of shared
/// dependencies. Programs of one set share their compiled packages, which are most of a cold build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Module {
    /// Kubernetes, etcd, Kueue and JobSet.
    Kubernetes,
    Containerd,
    /// Helm 3, Helm 4 and kubeconform.
    Helm,
    CertManager,
}

impl Module {
    pub(crate) const ALL: [Self; 4] = [Self::Kubernetes, Self::Containerd, Self::Helm, Self::CertManager];
}

/// The pinned Go modules of one set.
pub(crate) struct Modules {
    folder: PathBuf,
    /// Hash of the module versions.
    stamp: String,
    /// Hash of the module versions and of the sources in this repository.
    source_stamp: String,
    /// Linker flags.
    linker_flags: String,
    tags: &'static str,
}

impl Modules {
    pub(crate) fn read(module: Module) -> Result<Self, ClusterError> {
        let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools");
        let (folder, tags) = match module {
            Module::Kubernetes => (all, ""),
            // Drops file systems that no test uses.
            Module::Containerd => (all.join("containerd"), "no_btrfs no_zfs no_devmapper"),
            Module::Helm => (all.join("helm"), ""),
            Module::CertManager => (all.join("cert-manager"), ""),
        };
        let read_file = |name: &str| {
            fs::read_to_string(folder.join(name))
                .map_err(|error| ClusterError::step(format!("read {name} of the tools"), error))
        };
        let manifest = read_file("go.mod")?;
        let mut hasher = DefaultHasher::new();
        (&manifest, read_file("go.sum")?).hash(&mut hasher);
        let stamp = format!("{:016x}", hasher.finish());
        let linker_flags = match module {
            Module::Kubernetes => {
                read_file("cluster-dns/main.go")?.hash(&mut hasher);
                kubernetes_version(&manifest)?
            }
            Module::Helm => helm_kubernetes_version(&manifest)?,
            Module::Containerd | Module::CertManager => String::new(),
        };
        Ok(Self {
            stamp,
            source_stamp: format!("{:016x}", hasher.finish()),
            linker_flags,
            folder,
            tags,
        })
    }

    pub(crate) fn stamp(&self, tool: Tool) -> &str {
        match tool {
            Tool::ClusterDns => &self.source_stamp,
            _ => &self.stamp,
        }
    }

    /// Builds programs into a folder, at low priority.
    pub(crate) fn build(&self, tools: &[Tool], output: &Path) -> Result<(), ClusterError> {
        // A program is named after the folder of its package, unless its output name is explicit.
        let (renamed, others): (Vec<Tool>, Vec<Tool>) =
            tools.iter().partition(|tool| tool.is_named_unlike_its_package());
        for tool in renamed {
            self.go_build(&[tool], &output.join(tool.name()))?;
        }
        if !others.is_empty() {
            self.go_build(&others, &output.join(""))?;
        }
        Ok(())
    }

    /// Returns the folder of the sources of a Go module.
    pub(crate) fn sources(&self, module: &str) -> Result<PathBuf, ClusterError> {
        let mut command = Command::new("go");
        command
            .args(["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module])
            .current_dir(&self.folder)
            .env("GOFLAGS", "");
        run(command).map(|folder| PathBuf::from(folder.trim()))
    }

    /// `output` is a file for one tool and a folder for several.
    fn go_build(&self, tools: &[Tool], output: &Path) -> Result<(), ClusterError> {
        let build_error = |detail: String| ClusterError::Build {
            what: names(tools),
            detail,
        };
        let output_of_go = Command::new("nice")
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
            .args(["-ldflags", &format!("-s -w {}", self.linker_flags), "-o"])
            .arg(output)
            .args(tools.iter().map(|tool| tool.package()))
            .current_dir(&self.folder)
            .env("CGO_ENABLED", "0")
            .env("GOFLAGS", "")
            .output()
            .map_err(|error| build_error(error.to_string()))?;
        if output_of_go.status.success() {
            return Ok(());
        }
        Err(build_error(
            String::from_utf8_lossy(&output_of_go.stderr).into_owned(),
        ))
    }
}

/// Returns the version of a module, such as `v1.36.3`.
fn version_of<'a>(manifest: &'a str, module: &str) -> Result<&'a str, ClusterError> {
    manifest
        .lines()
        .find_map(|line| line.trim().strip_prefix(module)?.strip_prefix(' '))
        .and_then(|rest| rest.split_whitespace().next())
        .ok_or_else(|| ClusterError::step("read go.mod", format!("{module} has no version")))
}

/// Returns the linker flags that set the Kubernetes version of Helm 3, as its releases do: without them,
/// `helm template` renders for Kubernetes 1.20. Helm 4 reads its version from the module versions in the
/// program.
fn helm_kubernetes_version(manifest: &str) -> Result<String, ClusterError> {
    // Version v0.N of a library belongs to Kubernetes 1.N.
    let version = version_of(manifest, "k8s.io/client-go")?;
    let minor = version.split('.').nth(1).unwrap_or_default();
    let flags = ["pkg/chartutil", "pkg/lint/rules"].map(|package| {
        let package = format!("helm.sh/helm/v3/{package}");
        format!("-X {package}.k8sVersionMajor=1 -X {package}.k8sVersionMinor={minor}")
    });
    Ok(flags.join(" "))
}

/// Returns the linker flags that set the Kubernetes version, such as `v1.36.3`.
fn kubernetes_version(manifest: &str) -> Result<String, ClusterError> {
    let version = version_of(manifest, "k8s.io/kubernetes")?;
    let numbers: Vec<&str> = version.trim_start_matches('v').split('.').collect();
    let package = "k8s.io/component-base/version";
    Ok(format!(
        "-X {package}.gitVersion={version} -X {package}.gitMajor={} -X {package}.gitMinor={}",
        numbers.first().unwrap_or(&""),
        numbers.get(1).unwrap_or(&""),
    ))
}
