//! The state directory of a user: the files of the local server, the simulated IPU-POD and each run.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use ipu_allocator::process::ProcessHolder;
use ipu_core::allocator::OwnerLiveness;

use crate::exit_code::{Code, Failure};

/// A state directory that only its user can access.
#[derive(Clone, Debug)]
pub(crate) struct StateDir(PathBuf);

impl StateDir {
    /// Opens `path`, else `$XDG_STATE_HOME/ipuctl`, else `~/.local/state/ipuctl`. Creates the directory if it
    /// is missing.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => default_path()?,
        };
        let path = std::path::absolute(&path).map_err(|error| {
            Failure::because(Code::Host, format!("state directory {}", path.display()), error)
        })?;
        make_private(&path).map_err(|error| {
            Failure::because(
                Code::Host,
                format!("create state directory {}", path.display()),
                error,
            )
        })?;
        Ok(Self(path))
    }

    /// Returns the path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of the ledger.
    pub(crate) fn ledger_path(&self) -> PathBuf {
        self.0.join("ledger.db")
    }

    /// Returns the path of the socket of the local server.
    pub(crate) fn server_socket(&self) -> PathBuf {
        self.0.join("server.sock")
    }

    /// Returns the path of the file that the local server locks.
    pub(crate) fn server_lock(&self) -> PathBuf {
        self.0.join("server.lock")
    }

    /// Returns the path of the options of the local server.
    pub(crate) fn server_options(&self) -> PathBuf {
        self.0.join("server.json")
    }

    /// Returns the path of the log of the local server.
    pub(crate) fn server_log(&self) -> PathBuf {
        self.0.join("server.log")
    }

    /// Opens the log of the local server, to which several processes append.
    pub(crate) fn open_server_log(&self) -> io::Result<fs::File> {
        fs::OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(self.server_log())
    }

    /// Records that the notice about the simulated IPU-POD was shown; returns whether this is the first time.
    /// A directory that cannot be written counts as the first time.
    pub(crate) fn mark_simulator_notice(&self) -> bool {
        let path = self.0.join("sim/notice");
        let marked = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path);
        !matches!(marked, Err(error) if error.kind() == io::ErrorKind::AlreadyExists)
    }

    /// Returns the path of the state of the simulated IPU-POD. Creates its directory.
    pub(crate) fn create_simulator_state_path(&self) -> Result<PathBuf, Failure> {
        let path = self.0.join("sim");
        make_private(&path)
            .map_err(|error| Failure::because(Code::Host, format!("create {}", path.display()), error))?;
        Ok(path.join("state.json"))
    }

    /// Returns the path of the directory of all runs.
    pub(crate) fn runs_dir(&self) -> PathBuf {
        self.0.join("runs")
    }

    /// Returns the path of the directory of records of finished runs. Creates it if it is missing.
    pub(crate) fn create_history_dir(&self) -> io::Result<PathBuf> {
        let path = self.0.join("history");
        make_private(&path)?;
        Ok(path)
    }

    /// Creates the directory of a run. Its name identifies the process, so that a later command can determine
    /// whether that process is alive. `mpirun` splits paths at a colon.
    pub(crate) fn create_run_dir(&self, holder: &ProcessHolder) -> Result<PathBuf, Failure> {
        let path = self.runs_dir().join(holder.to_string().replace(':', "_"));
        make_private(&path)
            .map_err(|error| Failure::because(Code::Host, format!("create {}", path.display()), error))?;
        Ok(path)
    }

    /// Returns whether the process of a run with this directory is alive. If the run has leases, a process of
    /// another boot is unknown: it may run on another host that shares the home directory, and renew them.
    pub(crate) fn liveness_of_run(directory: &Path, has_leases: bool) -> OwnerLiveness {
        let name = directory.file_name().unwrap_or_default().to_string_lossy();
        match name.replace('_', ":").parse::<ProcessHolder>() {
            Ok(holder) if has_leases && !holder.is_of_this_boot() => OwnerLiveness::Unknown,
            Ok(holder) => holder.liveness(),
            Err(_) => OwnerLiveness::Unknown,
        }
    }
}

fn default_path() -> Result<PathBuf, Failure> {
    let variable = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    // The XDG base directory specification ignores relative paths.
    if let Some(base) = variable("XDG_STATE_HOME").filter(|path| path.is_absolute()) {
        return Ok(base.join("ipuctl"));
    }
    variable("HOME")
        .map(|home| home.join(".local/state/ipuctl"))
        .ok_or_else(|| {
            Failure::new(
                Code::Host,
                "no state directory: set HOME, XDG_STATE_HOME or --state-dir",
            )
        })
}

/// Creates the directory `path` with access for this user only. Existing parents are not changed.
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

/// Rejects a path that belongs to another user, who could change it.
fn check_owner(path: &Path, metadata: &fs::Metadata) -> io::Result<()> {
    let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
    if owner == user {
        return Ok(());
    }
    let message = format!(
        "{} belongs to user {owner} and not to user {user}: remove it, or use --state-dir",
        path.display()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

/// Replaces the file at `path` and sets its permissions. A symbolic link is replaced; its target is not
/// changed.
pub(crate) fn write_file(path: &Path, mode: u32, text: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let permissions = fs::Permissions::from_mode(mode);
    let mut file = tempfile::Builder::new()
        .permissions(permissions)
        .tempfile_in(directory)?;
    file.write_all(text)?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn write_file_replaces_a_symbolic_link_and_keeps_its_target() {
        let home = tempfile::tempdir().unwrap();
        let (victim, file) = (home.path().join("victim"), home.path().join("hosts"));
        fs::write(&victim, "unchanged").unwrap();
        symlink(&victim, &file).unwrap();
        write_file(&file, 0o640, b"new").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "unchanged");
        assert!(fs::symlink_metadata(&file).unwrap().is_file());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        write_file(&file, 0o600, b"newer").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "newer");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        // No temporary file is left.
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_directory_of_another_user_is_rejected() {
        // Only root can create one; other users find that of process 1.
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
        // Another user could redirect a link later.
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
    fn only_its_user_can_access_the_directory() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a/b");
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let state = StateDir::open(Some(&path)).unwrap();
        for path in [
            path,
            state.create_run_dir(&ProcessHolder::own().unwrap()).unwrap(),
        ] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o700);
        }
    }
}
