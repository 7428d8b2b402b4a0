//! The files that `render`, `check` and `doctor` read.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use ipu_slurm::render::SlurmVersion;

use crate::conf_files::{self, VIPU_CONF};
use crate::failure::Failure;
use crate::safe_file;

/// The file that seed 004 §8.5.4 includes in `slurm.conf`.
const PLUGIN_CONF: &str = "v-ipu-plugin.conf";
/// Slurm's own file.
pub(super) const SLURM_CONF: &str = "slurm.conf";
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
    pub(super) slurm_conf: String,
    pub(super) included: Option<(String, String)>,
    pub(super) vipu_conf: String,
    pub(super) models: BTreeMap<String, String>,
    pub(super) gres_conf: String,
    pub(super) plugstack_conf: String,
}

impl Files {
    /// Reads the files of a directory.
    pub(super) fn read(
        directory: &Path,
        include: Option<&str>,
        version: SlurmVersion,
    ) -> Result<Self, Failure> {
        let slurm_conf = required(&directory.join(SLURM_CONF))?;
        let included = match include {
            Some(name) => Some((name.to_owned(), required(&directory.join(name))?)),
            None => optional(&directory.join(PLUGIN_CONF))?.map(|text| (PLUGIN_CONF.to_owned(), text)),
        };
        // A file that nodes name is that of a model, even if it has mistakes.
        let mut named = Vec::new();
        for text in [Some(&slurm_conf), included.as_ref().map(|(_, text)| text)]
            .into_iter()
            .flatten()
        {
            let models = text
                .split("vipu:")
                .skip(1)
                .map(|rest| rest.split([':', ',']).next());
            named.extend(models.flatten().map(str::to_owned));
        }
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
            gres_conf: optional(&directory.join("gres.conf"))?.unwrap_or_default(),
            plugstack_conf: optional(&directory.join("plugstack.conf"))?.unwrap_or_default(),
            slurm_conf,
            included,
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
    optional(path)?.ok_or_else(|| {
        Failure(format!(
            "{} is absent: create it, or use --directory",
            path.display()
        ))
    })
}

fn optional(path: &Path) -> Result<Option<String>, Failure> {
    safe_file::read_if_exists(path)
        .map_err(|error| Failure(format!("cannot read {}: {error}", path.display())))
}
