//! Server processes: those of a test end with the test process; those of a persistent cluster keep running.

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

/// Runs a server, and kills it when the pipe at this shell's standard input closes. The pipe closes when
/// the process at the other end dies, even by SIGKILL. `$1` is the log; the rest is the command.
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

/// A started server.
#[derive(Debug)]
pub(crate) struct Server {
    name: &'static str,
    record: ServerRecord,
    log: PathBuf,
    tether: Option<(Child, ChildStdin)>,
}

/// Identity of a server, which distinguishes it from a later process with the same pid.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ServerRecord {
    pid: i32,
    program: PathBuf,
}

impl Server {
    /// Starts `program`. A non-empty `wrapper` is a command prefix that execs the program or waits for it.
    pub(crate) fn start(
        name: &'static str,
        wrapper: &[String],
        program: &Path,
        arguments: &[String],
        log: &Path,
        lifetime: ClusterLifetime,
    ) -> Result<Self, ClusterError> {
        let start_error = |error: std::io::Error| ClusterError::step(format!("start {name}"), error);
        let program = fs::canonicalize(program).map_err(start_error)?;
        let mut command: Vec<String> = wrapper.to_vec();
        command.push(program.display().to_string());
        command.extend_from_slice(arguments);
        let (pid, tether) = match lifetime {
            ClusterLifetime::WithThisProcess => {
                let mut shell = Command::new("sh")
                    .args(["-c", TETHER, "tether"])
                    .arg(log)
                    .args(&command)
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::null())
                    // Ctrl-C targets the test; closing the pipe ends the server.
                    .process_group(0)
                    .spawn()
                    .map_err(start_error)?;
                let mut pid = String::new();
                if let Some(stdout) = shell.stdout.take() {
                    BufReader::new(stdout).read_line(&mut pid).map_err(start_error)?;
                }
                let stdin = shell.stdin.take();
                let pid = pid.trim().parse().ok();
                let (Some(pid), Some(stdin)) = (pid, stdin) else {
                    return Err(ClusterError::step(
                        format!("start {name}"),
                        "the shell printed no process id",
                    ));
                };
                (pid, Some((shell, stdin)))
            }
            ClusterLifetime::UntilStopped => {
                let output = OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(log)
                    .map_err(start_error)?;
                let child = Command::new(&command[0])
                    .args(&command[1..])
                    .stdin(Stdio::null())
                    .stdout(output.try_clone().map_err(start_error)?)
                    .stderr(output)
                    .process_group(0)
                    .spawn()
                    .map_err(start_error)?;
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

    /// Returns the process id.
    pub(crate) fn pid(&self) -> i32 {
        self.record.pid
    }

    /// Returns the name of the server.
    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn record(&self) -> ServerRecord {
        self.record.clone()
    }

    /// Returns the error of a server that did not become ready.
    pub(crate) fn not_ready(&self, detail: String) -> ClusterError {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        ClusterError::NotReady {
            name: self.name,
            detail,
            log: lines[lines.len().saturating_sub(20)..].join("\n"),
        }
    }

    /// Returns whether the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        !is_alive(self.record.pid)
    }

    /// Kills the server, and waits until it has ended.
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
    /// Kills the process, and waits until it has ended. Leaves a later process with the same pid alone.
    pub(crate) fn kill(&self) {
        while self.is_running() {
            if let Some(pid) = Pid::from_raw(self.pid) {
                // The process may have ended already.
                let _ = kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn is_running(&self) -> bool {
        let is_same_program =
            fs::read_link(format!("/proc/{}/exe", self.pid)).is_ok_and(|exe| exe == self.program);
        is_same_program && is_alive(self.pid)
    }
}

/// Returns whether a process runs; a zombie does not count.
fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map_or("Z", |(_, rest)| rest);
    !state.starts_with(['Z', 'X'])
}
