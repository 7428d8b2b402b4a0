//! Puts this program where another container finds it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::exit::Failure;

/// The name of the program in the folder.
const NAME: &str = "ipu-launcher";

/// Copies the running program into `folder`: as a whole or not at all, and again if it is there already.
pub(crate) fn install(folder: &Path) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::Install {
        folder: folder.display().to_string(),
        detail: error.to_string(),
    };
    let unfinished = folder.join(format!(".{NAME}.unfinished"));
    fs::create_dir_all(folder).map_err(failed)?;
    fs::copy("/proc/self/exe", &unfinished).map_err(failed)?;
    // Whoever the user's container runs as.
    fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    fs::rename(&unfinished, folder.join(NAME)).map_err(failed)
}
