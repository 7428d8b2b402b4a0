//! Unfinished files of programs that were killed while they wrote a file.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The age from which on no program writes an unfinished file any more. Hosts may share the directory.
pub(crate) const MIN_AGE: Duration = Duration::from_secs(3600);
/// The end of the names of unfinished files.
const UNFINISHED_SUFFIX: &str = ".new";

/// Removes the unfinished files of a directory whose names contain one of `kinds`, and which have not
/// changed for `min_age`.
///
/// # Errors
///
/// The first file that cannot be removed. A directory that does not exist has none.
pub(crate) fn sweep(directory: &Path, kinds: &[&str], min_age: Duration) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let now = SystemTime::now();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if !is_unfinished(name) || !kinds.iter().any(|kind| name.contains(kind)) {
            continue;
        }
        let removed = entry.metadata().and_then(|data| {
            let is_old = min_age.is_zero()
                || now
                    .duration_since(data.modified()?)
                    .is_ok_and(|age| age >= min_age);
            if data.is_file() && is_old {
                fs::remove_file(entry.path())?;
            }
            Ok(())
        });
        match removed {
            // Its writer has finished meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
    }
    Ok(())
}

fn is_unfinished(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(UNFINISHED_SUFFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_old_unfinished_files_of_a_kind_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let leftovers = [
            ".c-7.env.new",
            ".c-7.allocation.4711-0.new",
            ".p-slurm-7-0-abc.conf.new",
        ];
        let others = ["c-7.env", ".c-8.env.new", ".profile.new", ".c-7.env"];
        for name in leftovers.iter().chain(&others) {
            let file = fs::File::create(path.join(name)).unwrap();
            if *name != ".c-8.env.new" {
                file.set_modified(SystemTime::now() - 2 * MIN_AGE).unwrap();
            }
        }
        sweep(path, &[".env.", ".conf.", ".allocation."], MIN_AGE).unwrap();
        let mut left: Vec<String> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, [".c-7.env", ".c-8.env.new", ".profile.new", "c-7.env"]);
        sweep(path, &[".env."], Duration::ZERO).unwrap();
        assert!(!path.join(".c-8.env.new").exists());
        sweep(&path.join("absent"), &[], MIN_AGE).unwrap();
    }
}
