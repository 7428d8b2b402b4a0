//! The files of a run in IpuofDir: the variables of its tasks, and the IPUoF configuration of its partition.
//!
//! PrologSlurmctld takes over the file of an earlier hook with the same job id first, so that a task finds
//! that of its own run. It removes the variables, and writes its own once the partition is active. Slurm
//! 22.05 starts a job whose hook was killed: a file without variables makes its tasks fail.
//!
//! A file names the process of its hook. A hook that outlived its slurmctld writes nothing over the file of a
//! later one, whose run may have the same job id.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use ipu_core::{NameError, PartitionId};
use ipu_proxy_client::IpuofConfigDocument;
use ipu_slurm::RunStart;

use crate::failure::Failure;
use crate::safe_file::{self, unfinished_path};

/// The beginning of the first line, with the version of the format.
const HEADER: &str = "# ipu-slurm 1";
/// The beginning of every variable.
const PREFIX: &str = "IPUOF_";

/// The progress of the hook that wrote a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileState {
    /// An earlier start of the run may have the partition that the file names.
    Undecided,
    /// The partition was never handed to a task, and the hook has not got it yet.
    Pending,
    /// The partition is active, and tasks may use it.
    Active,
}

impl FileState {
    const ALL: [Self; 3] = [Self::Undecided, Self::Pending, Self::Active];

    const fn name(self) -> &'static str {
        match self {
            Self::Undecided => "undecided",
            Self::Pending => "pending",
            Self::Active => "active",
        }
    }
}

/// The file with the variables of a run's tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunFile {
    /// The start of the run.
    pub(crate) start: RunStart,
    /// The progress of the hook.
    pub(crate) state: FileState,
    /// The highest start of the run whose partition a task may have used, according to earlier files.
    pub(crate) used: Option<u32>,
    /// The starts of earlier runs of the job id, by earlier files. After the loss of the ledger, nothing
    /// else tells whose a quarantined partition is.
    pub(crate) left: Vec<RunStart>,
    /// The process of the hook, with its start.
    pub(crate) hook: String,
    /// The id of its partition.
    pub(crate) partition: PartitionId,
    /// The number of IPUs; none in a file of an earlier version of this program.
    pub(crate) ipus: Option<u32>,
    /// The number of graph compilation domains.
    pub(crate) gcds: u32,
    /// The variables that select the partition.
    pub(crate) variables: BTreeMap<String, String>,
}

impl RunFile {
    /// Sets the start, with the id of its partition.
    ///
    /// # Errors
    ///
    /// If `cluster` is not a namespace.
    pub(crate) fn set_start(&mut self, cluster: &str, start: RunStart) -> Result<(), NameError> {
        self.partition = start.owner(cluster)?.job.partition_id(0);
        self.start = start;
        Ok(())
    }

    /// Returns the starts that hooks may have begun, as far as the file tells.
    pub(crate) fn known_starts(&self) -> impl Iterator<Item = RunStart> {
        let latest = self.used.unwrap_or(0).max(self.start.number);
        let key = &self.start.key;
        let own = (0..=latest).map(|number| RunStart {
            key: key.clone(),
            number,
        });
        own.chain(self.left.iter().cloned())
    }

    /// Returns whether the file names other starts than its own.
    pub(crate) fn knows_others(&self) -> bool {
        self.known_starts().any(|start| start != self.start)
    }

    /// Returns the highest start whose partition a task may have used.
    pub(crate) fn highest_used(&self) -> Option<u32> {
        let own = (self.state == FileState::Active).then_some(self.start.number);
        own.max(self.used)
    }

    /// Returns the file of the next hook with this job id, before that one knows anything. It starts no task.
    fn taken_over(&self, hook: &str) -> Self {
        Self {
            state: match self.state {
                FileState::Active => FileState::Undecided,
                unused => unused,
            },
            used: self.highest_used(),
            hook: hook.to_owned(),
            variables: BTreeMap::new(),
            ..self.clone()
        }
    }

