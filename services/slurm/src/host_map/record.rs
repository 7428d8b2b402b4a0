//! The record of a job's allocation in IpuofDir, which also is its lock.
//!
//! An allocation has the id of the job, and Slurm reuses job ids. So the allocation belongs to the run in the
//! record: a later run with the same id waits until the record is gone, and only the holder of the lock runs
//! the commands.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use ipu_core::AgentId;
use ipu_slurm::RunStart;

use crate::safe_file;

/// The beginning of the first line, with the version of the format.
const HEADER: &str = "# ipu-slurm allocation 1";
/// The end of the name of a record.
const SUFFIX: &str = ".allocation";
/// The line of an allocation that AllocationCreate may have created.
const REQUESTED: &str = "requested";
/// The line of an allocation that AllocationCreate has created.
const CREATED: &str = "created";

/// The record of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AllocationRecord {
    /// The run that the allocation belongs to.
    pub(crate) start: RunStart,
    /// Its machines.
    pub(crate) machines: Vec<AgentId>,
    /// The progress of AllocationCreate.
    pub(crate) progress: Progress,
}

/// The progress of AllocationCreate, of which a reply can be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Progress {
    /// AllocationCreate was not started. An allocation with the id is none of this run.
    Planned,
    /// AllocationCreate was started, and may have succeeded.
    Requested,
    /// AllocationCreate has succeeded.
    Created,
}

/// A record whose allocation no other process changes.
#[derive(Debug)]
pub(super) struct LockedRecord {
    pub(super) record: AllocationRecord,
    path: PathBuf,
    file: File,
}

impl AllocationRecord {
    fn render(&self) -> String {
        let machines: Vec<&str> = self.machines.iter().map(AgentId::as_str).collect();
        format!("{HEADER} run={} machines={}\n", self.start, machines.join(","))
    }

    fn parse(text: &str) -> Option<Self> {
        let (header, rest) = text.split_once('\n')?;
        let words = header.strip_prefix(HEADER)?;
        let word = |key: &str| {
            words
                .split(' ')
                .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
        };
        let machines: Result<Vec<AgentId>, _> = word("machines")?.split(',').map(AgentId::new).collect();
        Some(Self {
            start: RunStart::from_uid(word("run")?).ok()?,
            machines: machines.ok()?,
            progress: match rest.lines().last() {
                Some(CREATED) => Progress::Created,
                Some(REQUESTED) => Progress::Requested,
                _ => Progress::Planned,
            },
        })
    }
}

/// Returns the name of the record of a job.
pub(crate) fn record_name(cluster: &str, job_id: u32) -> String {
    format!("{cluster}-{job_id}{SUFFIX}")
}

/// A record in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundRecord {
    pub(crate) name: String,
    pub(crate) record: AllocationRecord,
}

/// Returns the records of a directory by name, without files that this program did not write.
pub(crate) fn records(directory: &Path) -> io::Result<Vec<FoundRecord>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let name = entry?.file_name();
        let Some(name) = name
            .to_str()
            .filter(|name| name.ends_with(SUFFIX) && !name.starts_with('.'))
        else {
            continue;
        };
        match fs::read_to_string(directory.join(name)) {
            Ok(text) => found.extend(AllocationRecord::parse(&text).map(|record| FoundRecord {
                name: name.to_owned(),
                record,
            })),
            // Removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    found.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(found)
}

impl LockedRecord {
    /// Creates the record of a run, or opens that of an earlier hook of the same run. None if another
    /// process has it.
    pub(super) fn create(
        directory: &Path,
        name: &str,
        record: &AllocationRecord,
    ) -> io::Result<Option<Self>> {
        match safe_file::create(directory, name, &record.render()) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
        Ok(Self::open(directory, name)?.filter(|locked| locked.record.start == record.start))
    }

    /// Opens and locks a record; none if there is none, or another process has it.
    pub(super) fn open(directory: &Path, name: &str) -> io::Result<Option<Self>> {
        let path = directory.join(name);
        let mut file = match OpenOptions::new().read(true).append(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // The process that had the lock may have removed the record.
        let current = match fs::metadata(&path) {
            Ok(current) => current,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let own = file.metadata()?;
        if (own.dev(), own.ino()) != (current.dev(), current.ino()) {
            return Ok(None);
        }
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let record = AllocationRecord::parse(&text).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "the file is not one of ipu-slurm: remove it",
            )
        })?;
        Ok(Some(Self { record, path, file }))
    }

    /// Records that AllocationCreate may succeed from now on.
    pub(super) fn set_requested(&mut self) -> io::Result<()> {
        self.add(REQUESTED, Progress::Requested)
    }

    /// Records that AllocationCreate has succeeded.
    pub(super) fn set_created(&mut self) -> io::Result<()> {
        self.add(CREATED, Progress::Created)
    }

    fn add(&mut self, line: &str, progress: Progress) -> io::Result<()> {
        self.file.write_all(format!("{line}\n").as_bytes())?;
        self.file.sync_all()?;
        self.record.progress = progress;
        Ok(())
    }

    /// Removes the record: the allocation is gone.
    pub(super) fn remove(self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

/// Ends the lock even if a child process has the file still, until it executes its program.
impl Drop for LockedRecord {
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(run: &str) -> AllocationRecord {
        AllocationRecord {
            start: RunStart::from_uid(run).unwrap(),
            machines: ["a1", "a2"].map(|name| AgentId::new(name).unwrap()).to_vec(),
            progress: Progress::Planned,
        }
    }

    #[test]
    fn a_record_belongs_to_one_run_until_it_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let (directory, name) = (directory.path(), record_name("testbed", 7));
        let (first, second) = (record("7.100"), record("7.200"));
        let mut locked = LockedRecord::create(directory, &name, &first).unwrap().unwrap();
        locked.set_requested().unwrap();
        assert_eq!(
            records(directory).unwrap()[0].record.progress,
            Progress::Requested
        );
        locked.set_created().unwrap();
        // The lock is held.
        assert!(LockedRecord::create(directory, &name, &first).unwrap().is_none());
        assert!(LockedRecord::open(directory, &name).unwrap().is_none());
        drop(locked);
        assert!(LockedRecord::create(directory, &name, &second).unwrap().is_none());
        let again = LockedRecord::create(directory, &name, &first).unwrap().unwrap();
        assert_eq!(again.record.progress, Progress::Created);
        let found = records(directory).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((&found[0].name, &found[0].record), (&name, &again.record));
        again.remove().unwrap();
        let later = LockedRecord::create(directory, &name, &second).unwrap().unwrap();
        assert_eq!(later.record, second);
        later.remove().unwrap();
        assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
    }

    #[test]
    fn a_child_process_with_the_file_does_not_keep_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let (directory, name) = (directory.path(), record_name("testbed", 7));
        let locked = LockedRecord::create(directory, &name, &record("7.100"))
            .unwrap()
            .unwrap();
        let _of_child = locked.file.try_clone().unwrap();
        drop(locked);
        assert!(LockedRecord::open(directory, &name).unwrap().is_some());
    }

    #[test]
    fn a_file_of_another_program_is_no_record() {
        let directory = tempfile::tempdir().unwrap();
        let (directory, name) = (directory.path(), record_name("testbed", 7));
        fs::write(directory.join(&name), "mine\n").unwrap();
        assert_eq!(records(directory).unwrap(), []);
        let error = LockedRecord::open(directory, &name).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(LockedRecord::open(directory, "absent").unwrap().is_none());
    }
}
