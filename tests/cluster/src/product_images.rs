//! The images that `deploy/` references, made of local builds of this workspace.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::ClusterError;
use crate::image::Image;

/// Packages of the images; program and image have the package's name.
pub const PRODUCT: [&str; 4] = ["ipu-operator", "vipu-proxy", "ipu-launcher", "vipu-sim"];

/// Packages of the programs on the machines of users and administrators; the bundle has them next to the
/// images.
pub const CLIENTS: [&str; 2] = ["ipuctl", "kubectl-ipu"];

/// User and group of the programs. By number, so that `runAsNonRoot` admits them.
const USER: &str = "65532:65532";

/// Returns an image of each [`PRODUCT`] program in `programs`, a folder such as `target/debug`. The images
/// have the names in `deploy/` and contain only the program and its shared libraries. Missing programs are
/// built.
///
/// # Errors
///
/// [`ClusterError::Step`] if a program cannot be built.
pub fn product_images(programs: &Path) -> Result<Vec<Image>, ClusterError> {
    for program in PRODUCT {
        if !programs.join(program).exists() {
            build(program, programs)?;
        }
    }
    let images = scratch_images(programs).into_iter().zip(PRODUCT);
    images
        .map(|(image, program)| image.libraries_of(&programs.join(program)))
        .collect()
}

/// Returns the path of a program of [`CLIENTS`] in `programs`, a folder such as `target/debug`. A missing
/// program is built.
///
/// # Errors
///
/// [`ClusterError::Step`] if the program cannot be built.
pub fn client(programs: &Path, program: &str) -> Result<PathBuf, ClusterError> {
    let path = programs.join(program);
    if !path.exists() {
        build(program, programs)?;
    }
    Ok(path)
}

/// Returns an image of each static [`PRODUCT`] program in `programs`. The images have the names in `deploy/`,
/// and contain only the program.
#[must_use]
pub fn scratch_images(programs: &Path) -> Vec<Image> {
    let image = |program: &&str| {
        let inside = format!("/usr/bin/{program}");
        Image::scratch(&format!("{program}:{}", env!("CARGO_PKG_VERSION")))
            .file(&programs.join(program), &inside)
            .entrypoint([inside.as_str()])
            .user(USER)
    };
    PRODUCT.iter().map(image).collect()
}

/// Builds the programs of `packages` for release as static programs in `target`, a folder of cargo, and
/// returns their folder. They contain no path of this machine.
///
/// # Errors
///
/// [`ClusterError::Step`] if a program cannot be built.
pub fn build_static(target: &Path, packages: &[&str]) -> Result<PathBuf, ClusterError> {
    // glibc resolves names in an empty root, too.
    build_release(target, packages, &["-Ctarget-feature=+crt-static"])
}

/// Builds the libraries of `packages` for release in `target`, a folder of cargo, and returns their folder.
/// Programs load them, so they use the libc of those. They contain no path of this machine.
///
/// # Errors
///
/// [`ClusterError::Step`] if a library cannot be built.
pub fn build_libraries(target: &Path, packages: &[&str]) -> Result<PathBuf, ClusterError> {
    build_release(target, packages, &[])
}

fn build_release(target: &Path, packages: &[&str], flags: &[&str]) -> Result<PathBuf, ClusterError> {
    let build_error = |detail: String| ClusterError::step(format!("build {}", packages.join(", ")), detail);
    let root = root()
        .canonicalize()
        .map_err(|error| build_error(error.to_string()))?;
    let mut compiler = Command::new("rustc");
    let versions = compiler
        .arg("-vV")
        .output()
        .map_err(|error| build_error(error.to_string()))?;
    let versions = String::from_utf8_lossy(&versions.stdout).into_owned();
    let host = versions.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.ok_or_else(|| build_error("rustc reports no host".into()))?;
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME")?;
        Some(PathBuf::from(home).join(".cargo"))
    });
    let home = home.ok_or_else(|| build_error("neither CARGO_HOME nor HOME is set".into()))?;
    // With the component `rust-src`, the standard library has paths of the toolchain.
    let mut compiler = Command::new("rustc");
    let sysroot = compiler.args(["--print", "sysroot"]).output();
    let sysroot = sysroot.map_err(|error| build_error(error.to_string()))?.stdout;
    let sysroot = PathBuf::from(String::from_utf8_lossy(&sysroot).trim());
    let mut flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
    for (from, to) in [(&root, "/source"), (&home, "/cargo"), (&sysroot, "/rust")] {
        flags.push(format!("--remap-path-prefix={}={to}", from.display()));
    }
    let mut command = cargo();
    command
        .args(["build", "--locked", "--release", "--target", host])
        .args(["--config", "profile.release.strip=true", "--target-dir"])
        .arg(target)
        .args(packages.iter().flat_map(|package| ["-p", package]))
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env_remove("RUSTFLAGS");
    // It takes minutes: cargo shows its progress.
    let built = command.status().map_err(|error| build_error(error.to_string()))?;
    if !built.success() {
        return Err(build_error("cargo has printed the reason".into()));
    }
    Ok(target.join(host).join("release"))
}

fn build(package: &str, programs: &Path) -> Result<(), ClusterError> {
    let build_error = |detail: String| ClusterError::step(format!("build {package}"), detail);
    let mut command = cargo();
    command.args(["build", "--quiet", "-p", package]);
    if programs.ends_with("release") {
        command.arg("--release");
    }
    run(command).map_err(build_error)?;
    if !programs.join(package).exists() {
        return Err(build_error(format!(
            "the program is not in {}",
            programs.display()
        )));
    }
    Ok(())
}

fn cargo() -> Command {
    let cargo = std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from);
    let mut command = Command::new(cargo);
    command.current_dir(root());
    command
}

/// Runs a command; the error has its error output.
fn run(mut command: Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
