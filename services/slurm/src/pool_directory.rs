//! The directory of a node's static partitions, under its lock.

mod access;
mod reasons;
mod runs;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ipu_slurm::{
    BootState, NodeTaskRequest, POOL_ALLOCATED, POOL_FREE, POOL_LOCK, PoolFile, PoolOperation, PoolPartition,
    PoolState, is_file_name, job_of_pointer, parse_pointer, pointer_name, pointer_text,
};

pub(crate) use self::access::PoolDirectoryError;
use crate::leftovers;
use crate::safe_file::{self, read_if_exists, remove_if_exists};

/// The kernel's id of the present boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The file with the id of the boot at which the directory was used last.
const LAST_BOOT: &str = "boot_id";
/// The file with the name of the node that has the directory. Nodes may share the parent directory.
const OWNER_FILE: &str = "node";
/// The directory with the reasons that jobs have no partition, by the name of the pointer.
const REASONS_DIR: &str = "reasons";
/// The directory with the reasons of jobs while the directory of the node cannot be trusted, by node.
const REFUSALS_DIR: &str = "/run/ipu-slurm";
/// Only root may open the lock: a user who holds it would stop every Prolog of the node.
const LOCK_MODE: u32 = 0o600;

/// Maximum wait for the lock. A Prolog that waits for ever would drain the node.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two attempts to get the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// The directory of a node's static partitions.
#[derive(Clone, Debug)]
pub(crate) struct PoolDirectory {
    root: PathBuf,
    node: String,
    /// The id of the present boot.
    boot_id: String,
    /// The directory with the reasons of jobs while `root` cannot be trusted.
    refusals: PathBuf,
    /// The run of the job whose pointer this process may write, if it is known.
    run: Option<String>,
    lock_timeout: Duration,
}

/// A version of a pointer. Each write makes a new version, even of an equal text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PointerVersion {
    file: u64,
    changed: (i64, i64),
}

/// A directory that no other process changes. Its state is repaired.
#[derive(Debug)]
pub(crate) struct LockedPool<'a> {
    directory: &'a PoolDirectory,
    pub(crate) state: PoolState,
    /// Released when the file is closed, even if the process is killed.
    _lock: File,
}

impl PoolDirectory {
    /// Opens the directory of a node at `root`.
    pub(crate) fn open(root: impl Into<PathBuf>, node: &str) -> io::Result<Self> {
        Ok(Self {
            root: root.into(),
            node: node.to_owned(),
            boot_id: fs::read_to_string(BOOT_ID)?.trim().to_owned(),
            refusals: Path::new(REFUSALS_DIR).join(node),
            run: None,
            lock_timeout: LOCK_TIMEOUT,
        })
    }

    /// Returns the path.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns whether the node has static partitions.
    pub(crate) fn exists(&self) -> bool {
        self.path(POOL_FREE).is_dir() && self.path(POOL_ALLOCATED).is_dir()
    }

