//! Commands of Slurm: `scontrol` and `squeue`.

use std::env;
use std::fs;
use std::io;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipu_slurm::{
    GresList, InputError, LicenseCounts, Reservation, RunKey, RunList, SQUEUE_ARGS, SQUEUE_GRES_ARGS,
    SQUEUE_JOB_ARGS, SlurmJob, UNKNOWN_JOB, parse_allocated_gres, parse_squeue_gres, parse_squeue_job,
};

use crate::process;

/// Directories of Slurm's commands. A hook has no `PATH`.
pub(crate) const DIRECTORIES: [&str; 4] = [
    "/usr/bin",
    "/usr/local/bin",
    "/opt/slurm/bin",
    "/usr/local/slurm/bin",
];
/// Maximum time of a command: Slurm's default timeout of a message is 10 s, and `scontrol` retries.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum number of lines of a failed command in an error.
const MAX_ERRORS: usize = 3;

/// The reason that a command of Slurm has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SlurmError {
    /// The command cannot be started.
    #[error("cannot run {command}: {source}")]
    Start {
        /// The command.
        command: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The command failed.
    #[error("{command} failed: {}", summary(message))]
    Failed {
        /// The command with its arguments.
        command: String,
        /// Its standard error and standard output.
        message: String,
    },
    /// The command took too long.
    #[error("{command} did not end within {} s", COMMAND_TIMEOUT.as_secs())]
    Timeout {
        /// The command with its arguments.
        command: String,
    },
    /// The output cannot be read.
    #[error("cannot read the output of {command}: {source}")]
    Output {
        /// The command with its arguments.
        command: String,
        /// The first error.
        source: InputError,
    },
}

/// Pending reasons of Slurm under which a job may be waiting for licenses. On a busy Slurm cluster, the
/// reason changes between these from one scheduler pass to the next.
const LICENSE_WAIT_REASONS: [&str; 4] = ["Licenses", "None", "Priority", "Resources"];

/// Returns whether a job that pends for this reason may wait for licenses.
pub(crate) fn may_wait_for_licenses(reason: &str) -> bool {
    LICENSE_WAIT_REASONS.contains(&reason)
}

/// A pending job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingJob {
    pub(crate) id: u32,
    /// Whether it has licenses, and may wait for them.
    pub(crate) may_wait: bool,
    /// The requested licenses as Slurm prints them; empty for none.
    pub(crate) licenses: String,
}

impl PendingJob {
    fn parse(line: &str) -> Option<Self> {
        let (id, rest) = line.split_once('|')?;
        let (reason, licenses) = rest.split_once('|')?;
        let licenses = match licenses.trim_end_matches('|') {
            "N/A" | "(null)" => "",
            licenses => licenses,
        };
        Some(Self {
            id: id.parse().ok()?,
            may_wait: may_wait_for_licenses(reason) && !licenses.is_empty(),
            licenses: licenses.to_owned(),
        })
    }
}

/// The commands of the installed Slurm.
#[derive(Clone, Debug)]
pub(crate) struct Slurm {
    directory: PathBuf,
    slurm_conf: Option<PathBuf>,
}

impl Slurm {
    /// Finds the commands. `conf_directory` has the configuration that they read.
    pub(crate) fn find(conf_directory: &Path) -> Self {
        let slurm_conf = conf_directory.join("slurm.conf");
        let path = env::var_os("PATH").unwrap_or_default();
        let mut directories = directory_of_slurmctld_commands()
            .into_iter()
            .chain(DIRECTORIES.map(PathBuf::from));
        let directory = directories
            .find(|directory| has_scontrol(directory))
            .or_else(|| env::split_paths(&path).find(|directory| has_scontrol(directory)));
        Self {
            directory: directory.unwrap_or_else(|| PathBuf::from(DIRECTORIES[0])),
            slurm_conf: slurm_conf.exists().then_some(slurm_conf),
        }
    }

