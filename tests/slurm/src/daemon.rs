//! The daemons of a bed.

use std::fmt;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::accounting;
use crate::error::BedError;
use crate::options::BED;
use crate::sandbox::Sandbox;
use crate::slurm_conf::{CONTROLLER_RUN, NODES};

/// A daemon of a bed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Daemon {
    /// The authentication service.
    Munged,
    /// The database of slurmdbd.
    Mariadbd,
    /// Slurm's accounting.
    Slurmdbd,
    /// Slurm's controller.
    Slurmctld,
    /// A controller of a bed with a backup, by its host: [`CONTROLLERS`](crate::CONTROLLERS).
    SlurmctldOn(String),
    /// The node daemon of the node with this name.
    Slurmd(String),
    /// A program of the test, such as a proxy, by a name of the test's choice.
    Program(String),
}

impl Daemon {
    /// Returns the node daemons of all nodes.
    #[must_use]
    pub fn slurmds() -> Vec<Self> {
        NODES.map(|node| Self::Slurmd(node.into())).to_vec()
    }

    /// Returns the command line, which stays in the foreground; `None` for a program of the test.
    pub(crate) fn command_line(&self) -> Option<Vec<String>> {
        let words: Vec<String> = match self {
            // It otherwise objects to a directory that others may write.
            Self::Munged => {
                let mut words: Vec<String> = ["munged", "--foreground", "--force"].map(String::from).to_vec();
                words.push(format!("--key-file={BED}/private/munge.key"));
                words.push(format!("--seed-file={BED}/private/munge.seed"));
                words.push(format!("--log-file={BED}/log/munged.log"));
                words
            }
            Self::Mariadbd => accounting::database(),
            Self::Slurmdbd => accounting::slurmdbd(),
            Self::Slurmctld => ["slurmctld", "-D"].map(String::from).to_vec(),
            Self::SlurmctldOn(host) => {
                // At its start, slurmctld ends the one of its file.
                let script = format!(
                    r#"hostname "$0"; mount -t tmpfs tmpfs {CONTROLLER_RUN}; chown slurm {CONTROLLER_RUN}; exec slurmctld -D"#
                );
                ["unshare", "--uts", "--mount", "sh", "-euc", &script, host]
                    .map(String::from)
                    .to_vec()
            }
            Self::Slurmd(node) => ["slurmd", "-D", "-N", node].map(String::from).to_vec(),
            Self::Program(_) => return None,
        };
        Some(words)
    }
}

impl fmt::Display for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Munged => f.write_str("munged"),
            Self::Mariadbd => f.write_str("mariadbd"),
            Self::Slurmdbd => f.write_str("slurmdbd"),
            Self::Slurmctld => f.write_str("slurmctld"),
            Self::SlurmctldOn(host) => write!(f, "slurmctld-{host}"),
            Self::Slurmd(node) => write!(f, "slurmd-{node}"),
            Self::Program(name) => f.write_str(name),
        }
    }
}

/// A started daemon. Its process is a child of `entered`, which ends with it.
#[derive(Debug)]
pub(crate) struct RunningDaemon {
    entered: Child,
    /// The file with its process id, as the bed numbers it.
    pid_file: PathBuf,
}

impl RunningDaemon {
    /// Starts a command inside the bed; its output goes to `log/<name>.out` of `directory`.
    pub(crate) fn start(
        sandbox: &Sandbox,
        directory: &Path,
        daemon: &Daemon,
        words: &[String],
    ) -> Result<Self, BedError> {
        let start_error = |error: std::io::Error| BedError::step(format!("start {daemon}"), error);
        let output = OpenOptions::new()
            .create(true)
            .append(true)
            .open(directory.join(format!("log/{daemon}.out")))
            .map_err(start_error)?;
        let pid_file = directory.join(format!("pids/{daemon}"));
        let _ = std::fs::remove_file(&pid_file);
        let mut command = sandbox.command(None, "sh");
        let entered = command
            .args([
                "-c",
                r#"echo $$ >"$1.new"; mv "$1.new" "$1"; shift; exec setsid "$@""#,
                "sh",
            ])
            .arg(format!("{BED}/pids/{daemon}"))
            .args(words)
            .stdout(output.try_clone().map_err(start_error)?)
            .stderr(output)
            .stdin(Stdio::null())
            .spawn()
            .map_err(start_error)?;
        Ok(Self { entered, pid_file })
    }

    /// Returns whether the daemon has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.entered.try_wait(), Ok(None))
    }

    /// Sends a signal (`KILL`, `TERM`) unless the daemon has ended. The process id is not reused meanwhile,
    /// because the daemon's parent has not reaped it.
    pub(crate) fn signal(&mut self, sandbox: &Sandbox, signal: &str) -> Result<(), BedError> {
        if self.has_ended() {
            return Ok(());
        }
        let pid = std::fs::read_to_string(&self.pid_file)
            .map_err(|error| BedError::step(format!("read {}", self.pid_file.display()), error))?;
        let mut command: Command = sandbox.command(None, "kill");
        command.args(["-s", signal, pid.trim()]).stderr(Stdio::null());
        // It may end at this moment.
        let _ = command.status();
        Ok(())
    }

    /// Waits until the daemon has ended.
    pub(crate) fn wait(&mut self) {
        let _ = self.entered.wait();
    }
}
