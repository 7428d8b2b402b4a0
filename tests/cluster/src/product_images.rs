//! The images that `deploy/` names, made of this workspace's own programs as they were built last.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::ClusterError;
use crate::image::Image;

/// The packages whose programs the images hold; each is called like its package and its image.
pub const PRODUCT: [&str; 4] = ["ipu-operator", "vipu-proxy", "ipu-launcher", "vipu-sim"];

/// An image of each program of [`PRODUCT`] in `programs`, a folder such as `target/debug`: under the name that `deploy/` has,
/// with the libraries that it is linked with and with nothing else. What is not there is built.
///
/// # Errors
///
/// [`ClusterError::Step`] if one cannot be built.
pub fn product_images(programs: &Path) -> Result<Vec<Image>, ClusterError> {
    PRODUCT
        .into_iter()
        .map(|program| {
            let built = programs.join(program);
            if !built.exists() {
                build(program, programs)?;
            }
            let inside = format!("/usr/bin/{program}");
            let image = Image::new(&format!("{program}:{}", env!("CARGO_PKG_VERSION")))
                .program(&built, &inside)?
                .entrypoint([inside.as_str()]);
            Ok(image)
        })
        .collect()
}

fn build(package: &str, programs: &Path) -> Result<(), ClusterError> {
    let failed = |detail: String| ClusterError::step(format!("build {package}"), detail);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let cargo = std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from);
    let mut command = Command::new(cargo);
    command
        .args(["build", "--quiet", "-p", package])
        .current_dir(root);
    if programs.ends_with("release") {
        command.arg("--release");
    }
    let ended = command.output().map_err(|error| failed(error.to_string()))?;
    if !ended.status.success() {
        return Err(failed(String::from_utf8_lossy(&ended.stderr).into_owned()));
    }
    if !programs.join(package).exists() {
        return Err(failed(format!("it is not in {}", programs.display())));
    }
    Ok(())
}
