//! Release builds of the measured programs.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the folder of cargo's output.
#[must_use]
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the program that the environment variable `variable` names, or a release build of the one of
/// `package`.
///
/// # Panics
///
/// If the package cannot be built.
#[must_use]
pub fn program(package: &str, variable: &str) -> PathBuf {
    if let Some(path) = std::env::var_os(variable) {
        return path.into();
    }
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--release", "--package", package])
        .current_dir(root())
        .status();
    assert!(
        built.is_ok_and(|status| status.success()),
        "cannot build {package}"
    );
    target().join("release").join(package)
}
