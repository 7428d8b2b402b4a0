//! Checks the file system of an SQLite ledger, which must be local to this host. WAL needs shared memory, and
//! some network file systems do not implement locks reliably.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use crate::store::StoreError;

/// Network file systems and FUSE, by their magic number in statfs(2).
const REFUSED_FILESYSTEMS: [(u32, &str); 16] = [
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFE53_4D42, "SMB2"),
    (0xFF53_4D42, "CIFS"),
    (0x6573_5546, "FUSE"),
    (0x0BD0_0BD0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x00C3_6400, "Ceph"),
    (0x5346_414F, "AFS"),
    (0x6B41_4653, "kAFS"),
    (0x7375_7245, "Coda"),
    (0x0116_1970, "GFS2"),
    (0x7461_636F, "OCFS2"),
    (0xAAD7_AAEA, "PanFS"),
    (0x0102_1997, "9P"),
];

/// Returns the name of a file system that is refused.
fn refused_filesystem(magic: u32) -> Option<&'static str> {
    REFUSED_FILESYSTEMS
        .iter()
        .find(|(number, _)| *number == magic)
        .map(|(_, name)| *name)
}

/// Returns the path of a ledger without links, after it created and checked the directory.
pub(super) fn prepare(path: &Path) -> Result<PathBuf, StoreError> {
    let invalid = |rule: String| StoreError::InvalidLocation {
        path: path.display().to_string(),
        rule,
    };
    let absolute = std::path::absolute(path).map_err(|error| invalid(error.to_string()))?;
    let Some(parent) = absolute.parent() else {
        return Err(invalid("it has no file name; give the path of a file".into()));
    };
    if absolute.is_dir() {
        return Err(invalid("it is a directory; give the path of a file in it".into()));
    }
    if !parent.exists() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)
            .map_err(|error| invalid(format!("the directory cannot be created: {error}")))?;
    }
    // A link and its file have one lock.
    let resolved = match parent.canonicalize() {
        Ok(parent) if !absolute.is_symlink() => Ok(parent.join(absolute.file_name().unwrap_or_default())),
        Ok(_) if !absolute.exists() => {
            return Err(invalid(
                "it is a link to a file that does not exist; name that file".into(),
            ));
        }
        Ok(_) => absolute.canonicalize(),
        Err(error) => Err(error),
    };
    let absolute = resolved.map_err(|error| invalid(error.to_string()))?;
    let parent = absolute.parent().unwrap_or(&absolute);
    let found = rustix::fs::statfs(parent).map_err(|error| invalid(error.to_string()))?;
    // The magic is 32 bits wide; some systems extend its sign.
    let magic = (found.f_type.cast_unsigned() & 0xFFFF_FFFF) as u32;
    match refused_filesystem(magic) {
        Some(name) => Err(invalid(format!(
            "it is on a {name} file system, where SQLite's locks and shared memory do not work; choose a directory \
             on a local disk of this host"
        ))),
        None => Ok(absolute),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_refused_by_name_and_local_ones_are_accepted() {
        assert_eq!(refused_filesystem(0x6969), Some("NFS"));
        assert_eq!(refused_filesystem(0x6573_5546), Some("FUSE"));
        for local in [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x794C_7630] {
            assert_eq!(refused_filesystem(local), None, "{local:#x}");
        }
    }

    #[test]
    fn a_directory_is_refused_as_a_ledger_path() {
        let directory = tempfile::tempdir().unwrap();
        let error = prepare(directory.path()).unwrap_err();
        assert!(error.to_string().contains("is a directory"), "{error}");
    }
}
