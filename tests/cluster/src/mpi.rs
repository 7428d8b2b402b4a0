//! An image with Open MPI and an MPI program, like a user's image.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::ClusterError;
use crate::image::Image;

/// Source of the MPI program; in the image it is `/usr/bin/ring`.
const RING: &str = include_str!("../../../examples/kubernetes/ring.c");

/// Debian folders with the plugins that Open MPI loads at run time.
const FOLDERS: [&str; 4] = [
    "/etc/openmpi",
    "/usr/share/openmpi",
    "/usr/lib/x86_64-linux-gnu/openmpi",
    "/usr/lib/x86_64-linux-gnu/pmix2",
];

/// Returns an image `name` with a shell, the local Open MPI and `examples/kubernetes/ring.c`, compiled in
/// `scratch`. Returns `None` if Open MPI or its compiler is not installed.
///
/// The released `ipu-launcher` needs no library of the user's image, but test builds do: the image includes
/// the libraries of `launcher`.
///
/// # Errors
///
/// [`ClusterError::Step`].
pub fn mpi_image(name: &str, launcher: &Path, scratch: &Path) -> Result<Option<Image>, ClusterError> {
    let programs = ["mpicc", "mpirun", "orted"].map(|program| PathBuf::from("/usr/bin").join(program));
    if !programs.iter().all(|program| program.exists()) {
        return Ok(None);
    }
    let compile_error = |detail: String| ClusterError::step("compile ring.c", detail);
    let (source, ring) = (scratch.join("ring.c"), scratch.join("ring"));
    std::fs::write(&source, RING).map_err(|error| compile_error(error.to_string()))?;
    let mut compiler = Command::new(&programs[0]);
    let compilation = compiler.arg("-o").arg(&ring).arg(&source).output();
    let compilation = compilation.map_err(|error| compile_error(error.to_string()))?;
    if !compilation.status.success() {
        return Err(compile_error(
            String::from_utf8_lossy(&compilation.stderr).into_owned(),
        ));
    }
    let mut image = Image::busybox(name)?
        .program(&ring, "/usr/bin/ring")?
        .libraries_of(launcher)?
        .text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
        .text("/etc/nsswitch.conf", "hosts: files dns\n")
        // Processes in the container run as root.
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
