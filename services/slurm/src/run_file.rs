//! The files of a run in IpuofDir: the variables of its tasks, and the IPUoF configuration of its partition.
//!
//! The file of a job is a copy of the proxy's answer, which tasks read without a network. PrologSlurmctld
//! first takes it over: it replaces the file of an earlier hook with the same job id by a *marker* without
//! variables. It writes its own once the partition is active. Slurm 22.05 starts a job whose hook was killed:
//! a marker makes its tasks fail.
//!
//! A file names the process of its hook. A hook that outlived its slurmctld writes nothing over the file of a
//! later one, whose run may have the same job id.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use ipu_core::PartitionId;
use ipu_proxy_client::IpuofConfigDocument;
use ipu_slurm::{RunKey, RunStart};

use crate::failure::Failure;
use crate::safe_file::{self, unfinished_path};

/// The beginning of the first line, with the version of the format.
const HEADER: &str = "# ipu-slurm 1";
/// The beginning of every variable.
const VARIABLE_PREFIX: &str = "IPUOF_";

/// The file of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunFile {
    /// The process of the hook, with its start.
    pub(crate) hook: String,
    /// The latest partition that tasks may have used; none if none have since the file was created.
    pub(crate) grant: Option<Grant>,
}

/// The partition of a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) start: RunStart,
    pub(crate) partition: PartitionId,
    /// The number of IPUs.
    pub(crate) ipus: u32,
    /// The number of graph compilation domains.
    pub(crate) gcds: u32,
    /// The variables that select the partition; empty in a marker, which starts no task.
    pub(crate) variables: BTreeMap<String, String>,
}

impl RunFile {
    /// Returns the partition of the tasks that start now; none in a marker.
    pub(crate) fn active(&self) -> Option<&Grant> {
        self.grant.as_ref().filter(|grant| !grant.variables.is_empty())
    }

    /// Returns the start whose partition tasks of a run may have used last, as far as the file records it.
    pub(crate) fn used(&self, key: &RunKey) -> Option<&RunStart> {
        let start = self.grant.as_ref().map(|grant| &grant.start);
        start.filter(|start| start.key == *key)
    }

    /// Returns whether the file proves that no task has used the partition of a start: a hook was killed
    /// before it wrote its file.
    pub(crate) fn proves_unused(&self, start: &RunStart) -> bool {
        let is_earlier = |grant: &Grant| grant.start.is_followed_by(start);
        self.active().is_none() && self.grant.as_ref().is_none_or(is_earlier)
    }

    /// Returns the starts of the run that hooks may have begun, as far as the file records them. After the
    /// loss of the ledger, only this file names the owner of a quarantined partition.
    pub(crate) fn known_starts(&self) -> impl Iterator<Item = RunStart> {
        self.grant.iter().flat_map(|grant| {
            (0..=grant.start.number).map(|number| RunStart {
                key: grant.start.key.clone(),
                number,
            })
        })
    }

    /// Returns the marker that a hook leaves in the place of the file.
    fn marker(&self, hook: &str) -> Self {
        let mut grant = self.grant.clone();
        if let Some(grant) = &mut grant {
            grant.variables.clear();
        }
        Self {
            hook: hook.to_owned(),
            grant,
        }
    }

    /// Returns the text of the file.
    fn render(&self) -> String {
        let Self { hook, grant } = self;
        let mut text = format!("{HEADER} hook={hook}");
        let Some(grant) = grant else {
            return text + "\n";
        };
        let Grant {
            start,
            partition,
            ipus,
            gcds,
            variables,
        } = grant;
        text.push_str(&format!(
            " run={start} partition={partition} ipus={ipus} gcds={gcds}\n"
        ));
        for (name, value) in variables {
            // A line feed would add a variable of the value's choice.
            if name.starts_with(VARIABLE_PREFIX) && !value.contains(char::is_control) {
                text.push_str(&format!("{name}={value}\n"));
            }
        }
        text
    }

