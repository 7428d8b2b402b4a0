//! The images that `deploy/` references, made of the latest local build of this workspace.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::ClusterError;
use crate::image::Image;

/// Packages of the images; program and image have the package's name.
pub const PRODUCT: [&str; 4] = ["ipu-operator", "vipu-proxy", "ipu-launcher", "vipu-sim"];

/// Returns an image of each [`PRODUCT`] program in `programs`, a folder such as `target/debug`. The images
/// have the names in `deploy/` and contain only the program and its shared libraries. Missing programs are
/// built.
///
/// # Errors
///
/// [`ClusterError::Step`] if a program cannot be built.
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
    let build_error = |detail: String| ClusterError::step(format!("build {package}"), detail);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let cargo = std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from);
    let mut command = Command::new(cargo);
    command
        .args(["build", "--quiet", "-p", package])
        .current_dir(root);
    if programs.ends_with("release") {
        command.arg("--release");
    }
    let output = command.output().map_err(|error| build_error(error.to_string()))?;
    if !output.status.success() {
        return Err(build_error(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    if !programs.join(package).exists() {
        return Err(build_error(format!(
            "the program is not in {}",
            programs.display()
        )));
    }
    Ok(())
}
