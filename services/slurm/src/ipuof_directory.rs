//! IpuofDir: its files decide which partition a task uses, so users must not write there.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::process::geteuid;

use crate::failure::Failure;

/// Write permission of group and others.
const OTHERS_MAY_WRITE: u32 = 0o022;

/// Checks, as SlurmUser, that the directory exists and that no other user can write there.
pub(crate) fn check(directory: &Path) -> Result<(), Failure> {
    let shown = directory.display();
    let data = match fs::metadata(directory) {
        Ok(data) if data.is_dir() => data,
        Ok(_) | Err(_) => {
            return Err(Failure(format!(
                "IpuofDir {shown} is not a directory: create it, with SlurmUser as owner"
            )));
        }
    };
    if data.uid() != 0 && data.uid() != geteuid().as_raw() {
        return Err(Failure(format!(
            "IpuofDir {shown} belongs to another user: make SlurmUser its owner with chown"
        )));
    }
    check_writers(directory)
}

/// Checks that only the owner of a directory can write there.
pub(crate) fn check_writers(directory: &Path) -> Result<(), Failure> {
    let shown = directory.display();
    let data =
        fs::metadata(directory).map_err(|error| Failure(format!("cannot read IpuofDir {shown}: {error}")))?;
    if data.mode() & OTHERS_MAY_WRITE == 0 {
        return Ok(());
    }
    Err(Failure(format!(
        "IpuofDir {shown}: others can write there; run chmod 755 {shown}"
    )))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_directory_that_others_can_write_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let problem = |mode| {
            fs::set_permissions(directory.path(), Permissions::from_mode(mode)).unwrap();
            check(directory.path()).err().map(|failure| failure.0)
        };
        assert_eq!(problem(0o755), None);
        for mode in [0o775, 0o757, 0o1777] {
            assert!(
                problem(mode)
                    .unwrap()
                    .contains("others can write there; run chmod 755")
            );
        }
        let absent = check(&directory.path().join("absent")).unwrap_err().0;
        assert!(
            absent.ends_with("is not a directory: create it, with SlurmUser as owner"),
            "{absent}"
        );
    }
}
