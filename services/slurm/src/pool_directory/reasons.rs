//! The reasons that jobs have no partition.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;

use ipu_slurm::pointer_name;

use super::{PoolDirectory, REASONS_DIR, read_if_exists, remove_if_exists, replace};

/// Users read the files of a directory.
const DIRECTORY_MODE: u32 = 0o755;

impl PoolDirectory {
    /// Returns the reason that a job has no partition.
    pub(crate) fn reason(&self, job_id: u32) -> io::Result<Option<String>> {
        let name = pointer_name(job_id);
        match read_if_exists(&self.refusals.join(&name))? {
            Some(reason) => Ok(Some(reason)),
            None => read_if_exists(&self.path(REASONS_DIR).join(name)),
        }
    }

    /// Writes the reason that a job has no partition, or removes it. A directory that users can change, or
    /// another node has, stays untouched.
    pub(crate) fn set_reason(&self, job_id: u32, reason: Option<&str>) -> io::Result<()> {
        let name = pointer_name(job_id);
        let is_usable = self.is_usable()?;
        remove_if_exists(&self.refusals.join(&name))?;
        if is_usable {
            remove_if_exists(&self.path(REASONS_DIR).join(&name))?;
        }
        let Some(reason) = reason else {
            return Ok(());
        };
        let directory = if is_usable {
            self.path(REASONS_DIR)
        } else {
            self.refusals.clone()
        };
        fs::create_dir_all(&directory)?;
        // Tasks of users read it, whatever the umask of slurmd is.
        for directory in [
            Some(directory.as_path()),
            directory.parent().filter(|_| !is_usable),
        ]
        .into_iter()
        .flatten()
        {
            fs::set_permissions(directory, fs::Permissions::from_mode(DIRECTORY_MODE))?;
        }
        replace(&directory, &name, reason)
    }
}
