//! Where the state is kept: in memory, or in a file that several processes serve at once and that survives kill -9.
//!
//! A change is durable before it is answered: the whole state goes to a temporary file, fsync, rename, fsync of the
//! directory, all under flock(2) on a side file. The file is never changed in place, so a reader needs no lock: it looks
//! whether the path still names the file that it holds open, and reads the new one if not. Not for network file systems.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use ipu_core::Timestamp;

use crate::error::SimError;
use crate::state::{FORMAT, Settings, SimState};

/// Why a state file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A file cannot be read or written.
    #[error("{step} {}", path.display())]
    Io {
        /// What was being done.
        step: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// The file is not a state of this format.
    #[error("read {} as the state of a simulated Pod", path.display())]
    Parse {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The file was written by another version.
    #[error("{} has format {found}, this build reads {FORMAT}: use the build that wrote it, or another file", path.display())]
    Format {
        /// Which file.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// The file holds a state that no sequence of calls leads to.
    #[error("the state in {} contradicts itself: {contradiction}; restore the file, or use another one", path.display())]
    Contradiction {
        /// Which file.
        path: PathBuf,
        /// What cannot be.
        contradiction: String,
    },
    /// The file holds another Pod than the one asked for.
    #[error("{} holds the topology {found}, not {asked}: ask for that one, or use another file", path.display())]
    OtherTopology {
        /// Which file.
        path: PathBuf,
        /// What it holds.
        found: String,
        /// What was asked for.
        asked: String,
    },
}

/// The state and where it is kept.
pub(crate) struct Store {
    cache: Mutex<Cache>,
    file: Option<PathBuf>,
}

/// The state as last read, and the file that it was read from, held open so that its inode number cannot be used again.
struct Cache {
    state: SimState,
    read_from: Option<File>,
}

impl Store {
    /// A state that ends with the process.
    pub(crate) const fn memory(state: SimState) -> Self {
        Self {
            cache: Mutex::new(Cache {
                state,
                read_from: None,
            }),
            file: None,
        }
    }

    /// A state that ends with the process and begins as `stored`, which must be of the topology of `initial`.
    pub(crate) fn copy(
        stored: &[u8],
        initial: &SimState,
        delays: Option<Settings>,
    ) -> Result<Self, StoreError> {
        let path = Path::new("the copy");
        let mut state = parse(path, stored)?;
        same_pod(path, &state, initial)?;
        state.settings = delays.unwrap_or(state.settings);
        Ok(Self::memory(state))
    }

    /// The state in `path`, which is made from `initial` if it does not exist. `initial` must be of the same topology.
    /// `delays` replace those of the file.
    pub(crate) fn open(
        path: PathBuf,
        initial: SimState,
        delays: Option<Settings>,
    ) -> Result<Self, StoreError> {
        let _lock = lock(&path)?;
        let cache = if path.exists() {
            let (mut state, mut file) = read(&path)?;
            same_pod(&path, &state, &initial)?;
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

    /// Whether calls may wait for a disk.
    pub(crate) const fn blocks(&self) -> bool {
        self.file.is_some()
    }

    /// Looks at the state as it is now.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&SimState) -> Result<T, SimError>) -> Result<T, SimError> {
        let mut cache = self.cache();
        if let Some(path) = &self.file {
            cache.refresh(path).map_err(|error| storage("read", &error))?;
        }
        cache.state.advance(now());
        look(&cache.state)
    }

    /// Changes the state; what `change` refuses, or what cannot be written, has not happened.
    pub(crate) fn change<T>(
        &self,
        change: impl FnOnce(&mut SimState, Timestamp) -> Result<T, SimError>,
    ) -> Result<T, SimError> {
        let mut cache = self.cache();
        let Some(path) = &self.file else {
            let mut next = cache.state.clone();
            let answer = change(&mut next, now())?;
            cache.state = next;
            return Ok(answer);
        };
        let _lock = lock(path).map_err(|error| storage("written", &error))?;
        cache.refresh(path).map_err(|error| storage("read", &error))?;
        let mut next = cache.state.clone();
        let answer = change(&mut next, now())?;
        if next != cache.state {
            cache.read_from = Some(write(path, &next).map_err(|error| storage("written", &error))?);
            cache.state = next;
        }
        Ok(answer)
    }

    /// A panic in a call leaves the state as it was before, because changes are made on a copy.
    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cache {
    /// Reads the file again if another process has replaced it.
    fn refresh(&mut self, path: &Path) -> Result<(), StoreError> {
        let seen = self.read_from.as_ref().map(File::metadata).transpose();
        let seen = seen.map_err(|source| failed("look at", path, source))?;
        let present = fs::metadata(path).map_err(|source| failed("look at", path, source))?;
        let same = |seen: fs::Metadata| (seen.dev(), seen.ino()) == (present.dev(), present.ino());
        if !seen.is_some_and(same) {
            let (state, file) = read(path)?;
            (self.state, self.read_from) = (state, Some(file));
        }
        Ok(())
    }
}

/// Milliseconds since the Unix epoch by the system's clock, which all processes that share a file see alike.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

fn storage(step: &'static str, error: &StoreError) -> SimError {
    let source = std::error::Error::source(error)
        .map(|source| format!(": {source}"))
        .unwrap_or_default();
    SimError::Storage {
        step,
        detail: format!("{error}{source}"),
    }
}

fn failed(step: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::Io {
        step,
        path: path.to_owned(),
        source,
    }
}

/// The path with `suffix` behind its name.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Waits for the lock on the side file; it ends when the file is dropped or the process ends.
fn lock(path: &Path) -> Result<File, StoreError> {
    let side = beside(path, ".lock");
    let open = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&side);
    let file = open.map_err(|source| failed("open", &side, source))?;
    file.lock().map_err(|source| failed("lock", &side, source))?;
    Ok(file)
}

fn read(path: &Path) -> Result<(SimState, File), StoreError> {
    let mut file = File::open(path).map_err(|source| failed("open", path, source))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)
        .map_err(|source| failed("read", path, source))?;
    Ok((parse(path, &text)?, file))
}

/// The state that `text`, the content of `path`, holds. Its version is looked at first.
fn parse(path: &Path, text: &[u8]) -> Result<SimState, StoreError> {
    #[derive(serde::Deserialize)]
    struct FileHeader {
        format: u32,
    }
    let wrong = |source| StoreError::Parse {
        path: path.to_owned(),
        source,
    };
    let head: FileHeader = serde_json::from_slice(text).map_err(wrong)?;
    if head.format != FORMAT {
        return Err(StoreError::Format {
            path: path.to_owned(),
            found: head.format,
        });
    }
    let state: SimState = serde_json::from_slice(text).map_err(wrong)?;
    match state.find_inconsistency() {
        None => Ok(state),
        Some(contradiction) => Err(StoreError::Contradiction {
            path: path.to_owned(),
            contradiction,
        }),
    }
}

fn same_pod(path: &Path, found: &SimState, asked: &SimState) -> Result<(), StoreError> {
    if found.origin == asked.origin {
        return Ok(());
    }
    Err(StoreError::OtherTopology {
        path: path.to_owned(),
        found: found.origin.to_string(),
        asked: asked.origin.to_string(),
    })
}

/// Replaces the file as one step that survives the end of the process and of the machine. The lock must be held.
fn write(path: &Path, state: &SimState) -> Result<File, StoreError> {
    let temporary = beside(path, ".new");
    let text = serde_json::to_vec(state).map_err(|source| StoreError::Parse {
        path: path.to_owned(),
        source,
    })?;
    // Left behind by a crash, or a symbolic link that would lead to another file.
    fs::remove_file(&temporary).ok();
    let mut file = File::create_new(&temporary).map_err(|source| failed("create", &temporary, source))?;
    file.write_all(&text)
        .map_err(|source| failed("write", &temporary, source))?;
    file.sync_all()
        .map_err(|source| failed("sync", &temporary, source))?;
    fs::rename(&temporary, path).map_err(|source| failed("replace", path, source))?;
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let opened = File::open(directory).map_err(|source| failed("open", directory, source))?;
    opened
        .sync_all()
        .map_err(|source| failed("sync", directory, source))?;
    Ok(file)
}
