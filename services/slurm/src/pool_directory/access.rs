//! The owners of the directory, and its errors.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use ipu_slurm::{POOL_ALLOCATED, POOL_FREE};
use rustix::process::geteuid;

use super::{OWNER_FILE, PoolDirectory, REASONS_DIR, read_if_exists};
use crate::safe_file;

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
    /// Nodes share the directory: one partition would go to jobs of both.
    #[error(
        "{} belongs to node {owner}, not {node}; add %n to PoolDir in vipu.conf, or remove {} if the directory has \
         moved",
        root.display(),
        root.join(OWNER_FILE).display()
    )]
    OtherNode {
        /// The directory.
        root: PathBuf,
        /// The node that has it.
        owner: String,
        /// This node.
        node: String,
    },
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

    /// Checks that no other node has the directory.
    pub(crate) fn check_owner(&self) -> Result<(), PoolDirectoryError> {
        self.has_owner().map(drop)
    }

    /// Records this node as the owner of the directory, unless it has another owner.
    pub(super) fn claim(&self) -> Result<(), PoolDirectoryError> {
        // Not by the lock: some file systems lock each node's files by themselves.
        while !self.has_owner()? {
            match safe_file::create(&self.root, OWNER_FILE, &format!("{}\n", self.node)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(self.error(error)),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Lets any node own the directory. Its partitions are gone.
    pub(crate) fn disown(&self) -> io::Result<()> {
        safe_file::remove_if_exists(&self.path(OWNER_FILE))
    }

    /// Returns whether this node has the directory; false if no node has it.
    fn has_owner(&self) -> Result<bool, PoolDirectoryError> {
        let owner = read_if_exists(&self.path(OWNER_FILE)).map_err(|error| self.error(error))?;
        match owner.as_deref().map(str::trim_end) {
            Some(owner) if owner != self.node => Err(PoolDirectoryError::OtherNode {
                root: self.root.clone(),
                owner: owner.to_owned(),
                node: self.node.clone(),
            }),
            owner => Ok(owner.is_some()),
        }
    }

    /// Returns whether this node may write to the directory.
    pub(super) fn is_usable(&self) -> io::Result<bool> {
        Ok(self.insecure_paths()?.is_empty() && self.check_owner().is_ok())
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
        for name in ["", POOL_FREE, POOL_ALLOCATED, REASONS_DIR] {
            let path = if name.is_empty() {
                self.root.clone()
            } else {
                self.path(name)
            };
            let data = match name {
                "" => fs::metadata(&path)?,
                // It is created for the first reason.
                REASONS_DIR if !path.exists() => continue,
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
