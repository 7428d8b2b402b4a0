//! Servers as processes: those of a test end with it, whatever ends it; those of a person stay.

use std::fs::{self, OpenOptions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::error::ClusterError;
use crate::options::ClusterLifetime;

/// Runs a server and ends it when the pipe that is this shell's standard input closes, which it does when whoever holds
/// the other end dies, even by SIGKILL. `$1` is the log; the rest is the command.
const TETHER: &str = r#"
log=$1; shift
"$@" </dev/null >>"$log" 2>&1 &
server=$!
echo $server
exec >/dev/null
read -r nothing
kill -9 $server
wait $server
"#;

/// A server that was started.
#[derive(Debug)]
pub(crate) struct Server {
    name: &'static str,
    record: ServerRecord,
    log: PathBuf,
    tether: Option<(Child, ChildStdin)>,
}

/// What tells a server from a later process of the same number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ServerRecord {
    pid: i32,
    program: PathBuf,
}

impl Server {
    /// Starts `program`, by way of the command `within` if that is not empty, which becomes it or waits for it.
    pub(crate) fn start(
        name: &'static str,
        within: &[String],
        program: &Path,
        arguments: &[String],
        log: &Path,
        life: ClusterLifetime,
    ) -> Result<Self, ClusterError> {
        let failed = |error: std::io::Error| ClusterError::step(format!("start {name}"), error);
        let program = fs::canonicalize(program).map_err(failed)?;
        let mut words: Vec<String> = within.to_vec();
        words.push(program.display().to_string());
        words.extend_from_slice(arguments);
        let (pid, tether) = match life {
            ClusterLifetime::WithThisProcess => {
                let mut shell = Command::new("sh")
                    .args(["-c", TETHER, "tether"])
                    .arg(log)
                    .args(&words)
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::null())
                    // A ^C is for the test; the pipe does the rest.
                    .process_group(0)
                    .spawn()
                    .map_err(failed)?;
                let mut pid = String::new();
                if let Some(said) = shell.stdout.take() {
                    BufReader::new(said).read_line(&mut pid).map_err(failed)?;
                }
                let stdin = shell.stdin.take();
                let pid = pid.trim().parse().ok();
                let (Some(pid), Some(stdin)) = (pid, stdin) else {
                    return Err(ClusterError::step(
                        format!("start {name}"),
                        "no process id was told",
                    ));
                };
                (pid, Some((shell, stdin)))
            }
            ClusterLifetime::UntilStopped => {
                let output = OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(log)
                    .map_err(failed)?;
                let child = Command::new(&words[0])
                    .args(&words[1..])
                    .stdin(Stdio::null())
                    .stdout(output.try_clone().map_err(failed)?)
                    .stderr(output)
                    .process_group(0)
                    .spawn()
                    .map_err(failed)?;
                (child.id().cast_signed(), None)
            }
        };
        Ok(Self {
            name,
            record: ServerRecord { pid, program },
            log: log.to_owned(),
            tether,
        })
    }

    /// Its number here.
    pub(crate) fn pid(&self) -> i32 {
        self.record.pid
    }

    /// What it is called.
    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn record(&self) -> ServerRecord {
        self.record.clone()
    }

    /// The failure of a server that did not become ready.
    pub(crate) fn not_ready(&self, detail: String) -> ClusterError {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        ClusterError::NotReady {
            name: self.name,
            detail,
            log: lines[lines.len().saturating_sub(20)..].join("\n"),
        }
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        !is_alive(self.record.pid)
    }

    /// Ends it at once, as a crash does, and waits until it is gone.
    pub(crate) fn kill(self) {
        match self.tether {
            Some((mut shell, stdin)) => {
                drop(stdin);
                let _ = shell.wait();
            }
            None => self.record.kill(),
        }
    }
}

impl ServerRecord {
    /// Ends it, and waits until it is gone. A later process of the same number is left alone.
    pub(crate) fn kill(&self) {
        while self.is_running() {
            if let Some(pid) = Pid::from_raw(self.pid) {
                // Already gone is as well.
                let _ = kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn is_running(&self) -> bool {
        let same = fs::read_link(format!("/proc/{}/exe", self.pid)).is_ok_and(|exe| exe == self.program);
        same && is_alive(self.pid)
    }
}

/// Whether a process runs; one that only waits to be reaped does not.
fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map_or("Z", |(_, rest)| rest);
    !state.starts_with(['Z', 'X'])
}