    /// Parses the text of a file; none if this program did not write it.
    fn parse(text: &str) -> Option<Self> {
        let (header, rest) = text.split_once('\n')?;
        let words = header.strip_prefix(HEADER)?;
        let word = |key: &str| {
            words
                .split(' ')
                .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
        };
        let variables: Option<BTreeMap<String, String>> = rest
            .lines()
            .map(|line| {
                let (name, value) = line.split_once('=')?;
                name.starts_with(VARIABLE_PREFIX)
                    .then(|| (name.to_owned(), value.to_owned()))
            })
            .collect();
        let variables = variables?;
        let grant = match word("run") {
            None => variables.is_empty().then_some(None)?,
            Some(run) => Some(Grant {
                start: RunStart::from_uid(run).ok()?,
                partition: PartitionId::new(word("partition")?).ok()?,
                ipus: word("ipus")?.parse().ok()?,
                gcds: word("gcds")?.parse().ok()?,
                variables,
            }),
        };
        Some(Self {
            hook: word("hook")?.to_owned(),
            grant,
        })
    }

    /// Reads a file; none if there is none.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or this program did not write it.
    pub(crate) fn read(path: &Path) -> io::Result<Option<Self>> {
        let Some(text) = safe_file::read_if_exists(path)? else {
            return Ok(None);
        };
        let parsed = Self::parse(&text);
        parsed.map(Some).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "the file is not one of ipu-slurm: remove it",
            )
        })
    }
}

/// Returns whether a hook has written a file of this name, whatever is in it.
pub(crate) fn exists(directory: &Path, name: &str) -> bool {
    fs::symlink_metadata(directory.join(name)).is_ok()
}

/// Makes the file of a job a marker of `hook`, whatever is in its place. Returns the marker, and the earlier
/// file, if this program wrote it.
///
/// # Errors
///
/// If it cannot be written.
pub(crate) fn take_over(directory: &Path, name: &str, hook: &str) -> io::Result<(RunFile, Option<RunFile>)> {
    let earlier = RunFile::read(&directory.join(name)).unwrap_or_default();
    let marker = match &earlier {
        Some(earlier) => earlier.marker(hook),
        None => RunFile {
            hook: hook.to_owned(),
            grant: None,
        },
    };
    safe_file::replace(directory, name, &marker.render(), true)?;
    remove_configuration(directory, marker.grant.as_ref())?;
    Ok((marker, earlier))
}

/// Writes the IPUoF configuration of an active partition, one file for each GCD, and then the file of the
/// job, which starts tasks, unless another hook has taken that over. Returns false otherwise.
///
/// # Errors
///
/// If a file cannot be read or written. No task starts then.
pub(crate) fn write(
    directory: &Path,
    name: &str,
    file: &RunFile,
    config: &IpuofConfigDocument,
) -> io::Result<bool> {
    if let Some(grant) = &file.grant {
        for (conf_name, gcd) in conf_names(grant).iter().zip(&config.files) {
            let mut text = serde_json::to_string_pretty(&gcd.config)?;
            text.push('\n');
            safe_file::replace(directory, conf_name, &text, true)?;
        }
    }
    let is_own = replace_own(directory, name, file)?;
    if !is_own && !exists(directory, name) {
        // The job has ended meanwhile.
        remove_configuration(directory, file.grant.as_ref())?;
    }
    Ok(is_own)
}

/// Replaces the file of a job, unless another hook has taken it over. Returns false then.
///
/// # Errors
///
/// If the file cannot be read or written.
pub(crate) fn replace_own(directory: &Path, name: &str, file: &RunFile) -> io::Result<bool> {
    let is_own = is_of_hook(directory, name, &file.hook)?;
    if is_own {
        safe_file::replace(directory, name, &file.render(), true)?;
    }
    Ok(is_own)
}

