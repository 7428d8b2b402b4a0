//! `cargo xtask package`: the offline bundle of the operator (V-IPU guide §6.2). `cargo package`, of cargo
//! itself, packs the crates instead. `cargo xtask package slurm` packs the programs for a Slurm.

mod contents;
mod plugin;
mod sbom;
mod slurm;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use flate2::{Compression, GzBuilder};
use ipu_test_cluster::{CLIENTS, PRODUCT, TarArchive, build_static, sha256};

use crate::{print_line, target};

/// Version of bundle, chart and images.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Name of the bundle's folder.
const NAME: &str = concat!("ipu-operator-", env!("CARGO_PKG_VERSION"));

/// Maximum size of an optimised program, in bytes.
const MAX_PROGRAM_BYTES: u64 = 32_000_000;

/// A file of the bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
struct File {
    mode: u32,
    content: Vec<u8>,
}

/// Files by path in the bundle.
type Files = BTreeMap<String, File>;

pub(crate) use self::slurm::package_slurm;

/// Builds the programs, and writes the bundle into `target/bundle` as a folder and as an archive.
pub(crate) fn package(root: &Path) -> Result<(), Box<dyn Error>> {
    let output = target()?.join("bundle");
    let built = build_static(&output.join("build"), &[&PRODUCT[..], &CLIENTS[..]].concat())?;
    let programs = output.join("programs");
    fs::create_dir_all(&programs)?;
    for program in PRODUCT.into_iter().chain(CLIENTS) {
        let size = fs::copy(built.join(program), programs.join(program))?;
        if is_optimised() && size > MAX_PROGRAM_BYTES {
            return Err(format!("{program} has {size} bytes, at most {MAX_PROGRAM_BYTES}").into());
        }
        print_line(&format!("{program}: {size} bytes"));
    }
    write_bundle(&output, NAME, &contents::files(root, &programs)?)
}

/// Returns whether the programs are built as for a release. The gate sets the level to 0: then they are
/// larger, and built in half the time.
fn is_optimised() -> bool {
    std::env::var_os("CARGO_PROFILE_RELEASE_OPT_LEVEL").is_none()
}

/// Writes the files into the folder `name`, and into an archive next to it.
fn write_bundle(output: &Path, name: &str, files: &Files) -> Result<(), Box<dyn Error>> {
    let folder = output.join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    for (path, file) in files {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().ok_or("a file of the bundle has no folder")?)?;
        fs::write(&path, &file.content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(file.mode))?;
    }
    let bytes = gzip(&tar(name, files)?)?;
    let archive = output.join(format!("{name}.tar.gz"));
    fs::write(&archive, &bytes)?;
    print_line(&format!(
        "{}: {} bytes, SHA-256 {}",
        archive.display(),
        bytes.len(),
        sha256(&bytes)
    ));
    Ok(())
}

/// Returns an archive of files in the folder `name`.
fn tar(name: &str, files: &Files) -> std::io::Result<Vec<u8>> {
    let mut archive = TarArchive::default();
    let mut folders: Vec<String> = Vec::new();
    for (path, file) in files {
        let path = format!("{name}/{path}");
        for (end, _) in path.match_indices('/') {
            let folder = &path[..end];
            if !folders.iter().any(|known| known == folder) {
                archive.folder(folder, 0o755)?;
                folders.push(folder.to_owned());
            }
        }
        archive.file(&path, file.mode, &file.content)?;
    }
    archive.finish()
}

/// Compresses without time and name, so that equal input gives equal bytes.
fn gzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let level = if is_optimised() {
        Compression::best()
    } else {
        Compression::fast()
    };
    let mut encoder = GzBuilder::new().write(Vec::new(), level);
    encoder.write_all(bytes)?;
    encoder.finish()
}

#[cfg(test)]
mod tests;
