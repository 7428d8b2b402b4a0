//! The state directory of a user: the ledger, the simulated Pod, and the files of each run.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::exit_code::{Code, Failure};

/// The directory, made for this user alone.
#[derive(Clone, Debug)]
pub(crate) struct StateDir(PathBuf);

impl StateDir {
    /// Opens `given`, or `$XDG_STATE_HOME/ipuctl`, or `~/.local/state/ipuctl`; makes it if needed.
    pub(crate) fn open(given: Option<&Path>) -> Result<Self, Failure> {
        let path = match given {
            Some(path) => path.to_owned(),
            None => default()?,
        };
        let path = std::path::absolute(&path).map_err(|error| {
            Failure::because(Code::Host, format!("state directory {}", path.display()), error)
        })?;
        make_private(&path).map_err(|error| {
            Failure::because(
                Code::Host,
                format!("make state directory {}", path.display()),
                error,
            )
        })?;
        Ok(Self(path))
    }

    /// The ledger's file.
    pub(crate) fn ledger(&self) -> PathBuf {
        self.0.join("ledger.db")
    }

    /// The simulated Pod's file.
    pub(crate) fn simulator(&self) -> Result<PathBuf, Failure> {
        let path = self.0.join("sim");
        make_private(&path)
            .map_err(|error| Failure::because(Code::Host, format!("make {}", path.display()), error))?;
        Ok(path.join("state.json"))
    }

    /// The directory of all runs.
    pub(crate) fn runs(&self) -> PathBuf {
        self.0.join("runs")
    }

    /// Makes the directory of run `uid` of the process that `holder` names.
    pub(crate) fn run(&self, uid: &str, holder: &str) -> Result<PathBuf, Failure> {
        let path = self.runs().join(uid);
        make_private(&path)
            .and_then(|()| write_file(&path.join("holder"), 0o600, holder.as_bytes()))
            .map_err(|error| Failure::because(Code::Host, format!("make {}", path.display()), error))?;
        Ok(path)
    }
}

fn default() -> Result<PathBuf, Failure> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    // The XDG base directory specification says that a relative path is to be ignored.
    if let Some(base) = set("XDG_STATE_HOME").filter(|path| path.is_absolute()) {
        return Ok(base.join("ipuctl"));
    }
    set("HOME")
        .map(|home| home.join(".local/state/ipuctl"))
        .ok_or_else(|| {
            Failure::new(
                Code::Host,
                "no place for the state: set HOME, XDG_STATE_HOME or --state-dir",
            )
        })
}

/// Makes `path` for this user alone; what exists above it is left as it is.
fn make_private(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(mode & !0o077))?;
    }
    Ok(())
}

/// Writes a file that is there replaced if it exists, with these permissions.
pub(crate) fn write_file(path: &Path, mode: u32, text: &[u8]) -> io::Result<()> {
    use std::io::Write as _;
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(path)?;
    file.write_all(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_for_its_user_alone() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a/b");
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let state = StateDir::open(Some(&path)).unwrap();
        for path in [path, state.run("uid", "holder").unwrap()] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o700);
        }
    }
}
