//! The files that `render`, `check` and `doctor` read.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Command;

use ipu_slurm::conf::SlurmConf;
use ipu_slurm::render::SlurmVersion;

use crate::conf_files::{self, SLURM_CONF, VIPU_CONF};
use crate::failure::Failure;
use crate::safe_file;

/// Directories of Slurm's daemons. `scontrol -V` would fail because of an error in `slurm.conf`.
const DAEMON_DIRECTORIES: [&str; 4] = [
    "/usr/sbin",
    "/usr/local/sbin",
    "/opt/slurm/sbin",
    "/usr/local/slurm/sbin",
];

/// The texts of the files.
pub(super) struct Files {
    pub(super) version: SlurmVersion,
    pub(super) slurm_conf: SlurmConf,
    pub(super) vipu_conf: String,
    pub(super) models: BTreeMap<String, String>,
    pub(super) gres_conf: String,
    pub(super) plugstack_conf: String,
}

impl Files {
    /// Reads the files of a directory.
    pub(super) fn read(directory: &Path, version: SlurmVersion) -> Result<Self, Failure> {
        let slurm_conf = conf_files::slurm_conf(directory)
            .map_err(|error| unreadable(&directory.join(SLURM_CONF), &error))?;
        // A file that nodes name is that of a model, even if it has mistakes.
        let lines = slurm_conf.lines("NodeName");
        let resources = lines.iter().filter_map(|line| line.get("Gres"));
        let resources = resources.flat_map(|gres| gres.value().split(','));
        let models = resources.filter_map(|gres| gres.strip_prefix("vipu:")?.split(':').next());
        let named: Vec<String> = models.map(str::to_owned).collect();
        // A hook skips it, but an administrator should know it.
        if let Some(path) = conf_files::special_file(directory)? {
            return Err(Failure(format!(
                "{} is not a regular file; remove it",
                path.display()
            )));
        }
        Ok(Self {
            version,
            vipu_conf: required(&directory.join(VIPU_CONF))?,
            models: conf_files::model_files(directory, &named)?,
            gres_conf: optional(&directory.join("gres.conf"))?,
            plugstack_conf: optional(&directory.join("plugstack.conf"))?,
            slurm_conf,
        })
    }
}

/// Returns the version that a daemon of this host prints.
pub(super) fn installed_version() -> Result<SlurmVersion, Failure> {
    let programs = DAEMON_DIRECTORIES
        .iter()
        .flat_map(|directory| ["slurmctld", "slurmd"].map(|name| Path::new(directory).join(name)));
    let Some(program) = programs.into_iter().find(|program| program.exists()) else {
        return Err(Failure(
            "cannot find slurmctld or slurmd: use --slurm-version 24.11, for example".to_owned(),
        ));
    };
    let output = Command::new(&program).arg("-V").output();
    let output = output.map_err(|error| Failure(format!("cannot run {}: {error}", program.display())))?;
    Ok(String::from_utf8_lossy(&output.stdout).parse()?)
}

fn required(path: &Path) -> Result<String, Failure> {
    safe_file::read_text(path).map_err(|error| unreadable(path, &error))
}

/// Returns the text of a file; empty if there is none.
fn optional(path: &Path) -> Result<String, Failure> {
    match safe_file::read_text(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(unreadable(path, &error)),
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    let path = path.display();
    Failure(match error.kind() {
        io::ErrorKind::NotFound => format!("{path} is absent: create it, or use --directory"),
        _ => format!("cannot read {path}: {error}"),
    })
}
