//! An image with Open MPI and a program that uses it, as users bring one.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::ClusterError;
use crate::image::Image;

/// The program; in the image it is `/usr/bin/ring`.
const RING: &str = include_str!("../../../examples/kubernetes/ring.c");

/// Where Debian keeps what Open MPI loads as it goes.
const FOLDERS: [&str; 4] = [
    "/etc/openmpi",
    "/usr/share/openmpi",
    "/usr/lib/x86_64-linux-gnu/openmpi",
    "/usr/lib/x86_64-linux-gnu/pmix2",
];

/// An image called `name` with a shell, the Open MPI of this machine and `examples/kubernetes/ring.c`, compiled in `scratch`.
/// None if Open MPI or its compiler is not installed here.
///
/// What is shipped of `ipu-launcher` needs no library of the user's image, but what tests are made of does: the image has those
/// that `launcher` is linked with, too.
///
/// # Errors
///
/// [`ClusterError::Step`].
pub fn mpi_image(name: &str, launcher: &Path, scratch: &Path) -> Result<Option<Image>, ClusterError> {
    let programs = ["mpicc", "mpirun", "orted"].map(|program| PathBuf::from("/usr/bin").join(program));
    if !programs.iter().all(|program| program.exists()) {
        return Ok(None);
    }
    let failed = |detail: String| ClusterError::step("compile ring.c", detail);
    let (source, ring) = (scratch.join("ring.c"), scratch.join("ring"));
    std::fs::write(&source, RING).map_err(|error| failed(error.to_string()))?;
    let mut compiler = Command::new(&programs[0]);
    let compiled = compiler.arg("-o").arg(&ring).arg(&source).output();
    let compiled = compiled.map_err(|error| failed(error.to_string()))?;
    if !compiled.status.success() {
        return Err(failed(String::from_utf8_lossy(&compiled.stderr).into_owned()));
    }
    let mut image = Image::busybox(name)?
        .program(&ring, "/usr/bin/ring")?
        .libraries_of(launcher)?
        .text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
        .text("/etc/nsswitch.conf", "hosts: files dns\n")
        // In a container everything is root's.
        .variable("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .variable("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    for program in &programs[1..] {
        image = image.program(program, &program.display().to_string())?;
    }
    for path in FOLDERS.map(Path::new).into_iter().filter(|path| path.exists()) {
        image = image.folder(path)?;
    }
    Ok(Some(image))
}