    /// Waits for the lock, and repairs what a crash or a boot left. Refuses the directory of another node.
    pub(crate) fn lock(&self) -> Result<LockedPool<'_>, PoolDirectoryError> {
        self.check_access()?;
        let lock = self.open_lock().map_err(|error| self.error(error))?;
        let started = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(error)) => return Err(self.error(error)),
                Err(TryLockError::WouldBlock) => {}
            }
            let waited = started.elapsed();
            if waited >= self.lock_timeout {
                let path = self.path(POOL_LOCK);
                return Err(PoolDirectoryError::Busy { path, waited });
            }
            std::thread::sleep(LOCK_PAUSE);
        }
        // Before the repair: with the boot of another node, every partition would be free.
        self.claim()?;
        let repaired = || {
            let mut pool = LockedPool {
                directory: self,
                state: self.read_state()?,
                _lock: lock,
            };
            let steps = pool.state.repair();
            pool.take(&steps)?;
            // Only the holder of the lock writes there.
            for directory in ["", POOL_FREE, POOL_ALLOCATED] {
                leftovers::sweep(&self.path(directory), &["."], Duration::ZERO)?;
            }
            Ok(pool)
        };
        repaired().map_err(|error| self.error(error))
    }

    fn open_lock(&self) -> io::Result<File> {
        let lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(LOCK_MODE)
            .open(self.path(POOL_LOCK))?;
        lock.set_permissions(fs::Permissions::from_mode(LOCK_MODE))?;
        Ok(lock)
    }

    /// Returns the partitions of a job; none without a pointer. Needs no lock: a pointer does not change.
    pub(crate) fn pointer(&self, job_id: u32) -> io::Result<Option<Vec<String>>> {
        let text = read_if_exists(&self.path(&pointer_name(job_id)))?;
        Ok(text.map(|text| parse_pointer(&text)))
    }

    /// Returns the version of a job's pointer; none without a pointer.
    pub(crate) fn pointer_version(&self, job_id: u32) -> io::Result<Option<PointerVersion>> {
        match fs::symlink_metadata(self.path(&pointer_name(job_id))) {
            Ok(data) => Ok(Some(PointerVersion {
                file: data.ino(),
                changed: (data.ctime(), data.ctime_nsec()),
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the file of an allocated partition.
    pub(crate) fn allocated_file(&self, partition: &str) -> io::Result<PoolFile> {
        let text = safe_file::read(&self.path(POOL_ALLOCATED).join(partition))?;
        Ok(PoolFile::parse(&text))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Reads the directory without lock and repair.
    pub(super) fn read_state(&self) -> io::Result<PoolState> {
        let mut pointers = BTreeMap::new();
        for name in names(&self.root)? {
            if let Some(job_id) = job_of_pointer(&name) {
                pointers.insert(job_id, parse_pointer(&safe_file::read(&self.path(&name))?));
            }
        }
        let boot = match read_if_exists(&self.path(LAST_BOOT))? {
            Some(id) if id.trim() == self.boot_id => BootState::Current,
            Some(_) => BootState::Earlier,
            None => BootState::Unknown,
        };
        Ok(PoolState {
            boot,
            free: self.read_partitions(POOL_FREE)?,
            allocated: self.read_partitions(POOL_ALLOCATED)?,
            pointers,
        })
    }

    fn read_partitions(&self, directory: &str) -> io::Result<Vec<PoolPartition>> {
        let directory = self.path(directory);
        let mut partitions = Vec::new();
        for name in names(&directory)? {
            let size = PoolFile::parse(&safe_file::read(&directory.join(&name))?).size;
            partitions.push(PoolPartition { name, size });
        }
        Ok(partitions)
    }
}

impl LockedPool<'_> {
    /// Takes steps, in the directory and in the state.
    pub(crate) fn take(&mut self, steps: &[PoolOperation]) -> io::Result<()> {
        for step in steps {
            self.take_step(step)?;
            self.state.apply(step);
        }
        Ok(())
    }

    fn take_step(&self, step: &PoolOperation) -> io::Result<()> {
        let directory = self.directory;
        let (free, allocated) = (directory.path(POOL_FREE), directory.path(POOL_ALLOCATED));
        match step {
            PoolOperation::WritePointer { job_id, partitions } => {
                directory.record_run(*job_id)?;
                replace(&directory.root, &pointer_name(*job_id), &pointer_text(partitions))
            }
            PoolOperation::RemovePointer { job_id } => {
                remove_if_exists(&directory.path(&pointer_name(*job_id)))?;
                directory.forget_run(*job_id)
            }
            PoolOperation::Allocate { partition } => {
                fs::rename(free.join(partition), allocated.join(partition))
            }
            PoolOperation::Free { partition } => fs::rename(allocated.join(partition), free.join(partition)),
            PoolOperation::RecordBoot => {
                // The reasons are those of jobs of an earlier boot.
                if self.state.boot == BootState::Earlier {
                    match fs::remove_dir_all(directory.path(REASONS_DIR)) {
                        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                        Ok(()) | Err(_) => {}
                    }
                }
                replace(&directory.root, LAST_BOOT, &format!("{}\n", directory.boot_id))
            }
        }
    }
}

/// Returns the names of the visible files of a directory, sorted.
fn names(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        if let Ok(name) = entry?.file_name().into_string()
            && is_file_name(&name)
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Replaces a file. It is not forced to the disk, because after a crash of the machine everything is free.
fn replace(directory: &Path, name: &str, text: &str) -> io::Result<()> {
    safe_file::replace(directory, name, text, false)
}

/// Returns whether Prolog has left a pointer or a reason for the job in a directory. If every job has a
/// partition, the directory itself is the trace.
pub(crate) fn has_traces(root: &Path, task: &NodeTaskRequest, every_job_has_one: bool) -> bool {
    PoolDirectory::open(root, &task.node).is_ok_and(|directory| {
        let has_pointer = directory
            .pointer(task.job_id)
            .is_ok_and(|pointer| pointer.is_some());
        let has_reason = directory.reason(task.job_id).is_ok_and(|reason| reason.is_some());
        has_pointer || has_reason || every_job_has_one && directory.exists()
    })
}

#[cfg(test)]
mod tests;
