//! Requirements of a bed on this machine.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::geteuid;

use crate::error::BedError;
use crate::options::BedOptions;

/// Environment variable with the directory of a Debian tree, whose Slurm the beds run instead of this
/// machine's.
pub const TREE: &str = "IPU_TEST_SLURM_TREE";

/// Required Debian packages of Slurm with one program of each, on this machine or in the tree.
const SLURM_PACKAGES: [(&str, &str); 6] = [
    ("slurmctld", "slurmctld"),
    ("slurmd", "slurmd"),
    ("slurm-client", "srun"),
    ("munge", "munged"),
    ("util-linux", "setpriv"),
    ("curl", "curl"),
];

/// Packages for accounting, each with one of its programs.
const ACCOUNTING_PACKAGES: [(&str, &str); 3] = [
    ("slurmdbd", "slurmdbd"),
    ("mariadb-server-core", "mariadbd"),
    ("mariadb-client-core", "mariadb"),
];

/// Packages that this machine always needs, each with one of its programs.
const MACHINE_PACKAGES: [(&str, &str); 2] = [("util-linux", "unshare"), ("iproute2", "ip")];

/// Search path of all processes of a bed.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Checks that this machine can run a bed; the error has the reason.
pub(crate) fn check_support(options: &BedOptions) -> Result<(), BedError> {
    let unsupported = |reason: String| Err(BedError::Unsupported(reason));
    if !cfg!(target_os = "linux") || !geteuid().is_root() {
        return unsupported("it needs root on Linux".into());
    }
    let place = tree().map_or_else(String::new, |tree| format!(" in {}", tree.display()));
    let accounting: &[_] = if options.has_accounting {
        &ACCOUNTING_PACKAGES
    } else {
        &[]
    };
    for (package, program) in SLURM_PACKAGES.iter().chain(accounting) {
        if !is_installed(program) {
            return unsupported(format!(
                "{program} is missing: install the package {package}{place}"
            ));
        }
    }
    for (package, program) in MACHINE_PACKAGES {
        if find(Path::new("/"), program).is_none() {
            return unsupported(format!("{program} is missing: install the package {package}"));
        }
    }
    if !has_plugin("auth_munge.so") || !has_plugin("job_submit_lua.so") {
        return unsupported(format!("the package slurm-wlm-basic-plugins is missing{place}"));
    }
    let probe = Command::new("unshare")
        .args(["--net", "--mount", "--pid", "--fork", "--mount-proc", "true"])
        .output();
    match probe {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => unsupported(format!(
            "cannot create namespaces: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => unsupported(format!("cannot create namespaces: {error}")),
    }
}

/// Returns the tree whose Slurm the beds run; none for that of this machine.
pub(crate) fn tree() -> Option<&'static Path> {
    static TREE_DIRECTORY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let read = || {
        env::var_os(TREE)
            .filter(|text| !text.is_empty())
            .map(PathBuf::from)
    };
    TREE_DIRECTORY.get_or_init(read).as_deref()
}

/// Returns a command with the programs and users of the beds.
pub(crate) fn bed_command(program: &str) -> Command {
    let mut command = match tree() {
        Some(tree) => {
            let mut command = Command::new("chroot");
            command.arg(tree).arg(program);
            command
        }
        None => Command::new(program),
    };
    command.env("PATH", PATH);
    command
}

/// Returns the version of the Slurm of the beds as a number: 2205 for 22.05.8.
///
/// # Errors
///
/// If no Slurm is installed.
pub fn slurm_version() -> Result<u32, BedError> {
    static VERSION: OnceLock<Option<u32>> = OnceLock::new();
    let read = || {
        let output = bed_command("slurmctld").arg("-V").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut numbers = text.split_whitespace().last()?.split('.');
        let (year, month) = (numbers.next()?, numbers.next()?);
        Some(year.parse::<u32>().ok()? * 100 + month.parse::<u32>().ok()?)
    };
    VERSION
        .get_or_init(read)
        .ok_or_else(|| BedError::step("read the version of Slurm", "slurmctld -V printed none"))
}

/// Returns whether the search path of a bed has a program.
pub(crate) fn is_installed(program: &str) -> bool {
    find(tree().unwrap_or_else(|| Path::new("/")), program).is_some()
}

/// Returns the path of a program of a Debian. The target of a link is not followed: it may be absolute.
fn find(root: &Path, program: &str) -> Option<PathBuf> {
    let directories =
        env::split_paths(PATH).map(|directory| root.join(directory.strip_prefix("/").unwrap_or(&directory)));
    directories
        .map(|directory| directory.join(program))
        .find(|path| path.symlink_metadata().is_ok())
}

/// Returns whether a plugin of Slurm is installed, in Debian's directory of any architecture.
fn has_plugin(name: &str) -> bool {
    let directory = tree().unwrap_or_else(|| Path::new("/")).join("usr/lib");
    let architectures = fs::read_dir(directory).into_iter().flatten().flatten();
    architectures
        .flat_map(|entry| ["slurm-wlm", "slurm"].map(|directory| entry.path().join(directory).join(name)))
        .any(|path: PathBuf| Path::exists(&path))
}
