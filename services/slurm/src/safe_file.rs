//! Reads of regular files only, and writes that follow no link.
//!
//! A FIFO or a device in the place of a file would make a hook wait for ever, and a symbolic link would let a
//! hook overwrite the file that it names.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::OFlags;

/// Users read the files.
const FILE_MODE: u32 = 0o644;

/// Opens a regular file for reading. A link to one is followed.
fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        // The bits of the flags are those of the system's `int`.
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        return Ok(file);
    }
    let kind = if kind.is_dir() {
        io::ErrorKind::IsADirectory
    } else {
        io::ErrorKind::InvalidInput
    };
    Err(io::Error::new(kind, "is not a regular file; remove it"))
}

/// Reads a regular file.
///
/// # Errors
///
/// If it cannot be read, is not a regular file, or is not UTF-8.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open_regular(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// Reads a regular file that an administrator writes. Text that is not UTF-8 is taken for ISO 8859-1, which
/// never fails: names and paths are ASCII, and an old comment is not a reason to refuse a file.
///
/// # Errors
///
/// If it cannot be read, or is not a regular file.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| error.into_bytes().into_iter().map(char::from).collect()))
}

/// Returns the bytes of a changed text: ISO 8859-1 if the file at `path` was read as such.
pub(crate) fn encoded_as(path: &Path, text: &str) -> Vec<u8> {
    let is_latin = fs::read(path).is_ok_and(|old| String::from_utf8(old).is_err());
    let latin: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(c).ok()).collect();
    latin
        .filter(|_| is_latin)
        .unwrap_or_else(|| text.as_bytes().to_vec())
}

/// Reads a regular file; none if there is no file.
///
/// # Errors
///
/// As of [`read`].
pub(crate) fn read_if_exists(path: &Path) -> io::Result<Option<String>> {
    match read(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns whether a path is a FIFO, a socket or a device.
pub(crate) fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|data| !data.is_file() && !data.is_dir())
}

/// Removes a file, which need not exist. Its directory may then be read-only.
pub(crate) fn remove_if_exists(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound || is_absent(path) => Ok(()),
        result => result,
    }
}

fn is_absent(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Returns the path of the file that an interrupted [`replace`] leaves.
pub(crate) fn unfinished_path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!(".{name}.new"))
}

/// Replaces a file: readers see the old one or the whole new one. A link in its place is replaced. `sync`
/// forces the text and the name to the disk.
pub(crate) fn replace(directory: &Path, name: &str, text: &str, sync: bool) -> io::Result<()> {
    let unfinished = unfinished_path(directory, name);
    let renamed = write_unfinished(&unfinished, text, sync)
        .and_then(|()| fs::rename(&unfinished, directory.join(name)));
    if let Err(error) = renamed {
        // On a full disk, an empty file may be left.
        let _ = remove_if_exists(&unfinished);
        return Err(error);
    }
    if sync {
        sync_directory(directory)?;
    }
    Ok(())
}

/// Creates a file with its text, and forces both to the disk.
///
/// # Errors
///
/// [`io::ErrorKind::AlreadyExists`] if there is one, which stays as it is.
pub(crate) fn create(directory: &Path, name: &str, text: &str) -> io::Result<()> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let unfinished = directory.join(format!(".{name}.{}-{count}.new", std::process::id()));
    write_unfinished(&unfinished, text, true)?;
    // Unlike a rename, a link replaces nothing.
    let linked = fs::hard_link(&unfinished, directory.join(name));
    remove_if_exists(&unfinished)?;
    linked?;
    sync_directory(directory)
}

fn write_unfinished(path: &Path, text: &str, sync: bool) -> io::Result<()> {
    remove_if_exists(path)?;
    let mut file = OpenOptions::new()
        .write(true)
        // O_EXCL: a file or a link that another process creates meanwhile is an error.
        .create_new(true)
        .mode(FILE_MODE)
        .open(path)?;
    file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    file.write_all(text.as_bytes())?;
    if sync {
        file.sync_all()?;
    }
    Ok(())
}

/// Forces the names of a directory to the disk. Otherwise a host that loses power may come back with an
/// earlier file.
fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_in_the_place_of_the_unfinished_file_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("precious");
        fs::write(&target, "old").unwrap();
        for name in [".c-7.env.new", "c-7.env"] {
            symlink(&target, directory.path().join(name)).unwrap();
        }
        replace(directory.path(), "c-7.env", "new", true).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "old");
        let written = directory.path().join("c-7.env");
        assert!(fs::symlink_metadata(&written).unwrap().is_file());
        assert_eq!(read(&written).unwrap(), "new");
    }

    #[test]
    fn a_file_is_created_once() {
        let directory = tempfile::tempdir().unwrap();
        create(directory.path(), "node", "first").unwrap();
        let error = create(directory.path(), "node", "second").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(read(&directory.path().join("node")).unwrap(), "first");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_fifo_and_a_device_are_errors_without_a_wait() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        assert!(
            std::process::Command::new("mkfifo")
                .arg(&fifo)
                .status()
                .unwrap()
                .success()
        );
        for path in [fifo.as_path(), Path::new("/dev/zero")] {
            let error = read(path).unwrap_err().to_string();
            assert_eq!(error, "is not a regular file; remove it");
            assert!(is_special(path));
        }
        assert!(!is_special(directory.path()) && read(directory.path()).is_err());
    }

    #[test]
    fn an_absent_file_needs_no_removal() {
        let directory = tempfile::tempdir().unwrap();
        remove_if_exists(&directory.path().join("absent")).unwrap();
        assert!(remove_if_exists(directory.path()).is_err());
        assert_eq!(read_if_exists(&directory.path().join("absent")).unwrap(), None);
    }
}
