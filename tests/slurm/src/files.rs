//! The directories and files of a bed.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use crate::accounting;
use crate::error::BedError;
use crate::options::{BedOptions, FileContent};
use crate::slurm_conf::{NODES, render, render_cgroup};
use crate::support::{bed_command, slurm_version};

/// Writes the directories and files of a bed.
pub(crate) fn write_files(directory: &Path, options: &BedOptions) -> Result<(), BedError> {
    let write_error =
        |path: &Path, error: std::io::Error| BedError::step(format!("write {}", path.display()), error);
    for (name, mode) in [
        ("", 0o755),
        ("etc", 0o755),
        ("files", 0o755),
        ("hooks", 0o755),
        ("log", 0o777),
        ("pids", 0o755),
        ("private", 0o700),
        ("records", 0o777),
        ("spool", 0o755),
        ("state", 0o700),
        ("work", 0o777),
    ] {
        let path = directory.join(name);
        fs::create_dir_all(&path).map_err(|error| write_error(&path, error))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))
            .map_err(|error| write_error(&path, error))?;
    }
    for node in NODES {
        let path = directory.join("spool").join(node);
        fs::create_dir_all(&path).map_err(|error| write_error(&path, error))?;
    }
    let (user, group) = slurm_user()?;
    let state = directory.join("state");
    chown(&state, Some(user), Some(group)).map_err(|error| write_error(&state, error))?;

    let version = slurm_version()?;
    let text = |name: &str, text: String| (name.to_owned(), FileContent::Text(text));
    let mut files = vec![
        text("etc/slurm.conf", render(options)),
        text("etc/cgroup.conf", render_cgroup(version).to_owned()),
        text("etc/gres.conf", String::new()),
        text("etc/plugstack.conf", String::new()),
        // The key authenticates inside this bed only, and no other process reaches its network.
        text("private/munge.key", format!("{:0>1024}", std::process::id())),
    ];
    if options.has_accounting {
        files.push(text("etc/slurmdbd.conf", accounting::render()));
    }
    files.extend(options.files.iter().cloned());
    for (name, content) in files {
        let path = directory.join(&name);
        let written = match content {
            FileContent::Text(text) => fs::write(&path, text),
            FileContent::CopyOf(source) => fs::copy(source, &path).map(|_| ()),
        };
        written.map_err(|error| write_error(&path, error))?;
        if name == "etc/slurmdbd.conf" {
            chown(&path, Some(user), Some(group)).map_err(|error| write_error(&path, error))?;
        }
        let mode = if name.starts_with("hooks/") {
            0o755
        } else if name.starts_with("private/") || name == "etc/slurmdbd.conf" {
            0o600
        } else {
            0o644
        };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))
            .map_err(|error| write_error(&path, error))?;
    }
    Ok(())
}

/// Returns the ids of the user `slurm`, which the packages create.
fn slurm_user() -> Result<(u32, u32), BedError> {
    let id = |option: &str| {
        let output = bed_command("id").args([option, "slurm"]).output().ok()?;
        String::from_utf8_lossy(&output.stdout).trim().parse().ok()
    };
    id("-u")
        .zip(id("-g"))
        .ok_or_else(|| BedError::step("find the user slurm", "id printed no number"))
}
