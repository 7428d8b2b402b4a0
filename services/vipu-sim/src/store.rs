//! State storage: in memory, or in a file that several processes serve at once and that survives kill -9.
//!
//! A change is durable before its reply: the whole state goes to a temporary file, fsync, rename, fsync of
//! the directory, all under flock(2) on a side file. The file is never changed in place, so a reader needs
//! no lock. The reader checks whether the path still names the open file, and reads the new file if not.
//! Network file systems are not supported.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use ipu_core::Timestamp;
use parking_lot::Mutex;

use crate::error::SimError;
use crate::state::{FORMAT, Settings, SimState};

/// Errors of using a state file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A file cannot be read or written.
    #[error("{step} {}", path.display())]
    Io {
        /// Failed operation.
        step: &'static str,
        /// Affected file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file is not a state of this format.
    #[error("read {} as the state of a simulated IPU-POD", path.display())]
    Parse {
        /// The state file.
        path: PathBuf,
        /// Parse error.
        source: serde_json::Error,
    },
    /// Another version wrote the file.
    #[error("{} has format {found}, this build reads {FORMAT}: use the build that wrote it, or another file", path.display())]
    Format {
        /// The state file.
        path: PathBuf,
        /// Format version of the file.
        found: u32,
    },
    /// The file holds an IPU-POD with a different topology.
    #[error("{} holds the topology {found}, not {requested}: request that topology, or use another file", path.display())]
    OtherTopology {
        /// The state file.
        path: PathBuf,
        /// Topology in the file.
        found: String,
        /// Requested topology.
        requested: String,
    },
}

/// The state and its storage.
pub(crate) struct Store {
    /// Calls change a copy, so that a panic leaves the state unchanged.
    cache: Mutex<Cache>,
    file: Option<PathBuf>,
}

/// The state as last read, and its file, held open so that the inode number cannot be reused.
struct Cache {
    state: SimState,
    read_from: Option<File>,
}

impl Store {
    /// Creates a state in memory.
    pub(crate) const fn memory(state: SimState) -> Self {
        Self {
            cache: Mutex::new(Cache {
                state,
                read_from: None,
            }),
            file: None,
        }
    }

    /// Opens the state in `path`, which is created from `initial` if missing. `initial` must have the same
    /// topology. `delays` replace those of the file.
    pub(crate) fn open(
        path: PathBuf,
        initial: SimState,
        delays: Option<Settings>,
    ) -> Result<Self, StoreError> {
        let _lock = lock(&path)?;
        let cache = if path.exists() {
            let (mut state, mut file) = read(&path)?;
            check_topology(&path, &state, &initial)?;
            if let Some(settings) = delays.filter(|delays| *delays != state.settings) {
                state.settings = settings;
                file = write(&path, &state)?;
            }
            Cache {
                state,
                read_from: Some(file),
            }
        } else {
            let file = write(&path, &initial)?;
            Cache {
                state: initial,
                read_from: Some(file),
            }
        };
        Ok(Self {
            cache: Mutex::new(cache),
            file: Some(path),
        })
    }

    /// Returns whether calls may block on disk I/O.
    pub(crate) const fn blocks(&self) -> bool {
        self.file.is_some()
    }

    /// Reads the current state.
    pub(crate) fn read<T>(
        &self,
        query: impl FnOnce(&SimState) -> Result<T, SimError>,
    ) -> Result<T, SimError> {
        let mut cache = self.cache.lock();
        if let Some(path) = &self.file {
            cache
                .refresh(path)
                .map_err(|error| storage_error("read", &error))?;
        }
        cache.state.advance(now());
        query(&cache.state)
    }

    /// Changes the state. A change that is refused or cannot be written has no effect.
    pub(crate) fn change<T>(
        &self,
        change: impl FnOnce(&mut SimState, Timestamp) -> Result<T, SimError>,
    ) -> Result<T, SimError> {
        let mut cache = self.cache.lock();
        let Some(path) = &self.file else {
            let mut next = cache.state.clone();
            let result = change(&mut next, now())?;
            cache.state = next;
            return Ok(result);
        };
        let _lock = lock(path).map_err(|error| storage_error("written", &error))?;
        cache
            .refresh(path)
            .map_err(|error| storage_error("read", &error))?;
        let mut next = cache.state.clone();
        let result = change(&mut next, now())?;
        if next != cache.state {
            cache.read_from = Some(write(path, &next).map_err(|error| storage_error("written", &error))?);
            cache.state = next;
        }
        Ok(result)
    }
}

