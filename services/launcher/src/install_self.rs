//! Copies this program into a folder that another container mounts.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::exit::Failure;

/// File name of the installed program.
const NAME: &str = "ipu-launcher";

/// Copies the running program into `folder` atomically, and replaces an existing copy.
pub(crate) fn install(folder: &Path) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::Install {
        folder: folder.display().to_string(),
        detail: error.to_string(),
    };
    let unfinished = folder.join(format!(".{NAME}.unfinished"));
    fs::create_dir_all(folder).map_err(failed)?;
    fs::copy("/proc/self/exe", &unfinished).map_err(failed)?;
    // The user's container may run as any user.
    fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    fs::rename(&unfinished, folder.join(NAME)).map_err(failed)
}
