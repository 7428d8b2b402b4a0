//! The configuration: `vipu.conf` and a file for each model, next to `slurm.conf`.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use ipu_core::job::ErrorList;
use ipu_slurm::conf::{ClusterConf, ConfError, ConfFiles, SlurmConf};

use crate::safe_file;

/// The directory without `SLURM_CONF`.
const DEFAULT_DIRECTORY: &str = "/etc/slurm";
/// Slurm's own file.
pub(crate) const SLURM_CONF: &str = "slurm.conf";
/// Configuration of the V-IPU controllers.
pub(crate) const VIPU_CONF: &str = "vipu.conf";
/// The directory of `slurm.conf` on a node without one of its own.
const CONFIGLESS_DIRECTORY: &str = "/run/slurm/conf";
/// The key that every file of a model has.
const MODEL_KEY: &str = "ApiHost";
/// Files of Slurm itself, by name without `.conf`. None of them is the file of a model.
pub(crate) const SLURM_FILES: [&str; 12] = [
    "acct_gather",
    "burst_buffer",
    "cgroup",
    "gres",
    "helpers",
    "job_container",
    "oci",
    "plugstack",
    "slurm",
    "slurmdbd",
    "topology",
    "vipu",
];

/// The reason that there is no configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// There is no `vipu.conf`.
    #[error("{} is absent: create it, see the chapter on Slurm", .0.display())]
    Absent(PathBuf),
    /// A file or the directory cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The files have mistakes.
    #[error("{}", first_of(.0))]
    Invalid(ErrorList<ConfError>),
}

/// Returns the first error of a file, and the number of the others.
pub(crate) fn first_of(errors: &[ConfError]) -> String {
    match errors {
        [] => "the configuration has errors".to_owned(),
        [only] => only.to_string(),
        [first, rest @ ..] => format!("{first} (and {} more errors)", rest.len()),
    }
}

/// Returns the directory of `SLURM_CONF`, or the default one.
pub(crate) fn directory() -> PathBuf {
    let slurm_conf = env::var_os("SLURM_CONF").map(PathBuf::from);
    match slurm_conf.as_deref().map(Path::parent) {
        Some(Some(directory)) if directory.is_absolute() => directory.to_owned(),
        _ => PathBuf::from(DEFAULT_DIRECTORY),
    }
}

/// Returns the directory for a task: that of `SLURM_CONF`, which a user can set, only if it has `vipu.conf`
/// or the usual directories have none.
pub(crate) fn task_directory() -> PathBuf {
    let directory = directory();
    let usual = [DEFAULT_DIRECTORY, CONFIGLESS_DIRECTORY].map(PathBuf::from);
    let mut candidates = std::iter::once(&directory).chain(&usual);
    let found = candidates.find(|directory| directory.join(VIPU_CONF).exists());
    found.unwrap_or(&directory).clone()
}

/// Reads `slurm.conf` and the files that it includes.
///
/// # Errors
///
/// If `slurm.conf` itself cannot be read.
pub(crate) fn slurm_conf(directory: &Path) -> io::Result<SlurmConf> {
    let text = safe_file::read_text(&directory.join(SLURM_CONF))?;
    let source = |path: &str| included_files(directory, path);
    Ok(SlurmConf::read(SLURM_CONF, &text, &source))
}

/// Returns the files of an `Include` by name and text. The names of files in the directory are relative.
fn included_files(directory: &Path, path: &str) -> Result<Vec<(String, String)>, String> {
    let shown = |error: io::Error| error.to_string();
    // The directory may be a copy of Slurm's.
    let copy = path.strip_prefix(&format!("{DEFAULT_DIRECTORY}/"));
    let copy = copy.map(|path| directory.join(path)).filter(|path| path.exists());
    let path = copy.unwrap_or_else(|| directory.join(path));
    let mut files = Vec::new();
    for path in expanded(path).map_err(shown)? {
        let text = safe_file::read_text(&path).map_err(shown)?;
        let is_parent = |part| part == Component::ParentDir;
        let inside = path.strip_prefix(directory).ok();
        let inside = inside.filter(|path| !path.components().any(is_parent));
        let name = inside.unwrap_or(&path).to_string_lossy().into_owned();
        files.push((name, text));
    }
    Ok(files)
}