    /// Returns the text of the file.
    pub(crate) fn render(&self) -> String {
        let Self {
            start,
            state,
            used,
            left,
            hook,
            partition,
            ipus,
            gcds,
            variables,
        } = self;
        let used = used.map_or_else(String::new, |used| format!(" used={used}"));
        let left: Vec<String> = left.iter().map(ToString::to_string).collect();
        let left = match left.as_slice() {
            [] => String::new(),
            left => format!(" left={}", left.join(",")),
        };
        let state = state.name();
        let ipus = ipus.map_or_else(String::new, |ipus| format!(" ipus={ipus}"));
        let mut text = format!(
            "{HEADER} run={start} partition={partition} gcds={gcds}{ipus}{used}{left} state={state} hook={hook}\n"
        );
        for (name, value) in variables {
            // A line feed would add a variable of the value's choice.
            if name.starts_with(PREFIX) && !value.contains(char::is_control) {
                text.push_str(&format!("{name}={value}\n"));
            }
        }
        text
    }

    /// Parses the text of a file; none if this program did not write it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
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
                name.starts_with(PREFIX)
                    .then(|| (name.to_owned(), value.to_owned()))
            })
            .collect();
        let variables = variables?;
        let state = match word("state") {
            Some(name) => FileState::ALL.into_iter().find(|state| state.name() == name)?,
            // A file of an earlier version of this program.
            None if variables.is_empty() => FileState::Undecided,
            None => FileState::Active,
        };
        Some(Self {
            start: RunStart::from_uid(word("run")?).ok()?,
            state,
            used: word("used").map(str::parse).transpose().ok()?,
            left: word("left")
                .map(|left| left.split(',').map(RunStart::from_uid).collect())
                .transpose()
                .ok()?
                .unwrap_or_default(),
            hook: word("hook").unwrap_or_default().to_owned(),
            partition: PartitionId::new(word("partition")?).ok()?,
            ipus: word("ipus").map(str::parse).transpose().ok()?,
            gcds: word("gcds")?.parse().ok()?,
            variables,
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

/// Returns the names of the IPUoF configuration files of a partition: one for each GCD.
pub(crate) fn conf_names(partition: &PartitionId, gcds: u32) -> Vec<String> {
    if gcds == 1 {
        return vec![format!("{partition}.conf")];
    }
    (0..gcds)
        .map(|gcd| format!("{partition}_gcd{gcd}.conf"))
        .collect()
}

/// Writes the IPUoF configuration of an active partition. The file of the job, which starts tasks, follows.
///
/// # Errors
///
/// If a file cannot be written. No task starts then.
pub(crate) fn write_configuration(
    directory: &Path,
    file: &RunFile,
    config: &IpuofConfigDocument,
) -> io::Result<()> {
    for (conf_name, gcd) in conf_names(&file.partition, file.gcds).iter().zip(&config.files) {
        let mut text = serde_json::to_string_pretty(&gcd.config)?;
        text.push('\n');
        write_atomically(directory, conf_name, &text)?;
    }
    Ok(())
}

/// Makes the file of a job that of the hook of `first`, before the hook asks anyone: one that is killed
/// leaves a file with which no task starts, and which tells as much as before. Returns the file of an
/// earlier hook; `first` is written if there is none.
///
/// # Errors
///
/// [`io::ErrorKind::AlreadyExists`] if another hook writes the file at the same time. If it cannot be
/// written.
pub(crate) fn take_over(directory: &Path, name: &str, first: &RunFile) -> io::Result<Option<RunFile>> {
    let earlier = match RunFile::read(&directory.join(name)) {
        Ok(None) => {
            safe_file::create(directory, name, &first.render())?;
            return Ok(None);
        }
        Ok(earlier) => earlier,
        // One that cannot be read is replaced.
        Err(_) => None,
    };
    let new = earlier
        .as_ref()
        .map_or_else(|| first.clone(), |earlier| earlier.taken_over(&first.hook));
    write_atomically(directory, name, &new.render())?;
    if let Some(earlier) = &earlier {
        for name in conf_names(&earlier.partition, earlier.gcds) {
            remove(&directory.join(name))?;
        }
    }
    Ok(earlier)
}

/// Replaces the file of a job, if it is of this hook still. Returns false otherwise.
///
/// # Errors
///
/// If the file cannot be read or written.
pub(crate) fn replace_own(directory: &Path, name: &str, file: &RunFile) -> io::Result<bool> {
    let is_own = is_own(directory, name, file)?;
    if is_own {
        write_atomically(directory, name, &file.render())?;
    }
    Ok(is_own)
}

/// Removes the file of a job, if it is of this hook still, with the configuration. Returns false otherwise.
///
/// # Errors
///
/// If a file cannot be read or removed.
pub(crate) fn remove_own(directory: &Path, name: &str, file: &RunFile) -> io::Result<bool> {
    let is_own = is_own(directory, name, file)?;
    if is_own {
        remove_start_files(directory, name, &file.partition, &|found| found.hook == file.hook)?;
    }
    Ok(is_own)
}

/// Removes the file of a job whose start has ended, if it is of this hook still. One that names other
/// starts stays for the agent, without variables. Returns false if it is of another hook.
///
/// # Errors
///
/// If a file cannot be read, written or removed.
pub(crate) fn end_own(directory: &Path, name: &str, file: &RunFile) -> io::Result<bool> {
    if file.knows_others() {
        return replace_own(directory, name, &file.taken_over(&file.hook));
    }
    remove_own(directory, name, file)
}

fn is_own(directory: &Path, name: &str, file: &RunFile) -> io::Result<bool> {
    is_of_hook(directory, name, &file.hook)
}

/// Returns whether the file of a job is of this hook, see [`hook_id`].
///
/// # Errors
///
/// If the file cannot be read.
pub(crate) fn is_of_hook(directory: &Path, name: &str, hook: &str) -> io::Result<bool> {
    let found = RunFile::read(&directory.join(name))?;
    Ok(found.is_some_and(|found| found.hook == hook))
}

/// Removes the file of a job, of whatever run, with the files of the partition that it names. Returns it.
pub(crate) fn remove_job(directory: &Path, name: &str) -> io::Result<Option<RunFile>> {
    let path = directory.join(name);
    // One that cannot be read is removed too.
    let file = RunFile::read(&path).unwrap_or_default();
    if let Some(file) = &file {
        for name in conf_names(&file.partition, file.gcds) {
            remove(&directory.join(name))?;
        }
    }
    remove(&path)?;
    Ok(file)
}

/// Removes the files of a start and its partition. The file of the job stays if the job id has another run or
/// start by now. A hook that was killed may have left the configuration alone.
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
    remove_start_files(directory, name, partition, &|file| file.start == *start)
        .map_err(|error| Failure(format!("cannot remove {}/{name}: {error}", directory.display())))
}

fn remove_start_files(
    directory: &Path,
    name: &str,
    partition: &PartitionId,
    is_own: &dyn Fn(&RunFile) -> bool,
) -> io::Result<()> {
    // First the file that starts tasks.
    for path in [directory.join(name), unfinished_path(directory, name)] {
        match RunFile::read(&path) {
            Ok(Some(file)) if is_own(&file) => remove_moved(&path, is_own)?,
            Err(error) if path.ends_with(name) => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        let plain = name.strip_prefix('.').unwrap_or(&name);
        let rest = plain.strip_prefix(partition.as_str());
        if rest.is_some_and(|rest| rest.starts_with(".conf") || rest.starts_with("_gcd")) {
            remove(&directory.join(&*name))?;
        }
    }
    Ok(())
}

/// Removes a file. A later hook may have replaced it since it was read, so it is moved to a name of this
/// process first. The file of another hook then comes back, unless there is a newer one.
fn remove_moved(path: &Path, is_own: &dyn Fn(&RunFile) -> bool) -> io::Result<()> {
    let Some((directory, name)) = path.parent().zip(path.file_name()) else {
        return Ok(());
    };
    let moved = directory.join(format!(".{}.{}.old", name.to_string_lossy(), std::process::id()));
    match fs::rename(path, &moved) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        renamed => renamed?,
    }
    let found = RunFile::read(&moved).ok().flatten();
    if !found.is_some_and(|file| is_own(&file)) {
        match fs::hard_link(&moved, path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    safe_file::remove_if_exists(&moved)
}

/// Removes a file and the unfinished one of an interrupted write; neither needs to exist.
fn remove(path: &Path) -> io::Result<()> {
    safe_file::remove_if_exists(path)?;
    let Some((directory, name)) = path.parent().zip(path.file_name()) else {
        return Ok(());
    };
    safe_file::remove_if_exists(&unfinished_path(directory, &name.to_string_lossy()))
}

fn write_atomically(directory: &Path, name: &str, text: &str) -> io::Result<()> {
    safe_file::replace(directory, name, text, true)
}

#[cfg(test)]
mod tests;