/// Removes the file of a job whose start has ended, with the configuration, unless another hook has taken it
/// over. Returns false then.
///
/// A file that names another start stays for the agent, as a marker.
///
/// # Errors
///
/// If a file cannot be read, written or removed.
pub(crate) fn end(directory: &Path, name: &str, file: &RunFile) -> io::Result<bool> {
    match &file.grant {
        Some(grant) if grant.start.number > 0 && !grant.variables.is_empty() => {
            let is_own = replace_own(directory, name, &file.marker(&file.hook))?;
            if is_own {
                remove_configuration(directory, Some(grant))?;
            }
            Ok(is_own)
        }
        Some(grant) if grant.variables.is_empty() => is_of_hook(directory, name, &file.hook),
        _ => remove_own(directory, name, file),
    }
}

/// Removes the file of a job with the configuration, unless another hook has taken it over. Returns false
/// then.
///
/// # Errors
///
/// If a file cannot be read or removed.
pub(crate) fn remove_own(directory: &Path, name: &str, file: &RunFile) -> io::Result<bool> {
    let is_own = is_of_hook(directory, name, &file.hook)?;
    if is_own {
        remove(&directory.join(name))?;
        remove_configuration(directory, file.grant.as_ref())?;
    }
    Ok(is_own)
}

/// Returns whether the file of a job is of this hook, see [`RunFile::hook`].
///
/// # Errors
///
/// If the file cannot be read.
pub(crate) fn is_of_hook(directory: &Path, name: &str, hook: &str) -> io::Result<bool> {
    let found = RunFile::read(&directory.join(name))?;
    Ok(found.is_some_and(|found| found.hook == hook))
}

/// Removes the file of a job, of whatever run, with the configuration of the partition that it names.
pub(crate) fn remove_job(directory: &Path, name: &str) -> io::Result<()> {
    let path = directory.join(name);
    // An unreadable file is removed too.
    let file = RunFile::read(&path).unwrap_or_default();
    remove(&path)?;
    remove_configuration(directory, file.and_then(|file| file.grant).as_ref())
}

/// Removes the files of a start and its partition. The file of the job stays if it is a marker, or of another
/// start. A hook that was killed may have left the configuration alone.
///
/// # Errors
///
/// The first file that cannot be removed, with its path.
pub(crate) fn remove_start(
    directory: &Path,
    name: &str,
    start: &RunStart,
    partition: &PartitionId,
) -> Result<(), Failure> {
    let removed = || -> io::Result<()> {
        let path = directory.join(name);
        let file = RunFile::read(&path)?;
        let active = file.as_ref().and_then(RunFile::active);
        if active.is_some_and(|grant| grant.start == *start) {
            remove(&path)?;
        }
        for entry in fs::read_dir(directory)? {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            let plain = name.strip_prefix('.').unwrap_or(&name);
            let rest = plain.strip_prefix(partition.as_str());
            if rest.is_some_and(|rest| rest.starts_with(".conf") || rest.starts_with("_gcd")) {
                remove(&directory.join(&*name))?;
            }
        }
        Ok(())
    };
    match removed() {
        // A model that no job has used.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => {
            removed.map_err(|error| Failure(format!("cannot remove {}/{name}: {error}", directory.display())))
        }
    }
}

/// Returns the names of the IPUoF configuration files of a partition: one for each GCD.
fn conf_names(grant: &Grant) -> Vec<String> {
    let Grant { partition, gcds, .. } = grant;
    if *gcds == 1 {
        return vec![format!("{partition}.conf")];
    }
    (0..*gcds)
        .map(|gcd| format!("{partition}_gcd{gcd}.conf"))
        .collect()
}

fn remove_configuration(directory: &Path, grant: Option<&Grant>) -> io::Result<()> {
    for name in grant.map(conf_names).unwrap_or_default() {
        remove(&directory.join(name))?;
    }
    Ok(())
}

/// Removes a file and the unfinished one of an interrupted write; neither needs to exist.
fn remove(path: &Path) -> io::Result<()> {
    safe_file::remove_if_exists(path)?;
    let Some((directory, name)) = path.parent().zip(path.file_name()) else {
        return Ok(());
    };
    safe_file::remove_if_exists(&unfinished_path(directory, &name.to_string_lossy()))
}

#[cfg(test)]
mod tests;