/// Returns the files of a path, which may have `*` in its last part, in the order of their names.
fn expanded(path: PathBuf) -> io::Result<Vec<PathBuf>> {
    let pattern = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let (Some(directory), Some((first, rest))) = (path.parent(), pattern.split_once('*')) else {
        return Ok(vec![path]);
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let rest_of_name = name.to_str().and_then(|name| name.strip_prefix(first));
        if rest_of_name.is_some_and(|name| matches_after_star(name, rest)) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// Returns whether a suffix of `text` matches `pattern`, in which `*` stands for any characters.
fn matches_after_star(text: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => text.ends_with(pattern),
        Some((first, rest)) => text
            .match_indices(first)
            .any(|(at, _)| matches_after_star(&text[at + first.len()..], rest)),
    }
}

/// Returns the name of the cluster in `slurm.conf` of a directory, or in the file that slurmd has got from
/// slurmctld.
pub(crate) fn cluster_name(directory: &Path) -> Option<String> {
    let directories = [directory, Path::new(CONFIGLESS_DIRECTORY)];
    directories
        .into_iter()
        .find_map(|directory| slurm_conf(directory).ok()?.cluster_name())
}

/// Reads the configuration. A file is that of a model if it has the key `ApiHost`, or if its name is one of
/// `licenses`: the license of a job then never goes unnoticed because of an error in the file.
pub(crate) fn load(directory: &Path, licenses: &[String]) -> Result<ConfFiles, LoadError> {
    let cluster = read_cluster(directory)?;
    parse(&cluster, &model_files(directory, licenses)?)
}

/// Returns the names of the licenses of a hook's job.
pub(crate) fn license_names() -> Vec<String> {
    let licenses = env::var("SLURM_JOB_LICENSES").unwrap_or_default();
    let separators = [',', ';', '|', ':'];
    licenses.split(separators).map(str::to_owned).collect()
}

/// Reads the configuration for a job with these licenses. If one of them is that of a model, mistakes in the
/// files of other models do not matter.
pub(crate) fn load_for_job(directory: &Path, licenses: &[String]) -> Result<ConfFiles, LoadError> {
    load(directory, licenses).or_else(|error| match load_valid(directory, licenses) {
        Ok(conf) if licenses.iter().any(|license| conf.model(license).is_some()) => Ok(conf),
        Ok(_) | Err(_) => Err(error),
    })
}

/// Reads the configuration without the models whose files have mistakes, but with those of `licenses`.
pub(crate) fn load_valid(directory: &Path, licenses: &[String]) -> Result<ConfFiles, LoadError> {
    let cluster = read_cluster(directory)?;
    let mut models = model_files(directory, licenses)?;
    models.retain(|name, text| {
        licenses.contains(name) || ConfFiles::parse((VIPU_CONF, &cluster), &[(name, text)]).is_ok()
    });
    parse(&cluster, &models)
}

fn parse(cluster: &str, models: &BTreeMap<String, String>) -> Result<ConfFiles, LoadError> {
    let models: Vec<(&str, &str)> = models
        .iter()
        .map(|(name, text)| (name.as_str(), text.as_str()))
        .collect();
    ConfFiles::parse((VIPU_CONF, cluster), &models).map_err(LoadError::Invalid)
}

/// Reads `vipu.conf` alone.
pub(crate) fn load_cluster(directory: &Path) -> Result<ClusterConf, LoadError> {
    ClusterConf::parse(VIPU_CONF, &read_cluster(directory)?).map_err(LoadError::Invalid)
}

fn read_cluster(directory: &Path) -> Result<String, LoadError> {
    let path = directory.join(VIPU_CONF);
    match safe_file::read_text(&path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(LoadError::Absent(path)),
        Err(source) => Err(LoadError::Unreadable { path, source }),
    }
}

/// Returns the texts of the files of models by name.
pub(crate) fn model_files(
    directory: &Path,
    licenses: &[String],
) -> Result<BTreeMap<String, String>, LoadError> {
    let unreadable = |path: &Path, source| LoadError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).map_err(|error| unreadable(directory, error))? {
        let path = entry.map_err(|error| unreadable(directory, error))?.path();
        let name = path
            .file_stem()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let is_conf = path.extension().is_some_and(|extension| extension == "conf");
        if !is_conf || SLURM_FILES.contains(&name) {
            continue;
        }
        let is_license = licenses.iter().any(|license| license == name);
        match safe_file::read_text(&path) {
            Ok(text) if is_license || has_model_key(&text) => {
                found.insert(name.to_owned(), text);
            }
            Err(source) if is_license => return Err(unreadable(&path, source)),
            // A file of another program.
            Ok(_) | Err(_) => {}
        }
    }
    Ok(found)
}

/// Returns the first FIFO, socket or device in the place of a file.
pub(crate) fn special_file(directory: &Path) -> io::Result<Option<PathBuf>> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "conf") && safe_file::is_special(&path) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

pub(crate) fn has_model_key(text: &str) -> bool {
    SlurmConf::parse("", text).get(MODEL_KEY).is_some()
}

