//! The owners of the directory, and its errors.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use ipu_slurm::{POOL_ALLOCATED, POOL_FREE};
use rustix::process::geteuid;

use super::{PoolDirectory, REASONS};

/// Write permission of group and others.
const OTHERS_MAY_WRITE: u32 = 0o022;

/// The reason that a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PoolDirectoryError {
    /// Another process does not release the lock.
    #[error(
        "another process has held {} for {} s; find it with fuser -v {}, and end it",
        path.display(),
        waited.as_secs(),
        path.display()
    )]
    Busy {
        /// The lock.
        path: PathBuf,
        /// The wait for it.
        waited: Duration,
    },
    /// Users may change it: links of a user would lead root to other files.
    #[error(
        "{path} may be written by others; run chown root {path}; chmod 755 {path}",
        path = .0.display()
    )]
    Insecure(PathBuf),
    /// A file cannot be read or written.
    #[error("cannot use {}: {source}", root.display())]
    Io {
        /// The directory.
        root: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

impl PoolDirectory {
    /// Returns an error of the system as one of this directory.
    pub(crate) fn error(&self, source: io::Error) -> PoolDirectoryError {
        let root = self.root.clone();
        PoolDirectoryError::Io { root, source }
    }

    /// Checks that no user can change the directory.
    pub(crate) fn check_access(&self) -> Result<(), PoolDirectoryError> {
        let paths = self.insecure_paths().map_err(|error| self.error(error))?;
        paths
            .into_iter()
            .next()
            .map_or(Ok(()), |path| Err(PoolDirectoryError::Insecure(path)))
    }

    /// Returns the directories that users can change: those of other users than root and the one of this
    /// process, those with more writers, and links.
    pub(crate) fn insecure_paths(&self) -> io::Result<Vec<PathBuf>> {
        let own = geteuid().as_raw();
        let mut insecure = Vec::new();
        for name in ["", POOL_FREE, POOL_ALLOCATED, REASONS] {
            let path = if name.is_empty() {
                self.root.clone()
            } else {
                self.path(name)
            };
            let data = match name {
                "" => fs::metadata(&path)?,
                // It is created for the first reason.
                REASONS if !path.exists() => continue,
                _ => fs::symlink_metadata(&path)?,
            };
            let is_own = data.uid() == 0 || data.uid() == own;
            if !data.is_dir() || !is_own || data.mode() & OTHERS_MAY_WRITE != 0 {
                insecure.push(path);
            }
        }
        Ok(insecure)
    }
}
