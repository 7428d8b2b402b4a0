//! The state directory of a user: the ledger, the simulated Pod, and the files of each run.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
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
///
/// # Errors
///
/// [`io::ErrorKind::PermissionDenied`] if the directory, or a symbolic link to it, belongs to another user.
fn make_private(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    check_owner(path, &fs::symlink_metadata(path)?)?;
    let metadata = fs::metadata(path)?;
    check_owner(path, &metadata)?;
    let mode = metadata.permissions().mode();
    if mode & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(mode & !0o077))?;
    }
    Ok(())
}

/// Refuses what belongs to another user, who could change it.
fn check_owner(path: &Path, metadata: &fs::Metadata) -> io::Result<()> {
    let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
    if owner == user {
        return Ok(());
    }
    let why = format!(
        "{} belongs to user {owner} and not to user {user}: remove it, or use --state-dir",
        path.display()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Replaces the file at `path`, with these permissions. A symbolic link there is replaced itself, and not what it points to.
pub(crate) fn write_file(path: &Path, mode: u32, text: &[u8]) -> io::Result<()> {
    use std::io::Write as _;
    let (temporary, mut file) = create_beside(path, mode)?;
    let written = file.write_all(text).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        fs::remove_file(&temporary).ok();
    }
    written
}

/// Creates a new file in the directory of `path`: never one that is there, nor through a symbolic link.
fn create_beside(path: &Path, mode: u32) -> io::Result<(PathBuf, fs::File)> {
    /// More than crashes leave behind.
    const TRIES: u32 = 100;
    let mut number = 0;
    loop {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}-{number}.tmp", std::process::id()));
        let created = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&name);
        match created {
            Ok(file) => return Ok((name.into(), file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < TRIES => number += 1,
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_is_written_beside_a_symbolic_link_and_not_through_it() {
        let home = tempfile::tempdir().unwrap();
        let (victim, file) = (home.path().join("victim"), home.path().join("hosts"));
        fs::write(&victim, "as it was").unwrap();
        symlink(&victim, &file).unwrap();
        // Left behind by a process of the same number that was killed, or put there by another user.
        let stale = home.path().join(format!("hosts.{}-0.tmp", std::process::id()));
        symlink(&victim, &stale).unwrap();
        write_file(&file, 0o640, b"new").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "as it was");
        assert!(fs::symlink_metadata(&file).unwrap().is_file());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        write_file(&file, 0o600, b"newer").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "newer");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        // Nothing is left beside it.
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 3);
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        // Only root can make one; for any other user that of process 1 is there.
        let other = if rustix::process::geteuid().is_root() {
            let home = tempfile::tempdir().unwrap();
            let path = home.keep().join("state");
            fs::create_dir(&path).unwrap();
            std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
            path
        } else {
            PathBuf::from("/proc/1")
        };
        let error = make_private(&other).unwrap_err().to_string();
        assert!(error.contains("belongs to user"), "{error}");
        assert!(error.contains("use --state-dir"), "{error}");
        // A link of another user's could lead elsewhere tomorrow.
        if rustix::process::geteuid().is_root() {
            let link = other.with_file_name("link");
            let own = tempfile::tempdir().unwrap();
            symlink(own.path(), &link).unwrap();
            make_private(&link).unwrap();
            std::os::unix::fs::lchown(&link, Some(65_534), None).unwrap();
            assert!(make_private(&link).is_err());
            fs::remove_dir_all(other.parent().unwrap()).unwrap();
        }
    }

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