    /// Returns the commands in a directory.
    #[cfg(test)]
    pub(crate) fn in_directory(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            slurm_conf: None,
        }
    }

    /// Returns a job; none if slurmctld does not know it.
    pub(crate) async fn job(&self, id: u32) -> Result<Option<SlurmJob>, SlurmError> {
        match self.squeue(&SQUEUE_JOB_ARGS, id, parse_squeue_job).await {
            Err(SlurmError::Failed { message, .. }) if message.contains(UNKNOWN_JOB) => Ok(None),
            job => job.map(Some),
        }
    }

    /// Returns the present run of a job id.
    pub(crate) async fn run_key(&self, id: u32) -> Result<RunKey, SlurmError> {
        let runs = self
            .squeue(&SQUEUE_ARGS, id, |text, _| RunList::parse(text))
            .await?;
        runs.key_of(id).ok_or_else(|| SlurmError::Failed {
            command: command_line("squeue", &SQUEUE_ARGS),
            message: UNKNOWN_JOB.to_owned(),
        })
    }

    /// Returns the resources that a job has on each of its nodes; those that it requested, if its texts make
    /// the record ambiguous.
    pub(crate) async fn gres(&self, id: u32) -> Result<GresList, SlurmError> {
        let arguments = ["-o", "-d", "show", "job", &id.to_string()];
        let text = self.run("scontrol", &arguments).await?;
        match parse_allocated_gres(&text, id) {
            Ok(gres) => Ok(gres),
            Err(_) => self.squeue(&SQUEUE_GRES_ARGS, id, parse_squeue_gres).await,
        }
    }

    /// Returns an answer about a job without a text of a user.
    async fn squeue<T>(
        &self,
        format: &[&str],
        id: u32,
        parse: impl Fn(&str, u32) -> Result<T, InputError>,
    ) -> Result<T, SlurmError> {
        let jobs = format!("--jobs={id}");
        let arguments: Vec<&str> = format.iter().copied().chain([jobs.as_str()]).collect();
        let text = self.run("squeue", &arguments).await?;
        parse(&text, id).map_err(|source| output("squeue", &arguments, source))
    }

    /// Returns the pending jobs by priority. A user could imitate the line of another job by a license.
    pub(crate) async fn pending_jobs(&self) -> Result<Vec<PendingJob>, SlurmError> {
        let format = "--Format=JobID:0|,Reason:0|,Licenses:0|";
        let arguments = ["--noheader", "--all", "--local", "--states=PENDING", format];
        let text = self.run("squeue", &arguments).await?;
        Ok(text.lines().filter_map(PendingJob::parse).collect())
    }

    /// Returns the states of all runs.
    pub(crate) async fn runs(&self) -> Result<RunList, SlurmError> {
        let text = self.run("squeue", &SQUEUE_ARGS).await?;
        RunList::parse(&text).map_err(|source| output("squeue", &SQUEUE_ARGS, source))
    }

    /// Returns `scontrol show config`.
    pub(crate) async fn config(&self) -> Result<String, SlurmError> {
        self.run("scontrol", &["show", "config"]).await
    }

    /// Returns the names of all nodes.
    pub(crate) async fn node_names(&self) -> Result<Vec<String>, SlurmError> {
        let arguments = ["--noheader", "--all", "--Node", "--format=%N"];
        let text = self.run("sinfo", &arguments).await?;
        Ok(text.lines().map(|line| line.trim().to_owned()).collect())
    }

    /// Returns all licenses.
    pub(crate) async fn licenses(&self) -> Result<Vec<LicenseCounts>, SlurmError> {
        let arguments = ["-o", "show", "licenses"];
        let text = self.run("scontrol", &arguments).await?;
        Ok(LicenseCounts::parse_list(&text))
    }

    /// Returns all reservations.
    pub(crate) async fn reservations(&self) -> Result<Vec<Reservation>, SlurmError> {
        let arguments = ["-o", "show", "reservation"];
        let text = self.run("scontrol", &arguments).await?;
        Reservation::parse_list(&text).map_err(|source| output("scontrol", &arguments, source))
    }

    /// Runs `scontrol` with these arguments.
    pub(crate) async fn scontrol(&self, arguments: &[&str]) -> Result<(), SlurmError> {
        self.run("scontrol", arguments).await.map(drop)
    }

    /// Sets the AdminComment of a job, by [`SlurmJob::scontrol_id`].
    pub(crate) async fn set_admin_comment(&self, id: &str, text: &str) -> Result<(), SlurmError> {
        let (job, comment) = (format!("JobId={id}"), format!("AdminComment={text}"));
        self.scontrol(&["update", &job, &comment]).await
    }

    /// Runs a command and returns its standard output.
    async fn run(&self, command: &'static str, arguments: &[&str]) -> Result<String, SlurmError> {
        let mut process = process::command(self.directory.join(command));
        process.args(arguments).env("SLURM_TIME_FORMAT", "%s");
        if let Some(slurm_conf) = &self.slurm_conf {
            process.env("SLURM_CONF", slurm_conf);
        }
        let result = tokio::time::timeout(COMMAND_TIMEOUT, process.output()).await;
        let finished = match result {
            Ok(Ok(finished)) => finished,
            Ok(Err(source)) => return Err(SlurmError::Start { command, source }),
            Err(_) => {
                let command = command_line(command, arguments);
                return Err(SlurmError::Timeout { command });
            }
        };
        // Any byte may be in the name of a job.
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        if finished.status.success() {
            return Ok(text(finished.stdout));
        }
        Err(SlurmError::Failed {
            command: command_line(command, arguments),
            // 22.05 prints some errors on standard output.
            message: text(finished.stderr) + &text(finished.stdout),
        })
    }
}