impl Cache {
    /// Reloads the file if another process has replaced it.
    fn refresh(&mut self, path: &Path) -> Result<(), StoreError> {
        let opened = self.read_from.as_ref().map(File::metadata).transpose();
        let opened = opened.map_err(|source| io_error("inspect", path, source))?;
        let present = fs::metadata(path).map_err(|source| io_error("inspect", path, source))?;
        let same = |opened: fs::Metadata| (opened.dev(), opened.ino()) == (present.dev(), present.ino());
        if !opened.is_some_and(same) {
            let (state, file) = read(path)?;
            (self.state, self.read_from) = (state, Some(file));
        }
        Ok(())
    }
}

/// Returns milliseconds since the Unix epoch by the system clock, which all processes that share a file
/// use.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

fn storage_error(step: &'static str, error: &StoreError) -> SimError {
    let source = std::error::Error::source(error)
        .map(|source| format!(": {source}"))
        .unwrap_or_default();
    SimError::Storage {
        step,
        detail: format!("{error}{source}"),
    }
}

fn io_error(step: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::Io {
        step,
        path: path.to_owned(),
        source,
    }
}

/// Appends `suffix` to the file name.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Waits for the lock on the side file. The lock ends when the file is dropped or the process ends.
fn lock(path: &Path) -> Result<File, StoreError> {
    let side = with_suffix(path, ".lock");
    let open = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&side);
    let file = open.map_err(|source| io_error("open", &side, source))?;
    file.lock().map_err(|source| io_error("lock", &side, source))?;
    Ok(file)
}

fn read(path: &Path) -> Result<(SimState, File), StoreError> {
    let mut file = File::open(path).map_err(|source| io_error("open", path, source))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)
        .map_err(|source| io_error("read", path, source))?;
    Ok((parse(path, &text)?, file))
}

/// Parses `text`, the content of `path`. Checks its version first.
fn parse(path: &Path, text: &[u8]) -> Result<SimState, StoreError> {
    #[derive(serde::Deserialize)]
    struct FileHeader {
        format: u32,
    }
    let parse_error = |source| StoreError::Parse {
        path: path.to_owned(),
        source,
    };
    let header: FileHeader = serde_json::from_slice(text).map_err(parse_error)?;
    if header.format != FORMAT {
        return Err(StoreError::Format {
            path: path.to_owned(),
            found: header.format,
        });
    }
    serde_json::from_slice(text).map_err(parse_error)
}

fn check_topology(path: &Path, found: &SimState, requested: &SimState) -> Result<(), StoreError> {
    if found.origin == requested.origin {
        return Ok(());
    }
    Err(StoreError::OtherTopology {
        path: path.to_owned(),
        found: found.origin.to_string(),
        requested: requested.origin.to_string(),
    })
}

/// Replaces the file atomically and durably, even across a machine crash. The lock must be held.
fn write(path: &Path, state: &SimState) -> Result<File, StoreError> {
    let temporary = with_suffix(path, ".new");
    let text = serde_json::to_vec(state).map_err(|source| StoreError::Parse {
        path: path.to_owned(),
        source,
    })?;
    // Left over from a crash, or a symbolic link to another file.
    fs::remove_file(&temporary).ok();
    let mut file = File::create_new(&temporary).map_err(|source| io_error("create", &temporary, source))?;
    file.write_all(&text)
        .map_err(|source| io_error("write", &temporary, source))?;
    file.sync_all()
        .map_err(|source| io_error("sync", &temporary, source))?;
    fs::rename(&temporary, path).map_err(|source| io_error("replace", path, source))?;
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let opened = File::open(directory).map_err(|source| io_error("open", directory, source))?;
    opened
        .sync_all()
        .map_err(|source| io_error("sync", directory, source))?;
    Ok(file)
}