/// Returns the directories of the models' files, each once.
pub(crate) fn ipuof_directories(conf: &ConfFiles) -> Vec<PathBuf> {
    let mut directories: Vec<PathBuf> = conf
        .models()
        .map(|(_, model)| PathBuf::from(model.ipuof_dir()))
        .collect();
    directories.sort();
    directories.dedup();
    directories
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: &str = "ApiHost=pod\nIpuofDir=/ipuof\n";

    fn directory_with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(directory.path().join(name), text).unwrap();
        }
        directory
    }

    #[test]
    fn files_with_a_controller_are_models_and_others_are_not() {
        let directory = directory_with(&[
            ("vipu.conf", "Proxy=http://localhost:8080\n"),
            ("slurm.conf", "ApiHost=never\n"),
            ("gres.conf", "\n"),
            ("munge.conf", "Key=x\n"),
            ("pod64.conf", MODEL),
        ]);
        let conf = load(directory.path(), &[]).unwrap();
        let names: Vec<&str> = conf.models().map(|(name, _)| name).collect();
        assert_eq!(names, ["pod64"]);
    }

    #[test]
    fn a_link_to_the_file_of_the_cluster_is_a_model() {
        let directory = directory_with(&[("vipu.conf", MODEL)]);
        std::os::unix::fs::symlink("vipu.conf", directory.path().join("pod64.conf")).unwrap();
        let conf = load(directory.path(), &[]).unwrap();
        assert_eq!(conf.model("pod64"), conf.model("vipu"));
    }

    #[test]
    fn the_file_of_a_license_must_be_that_of_a_model() {
        let directory = directory_with(&[("vipu.conf", MODEL), ("pod64.conf", "IpuofDir=/ipuof\n")]);
        assert!(load(directory.path(), &[]).unwrap().model("pod64").is_none());
        let error = load(directory.path(), &["pod64".to_owned()]).unwrap_err();
        assert!(
            error.to_string().starts_with("pod64.conf:1:1: ApiHost"),
            "{error}"
        );
    }

    #[test]
    fn a_mistake_in_the_file_of_a_model_concerns_its_jobs_only() {
        let directory = directory_with(&[
            ("vipu.conf", MODEL),
            ("pod64.conf", MODEL),
            ("pod16.conf", "ApiHost=pod\nApiPort=80 90\nIpuofDir=/ipuof\n"),
        ]);
        let load = |licenses: &[&str]| {
            let licenses: Vec<String> = licenses.iter().map(|name| (*name).to_owned()).collect();
            load_for_job(directory.path(), &licenses).map_err(|error| error.to_string())
        };
        let conf = load(&["pod64", "matlab"]).unwrap();
        assert!(conf.model("pod64").is_some() && conf.model("pod16").is_none());
        for licenses in [&["pod16"][..], &["pod64", "pod16"], &["matlab"], &[]] {
            let error = load(licenses).unwrap_err();
            assert!(
                error.starts_with("pod16.conf:2:11: ApiPort"),
                "{licenses:?} {error}"
            );
        }
    }

    #[test]
    fn a_fifo_next_to_the_files_is_skipped_and_found() {
        let directory = directory_with(&[("vipu.conf", MODEL)]);
        let fifo = directory.path().join("zz.conf");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        assert!(made.unwrap().success());
        assert!(load(directory.path(), &[]).is_ok());
        let error = load(directory.path(), &["zz".to_owned()]).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("zz.conf: is not a regular file; remove it")
        );
        assert_eq!(special_file(directory.path()).unwrap(), Some(fifo));
    }

    #[test]
    fn the_name_of_the_cluster_may_be_in_an_included_file() {
        let directory = directory_with(&[
            ("slurm.conf", "Include slurm.conf\nInclude names.conf\n"),
            ("names.conf", "ClusterName=Testbed\n"),
        ]);
        assert_eq!(cluster_name(directory.path()).as_deref(), Some("testbed"));
    }

    #[test]
    fn the_last_name_of_the_cluster_wins() {
        let last = |text: &str| {
            let directory = directory_with(&[
                ("slurm.conf", text),
                ("names.conf", "ClusterName=c\nClusterName=d\n"),
            ]);
            cluster_name(directory.path())
        };
        assert_eq!(last("ClusterName=a\nClusterName=b\n").as_deref(), Some("b"));
        assert_eq!(last("Include names.conf\nClusterName=b\n").as_deref(), Some("b"));
        assert_eq!(last("ClusterName=b\nInclude names.conf\n").as_deref(), Some("d"));
    }

    #[test]
    fn an_absent_configuration_is_named() {
        let directory = directory_with(&[]);
        let error = load(directory.path(), &[]).unwrap_err().to_string();
        assert!(error.contains("vipu.conf is absent"), "{error}");
    }
}
