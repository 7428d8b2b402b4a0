//! Starts a worker below a supervisor of its own and tells what becomes of it.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ipu_core::{Exit, Timestamp};

use crate::output::{Output, OutputTail, Stream};

/// A process to be started.
#[derive(Clone, Debug)]
pub(crate) struct Spawn {
    /// The program and its arguments.
    pub(crate) command: Vec<OsString>,
    /// Where it runs; here if not given.
    pub(crate) directory: Option<PathBuf>,
    /// What is added to the environment of `ipuctl`.
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// Whether it has the terminal.
    pub(crate) terminal: Terminal,
}

/// Whether a process has the terminal of `ipuctl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Terminal {
    /// No: its input is empty, its output is prefixed.
    Detached,
    /// Yes: a person works in it.
    Attached,
}

/// What becomes of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProcessEvent {
    /// It runs.
    Started,
    /// It could not be started.
    Failed {
        /// The exit code that a shell would give: 127 if there is no such program, 126 if it cannot be run.
        code: u8,
        /// Why.
        why: String,
    },
    /// It and everything that it started has ended; its output has been read.
    Gone {
        /// How it ended.
        exit: Exit,
        /// When it ended.
        at: Timestamp,
    },
    /// Its supervisor ended without a word, so that nobody looks after what may be left of it.
    Unsupervised(String),
}

/// Why no supervisor could be started.
#[derive(Debug, thiserror::Error)]
#[error("start the supervisor of a process")]
pub(crate) struct SpawnError(#[from] std::io::Error);

/// The way to a running process. Dropping it ends the process, as the end of `ipuctl` does.
#[derive(Debug)]
pub(crate) struct Supervised {
    orders: UnixStream,
    tail: OutputTail,
}

impl Supervised {
    /// Asks the process and all that it started to end, and kills what is left after `grace`.
    pub(crate) fn stop(&self, grace: Duration) {
        // An error means that the supervisor is gone, which is reported as an event.
        let _ = writeln!(&self.orders, "stop {}", grace.as_millis());
    }

    /// The end of what it has printed so far, at most 2 KiB.
    pub(crate) fn last_lines(&self) -> String {
        self.tail.text()
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        let _ = self.orders.shutdown(Shutdown::Write);
    }
}

/// Starts `what`; `report` is called from other threads, in order, ending with an event that is not `Started`.
pub(crate) fn start(
    what: Spawn,
    output: Option<(&Output, &str)>,
    report: impl Fn(ProcessEvent) + Send + 'static,
) -> Result<Supervised, SpawnError> {
    let (orders, theirs) = UnixStream::pair()?;
    // This very program, even if its file has been replaced since it was started.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("ipuctl").arg("__supervise");
    command.stdin(Stdio::from(OwnedFd::from(theirs)));
    // A file of another partition that the user's environment names must not lead the process there.
    command.env_remove("IPUOF_CONFIG_PATH").envs(what.environment);
    match what.terminal {
        Terminal::Attached => command.arg("--terminal"),
        Terminal::Detached => command
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    };
    command.args(&what.command);
    if let Some(directory) = &what.directory {
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
            .map(|pipe| output.pump(pipe, Stream::Out, label, &tail));
        let err = child
            .stderr
            .take()
            .map(|pipe| output.pump(pipe, Stream::Err, label, &tail));
        readers.extend(out.into_iter().chain(err));
    }
    let answers = BufReader::new(orders.try_clone()?);
    std::thread::spawn(move || {
        let last = listen(answers, &mut child, &report);
        if !matches!(last, ProcessEvent::Unsupervised(_)) {
            // Everything that could write has ended, so that the pipes end as well.
            for reader in readers {
                let _ = reader.join();
            }
        }
        report(last);
    });
    Ok(Supervised { orders, tail })
}

/// Reports what the supervisor says until it has no more to say; answers the last event.
fn listen(answers: BufReader<UnixStream>, child: &mut Child, report: &impl Fn(ProcessEvent)) -> ProcessEvent {
    let mut last = None;
    for line in answers.lines().map_while(Result::ok) {
        match parse(&line) {
            Some(ProcessEvent::Started) => report(ProcessEvent::Started),
            event => last = event,
        }
    }
    let end = match child.wait() {
        Ok(status) => match (status.code(), status.signal()) {
            (_, Some(signal)) => format!("its supervisor was ended by signal {signal}"),
            (code, None) => format!("its supervisor ended with code {}", code.unwrap_or(0)),
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
            let (code, why) = rest.split_once(' ')?;
            Some(ProcessEvent::Failed {
                code: code.parse().ok()?,
                why: why.to_owned(),
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
            Some(ProcessEvent::Gone { exit, at })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_supervisor_says_is_understood() {
        let at = Timestamp::from_millis(1_700_000_000_000);
        assert_eq!(
            parse("gone code 3 1700000000000"),
            Some(ProcessEvent::Gone {
                exit: Exit::Code(3),
                at
            })
        );
        assert_eq!(
            parse("gone signal 9 1700000000000"),
            Some(ProcessEvent::Gone {
                exit: Exit::Signal(9),
                at
            })
        );
        assert_eq!(
            parse("failed 127 no such program"),
            Some(ProcessEvent::Failed {
                code: 127,
                why: "no such program".into()
            })
        );
        assert_eq!(parse("gone code"), None);
    }
}
