//! Starts a process with its own supervisor, and reports its events.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ipu_core::Timestamp;
use ipu_core::job::Exit;
use ipu_core::render::IpuofEnv;

use crate::output::{Output, OutputTail, Stream};

/// Description of a process to start.
#[derive(Clone, Debug)]
pub(crate) struct Spawn {
    /// The program and its arguments.
    pub(crate) command: Vec<OsString>,
    /// Working directory; that of `ipuctl` if none.
    pub(crate) directory: Option<PathBuf>,
    /// Variables that are added to the environment of `ipuctl`.
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// Access to the terminal.
    pub(crate) terminal: Terminal,
}

/// Access of a process to the terminal of `ipuctl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Terminal {
    /// The input is empty, and the output gets a prefix.
    Detached,
    /// The process is interactive.
    Attached,
}

/// An event of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProcessEvent {
    /// The process runs.
    Started,
    /// The process could not be started.
    Failed {
        /// Exit code as of a shell: 127 if the program does not exist, 126 if it cannot be executed.
        code: u8,
        /// Cause of the failure.
        reason: String,
    },
    /// The process and all its descendants have ended, and their output was read.
    Ended {
        /// Exit of the process.
        exit: Exit,
        /// Time of the exit.
        at: Timestamp,
    },
    /// The supervisor ended without a report, so that remaining processes are unsupervised.
    Unsupervised(String),
}

/// Error of a supervisor that could not be started.
#[derive(Debug, thiserror::Error)]
#[error("start the supervisor of a process")]
pub(crate) struct SpawnError(#[from] std::io::Error);

/// Handle of a supervised process. Dropping it ends the process, as the end of `ipuctl` does.
#[derive(Debug)]
pub(crate) struct SupervisedProcess {
    orders: UnixStream,
    tail: OutputTail,
}

impl SupervisedProcess {
    /// Terminates the process and its descendants, and kills those that are left after `grace`.
    pub(crate) fn stop(&self, grace: Duration) {
        // An error means that the supervisor has ended, which is reported as an event.
        let _ = writeln!(&self.orders, "stop {}", grace.as_millis());
    }

    /// Returns the last output of the process, at most 2 KiB.
    pub(crate) fn last_lines(&self) -> String {
        self.tail.text()
    }
}

impl Drop for SupervisedProcess {
    fn drop(&mut self) {
        let _ = self.orders.shutdown(Shutdown::Write);
    }
}

/// Starts a process. `report` is called from other threads, in order; the last event is not `Started`.
pub(crate) fn start(
    spawn: Spawn,
    output: Option<(&Output, &str)>,
    report: impl Fn(ProcessEvent) + Send + 'static,
) -> Result<SupervisedProcess, SpawnError> {
    let (orders, supervisor_end) = UnixStream::pair()?;
    // The running binary, even if its file was replaced since the start.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("ipuctl").arg("__supervise");
    command.stdin(Stdio::from(OwnedFd::from(supervisor_end)));
    // The environment of the user must not select another partition.
    let inherited = std::env::vars_os().map(|(name, _)| name);
    for name in inherited.filter(|name| name.to_str().is_some_and(IpuofEnv::selects_ipus)) {
        command.env_remove(name);
    }
    command.envs(spawn.environment);
    match spawn.terminal {
        Terminal::Attached => command.arg("--terminal"),
        Terminal::Detached => command
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    };
    command.args(&spawn.command);
    if let Some(directory) = &spawn.directory {
        command.current_dir(directory);
    }
    let mut child = command.spawn()?;
    writeln!(&orders, "go")?;
    let tail = OutputTail::default();
    let mut readers = Vec::new();
    if let Some((output, label)) = output {
        let out = child
            .stdout
            .take()
            .map(|pipe| output.forward(pipe, Stream::Out, label, &tail));
        let err = child
            .stderr
            .take()
            .map(|pipe| output.forward(pipe, Stream::Err, label, &tail));
        readers.extend(out.into_iter().chain(err));
    }
    let messages = BufReader::new(orders.try_clone()?);
    std::thread::spawn(move || {
        let last = listen(messages, &mut child, &report);
        if !matches!(last, ProcessEvent::Unsupervised(_)) {
            // All writers have ended, so that the pipes end too.
            for reader in readers {
                let _ = reader.join();
            }
        }
        report(last);
    });
    Ok(SupervisedProcess { orders, tail })
}

/// Reports the messages of the supervisor until its end. Returns the last event.
fn listen(
    messages: BufReader<UnixStream>,
    child: &mut Child,
    report: &impl Fn(ProcessEvent),
) -> ProcessEvent {
    let mut last = None;
    for line in messages.lines().map_while(Result::ok) {
        match parse(&line) {
            Some(ProcessEvent::Started) => report(ProcessEvent::Started),
            event => last = event,
        }
    }
    let end = match child.wait() {
        Ok(status) => match (status.code(), status.signal()) {
            (_, Some(signal)) => format!("its supervisor was terminated by signal {signal}"),
            (code, None) => format!("its supervisor exited with code {}", code.unwrap_or(0)),
        },
        Err(error) => format!("its supervisor was lost: {error}"),
    };
    last.unwrap_or(ProcessEvent::Unsupervised(end))
}

fn parse(line: &str) -> Option<ProcessEvent> {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    match word {
        "started" => Some(ProcessEvent::Started),
        "failed" => {
            let (code, reason) = rest.split_once(' ')?;
            Some(ProcessEvent::Failed {
                code: code.parse().ok()?,
                reason: reason.to_owned(),
            })
        }
        "gone" => {
            let mut fields = rest.split(' ');
            let kind = fields.next()?;
            let number: u8 = fields.next()?.parse().ok()?;
            let at = Timestamp::from_millis(fields.next()?.parse().ok()?);
            let exit = if kind == "signal" {
                Exit::Signal(number)
            } else {
                Exit::Code(number)
            };
            Some(ProcessEvent::Ended { exit, at })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_supervisor_are_parsed() {
        let at = Timestamp::from_millis(1_700_000_000_000);
        assert_eq!(
            parse("gone code 3 1700000000000"),
            Some(ProcessEvent::Ended {
                exit: Exit::Code(3),
                at
            })
        );
        assert_eq!(
            parse("gone signal 9 1700000000000"),
            Some(ProcessEvent::Ended {
                exit: Exit::Signal(9),
                at
            })
        );
        assert_eq!(
            parse("failed 127 no such program"),
            Some(ProcessEvent::Failed {
                code: 127,
                reason: "no such program".into()
            })
        );
        assert_eq!(parse("gone code"), None);
    }
}
