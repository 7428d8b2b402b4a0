//! The bundle for the hosts of a Slurm: the static programs of hooks and proxy, the SPANK plugin, and the
//! files of `deploy/slurm`.

use std::error::Error;
use std::fs;
use std::path::Path;

use ipu_test_cluster::{build_libraries, build_static};

use super::{File, Files, contents, write_bundle};
use crate::{print_line, target};

/// Name of the bundle's folder.
const NAME: &str = concat!("ipu-slurm-", env!("CARGO_PKG_VERSION"));
/// The program of the hooks and the agent.
const PROGRAM: &str = "ipu-slurm";
/// The proxy, and its package.
const PROXY: &str = "vipu-proxy";
/// The SPANK plugin. Programs of Slurm load it, so it is not static.
const PLUGIN: &str = "libspank_vipu.so";

/// Type of the program header that names the loader of shared libraries.
const PT_INTERP: u32 = 3;

/// Builds program and plugin, and writes the bundle into `target/bundle` as a folder and as an archive.
pub(crate) fn package_slurm(root: &Path) -> Result<(), Box<dyn Error>> {
    let output = target()?.join("bundle");
    let build = output.join("build");
    let programs = build_static(&build, &["ipu-slurm-hooks", PROXY])?;
    let program = fs::read(programs.join(PROGRAM))?;
    if !is_static(&program).ok_or("the program is not an ELF file of 64 bits")? {
        return Err(format!("{PROGRAM} is linked dynamically").into());
    }
    print_line(&format!("{PROGRAM}: {} bytes, static", program.len()));
    let plugin = fs::read(build_libraries(&build, &["ipu-slurm-spank"])?.join(PLUGIN))?;
    let proxy = fs::read(programs.join(PROXY))?;
    print_line(&format!("{PLUGIN}: {} bytes", plugin.len()));
    write_bundle(&output, NAME, &files(root, program, proxy, plugin)?)
}

/// Returns the files of the bundle.
fn files(root: &Path, program: Vec<u8>, proxy: Vec<u8>, plugin: Vec<u8>) -> Result<Files, Box<dyn Error>> {
    let mut files = contents::folder_files(&root.join("deploy/slurm"))?;
    let mut add = |name: &str, mode, content| files.insert(name.to_owned(), File { mode, content });
    add(PROGRAM, 0o755, program);
    add(PROXY, 0o755, proxy);
    add(PLUGIN, 0o644, plugin);
    add("LICENSE", 0o644, fs::read(root.join("LICENSE"))?);
    Ok(files)
}

/// Returns whether a program needs no loader of shared libraries; none if it is not an ELF file of 64 bits,
/// least byte first.
fn is_static(program: &[u8]) -> Option<bool> {
    if !program.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let number = |at: usize, bytes: usize| -> Option<usize> {
        let field = program.get(at..at.checked_add(bytes)?)?;
        field.iter().rev().try_fold(0_usize, |value, byte| {
            value.checked_mul(256)?.checked_add(usize::from(*byte))
        })
    };
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for index in 0..count {
        let kind = number(table.checked_add(size.checked_mul(index)?)?, 4)?;
        if u32::try_from(kind) == Ok(PT_INTERP) {
            return Some(false);
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the head of a program with one program header of this type.
    fn program(kind: u8) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01".to_vec();
        bytes.resize(64, 0);
        (bytes[32], bytes[54], bytes[56]) = (64, 56, 1);
        bytes.push(kind);
        bytes.resize(64 + 56, 0);
        bytes
    }

    #[test]
    fn a_program_with_a_loader_is_not_static() {
        assert_eq!(is_static(&program(3)), Some(false));
        assert_eq!(is_static(&program(1)), Some(true));
        assert_eq!(is_static(b"#!/bin/sh\n"), None);
        assert_eq!(is_static(&program(3)[..40]), None);
        let this_test = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(is_static(&this_test), Some(cfg!(target_feature = "crt-static")));
    }

    #[test]
    fn the_bundle_has_all_that_a_host_of_slurm_needs() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let files = files(root, b"program".to_vec(), b"proxy".to_vec(), b"plugin".to_vec()).unwrap();
        assert_eq!((files[PROGRAM].mode, files[PROXY].mode), (0o755, 0o755));
        for name in [
            PLUGIN,
            "LICENSE",
            "README.md",
            "ipu-slurm-agent.service",
            "vipu-proxy.service",
            "vipu.conf",
            "ipu_slurm.lua",
            "job_submit.lua",
            "plugstack.conf",
        ] {
            assert_eq!(files[name].mode, 0o644, "{name}");
        }
    }
}