/// Returns the errors in the output of a command on one line: `scontrol show config` prints 200 lines before
/// its error. Without a word of an error, the first line.
fn summary(output: &str) -> String {
    let lines = || output.lines().map(str::trim).filter(|line| !line.is_empty());
    let is_error = |line: &&str| {
        ["error", "fatal", "failed", "is DOWN"]
            .iter()
            .any(|word| line.contains(word))
    };
    let errors: Vec<&str> = lines().filter(is_error).take(MAX_ERRORS).collect();
    match errors.as_slice() {
        [] => lines().next().unwrap_or_default().to_owned(),
        errors => errors.join("; "),
    }
}

fn has_scontrol(directory: &Path) -> bool {
    directory.is_absolute() && directory.join("scontrol").exists()
}

/// Returns `PREFIX/bin`, if the parent process is `PREFIX/sbin/slurmctld`, as that of a hook of slurmctld is.
fn directory_of_slurmctld_commands() -> Option<PathBuf> {
    let program = fs::read_link(format!("/proc/{}/exe", parent_id())).ok()?;
    if !program.file_name()?.to_str()?.starts_with("slurmctld") {
        return None;
    }
    Some(program.parent()?.parent()?.join("bin"))
}

fn command_line(command: &str, arguments: &[&str]) -> String {
    format!("{command} {}", arguments.join(" "))
}

fn output(command: &str, arguments: &[&str], source: InputError) -> SlurmError {
    SlurmError::Output {
        command: command_line(command, arguments),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_command_is_one_line() {
        let config = "Configuration data as of 1764000000\nAccountingStorageBackupHost = (null)\n\n\
                      Slurmctld(primary) at ctl is DOWN\n";
        let refused = "scontrol: error: Parse error in file /etc/slurm/slurm.conf line 3\nscontrol: fatal: Unable to \
                       process configuration file\n";
        for (output, expected) in [
            (config, "Slurmctld(primary) at ctl is DOWN"),
            (
                refused,
                "scontrol: error: Parse error in file /etc/slurm/slurm.conf line 3; scontrol: fatal: Unable to process \
                 configuration file",
            ),
            ("\nInvalid job id specified\nmore\n", "Invalid job id specified"),
            ("", ""),
        ] {
            assert_eq!(summary(output), expected);
        }
    }
}
