//! The local server of a state directory, as its clients see it: found, started, or replaced by one with
//! other options.
//!
//! A lock on a file of the state directory makes sure that there is at most one server. The client that takes
//! the lock starts the server, which inherits the lock and keeps it until its end, even by kill -9. The other
//! clients wait until the server answers on its socket.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ipu_proxy_client::{ClientError, ClientOptions, ProxyClient};
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::UnixStream;
use tokio::time::Instant;

use crate::display;
use crate::exit_code::{Code, Failure};
use crate::server_options::ServerOptions;
use crate::state_dir::StateDir;

/// Timeout until the server answers: its start takes a tenth of a second, and the end of its predecessor
/// some seconds.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum length of the path of a socket, see unix(7).
const MAX_SOCKET_PATH_BYTES: usize = 107;
/// Interval between two attempts to connect to a server that starts.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Required options of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requirement {
    /// The controller: for commands that do not place partitions.
    Controller,
    /// All options.
    All,
}

/// Returns a client of the server, which runs with the required `options`. Starts the server if none runs.
pub(crate) async fn connect(
    state: &StateDir,
    options: &ServerOptions,
    requirement: Requirement,
    client_options: &ClientOptions,
) -> Result<ProxyClient, Failure> {
    let address = format!("unix:{}", state.server_socket().display());
    if state.server_socket().as_os_str().len() > MAX_SOCKET_PATH_BYTES {
        let text = format!(
            "the path {} is longer than {MAX_SOCKET_PATH_BYTES} bytes, the limit for a socket: use --state-dir with a \
             shorter path",
            state.server_socket().display()
        );
        return Err(Failure::new(Code::Host, text));
    }
    let client = ProxyClient::new(&address, client_options.clone())
        .map_err(|error| Failure::because(Code::Host, "use the local server", error))?;
    let deadline = Instant::now() + START_TIMEOUT;
    let mut started: Option<StartedServer> = None;
    loop {
        if let Some(running) = RunningServer::find(state).await {
            if running.serves(options, requirement) {
                return Ok(client);
            }
            if !running.has_same_hardware(options) {
                running.check_unused(state, &client).await?;
            }
            running.terminate();
        } else {
            if let Some(server) = &mut started {
                server.check_running()?;
            }
            if let Some(lock) = try_lock(state)? {
                started = Some(StartedServer::start(state, options, lock)?);
            }
        }
        if Instant::now() > deadline {
            return Err(no_answer(state));
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// A server that accepts connections.
struct RunningServer {
    /// Process id; none if it belongs to another pid namespace.
    pid: Option<Pid>,
    /// Options, which the server writes to a file before it listens; none if they are of another version.
    options: Option<ServerOptions>,
}

impl RunningServer {
    async fn find(state: &StateDir) -> Option<Self> {
        let connection = UnixStream::connect(state.server_socket()).await.ok()?;
        let pid = connection.peer_cred().ok()?.pid().and_then(Pid::from_raw);
        let options = std::fs::read(state.server_options()).ok()?;
        Some(Self {
            pid,
            options: serde_json::from_slice(&options).ok(),
        })
    }

    fn has_same_hardware(&self, options: &ServerOptions) -> bool {
        let own = self.options.as_ref();
        own.is_some_and(|own| own.has_same_hardware(options))
    }

    fn serves(&self, options: &ServerOptions, requirement: Requirement) -> bool {
        let placement = self.options.as_ref().map(|own| &own.placement);
        self.has_same_hardware(options)
            && (requirement == Requirement::Controller || placement == Some(&options.placement))
    }

    /// Checks that the server holds and queues nothing, so that one for another controller can replace it.
    async fn check_unused(&self, state: &StateDir, client: &ProxyClient) -> Result<(), Failure> {
        let count = client.partitions().await.map(|partitions| partitions.len());
        if matches!(count, Ok(0) | Err(ClientError::Unreachable { .. })) {
            return Ok(());
        }
        let pid = self.pid.map_or(0, Pid::as_raw_pid);
        let held = count.map_or_else(
            |error| error.to_string(),
            |count| display::count(count, "partition"),
        );
        let serves = self.options.as_ref().map_or_else(
            || "is of another version".to_owned(),
            |own| format!("serves the {}", own.description(state.path())),
        );
        Err(Failure::new(
            Code::Host,
            format!(
                "the local server (process {pid}) {serves} and has {held}: end them, or use another directory with \
                 --state-dir"
            ),
        ))
    }

    /// Asks the server to end. Its partitions are in the ledger, which the next server reads.
    fn terminate(&self) {
        if let Some(pid) = self.pid {
            // It may have ended already.
            kill_process(pid, Signal::TERM).ok();
        }
    }
}

/// A server that this process has started.
struct StartedServer {
    process: Child,
    log: PathBuf,
    /// Size of the log before the start.
    log_size: u64,
}

impl StartedServer {
    /// Starts the server with the lock on its standard output. It is not affected by signals of the terminal
    /// of this process, nor by its environment.
    fn start(state: &StateDir, options: &ServerOptions, lock: File) -> Result<Self, Failure> {
        let failed = |error| Failure::because(Code::Host, "start the local server", error);
        let log = state.open_server_log().map_err(failed)?;
        let log_size = log.metadata().map_or(0, |metadata| metadata.len());
        let options = serde_json::to_string(options).map_err(|error| failed(error.into()))?;
        // The running binary, even if its file was replaced since the start.
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("ipuctl")
            .arg("__serve")
            .arg(options)
            .arg(state.path())
            .env_clear()
            .current_dir(state.path())
            .stdin(Stdio::null())
            .stdout(lock)
            .stderr(log);
        let process = command.spawn().map_err(failed)?;
        Ok(Self {
            process,
            log: state.server_log(),
            log_size,
        })
    }

    /// Returns the error of a server that failed to start. A server that was replaced or killed did not fail.
    fn check_running(&mut self) -> Result<(), Failure> {
        let Ok(Some(status)) = self.process.try_wait() else {
            return Ok(());
        };
        if status.code().is_none_or(|code| code == 0) {
            return Ok(());
        }
        let log = std::fs::read(&self.log).unwrap_or_default();
        let start = usize::try_from(self.log_size).unwrap_or(0).min(log.len());
        let text = String::from_utf8_lossy(&log[start..]);
        let last = text.lines().last().unwrap_or("no reason in its log");
        let message = format!("the local server did not start: {last}");
        Err(Failure::new(Code::Host, message))
    }
}

/// Takes the lock of the server; none if another process has it.
fn try_lock(state: &StateDir) -> Result<Option<File>, Failure> {
    let path = state.server_lock();
    let failed = |error| Failure::because(Code::Host, format!("lock {}", path.display()), error);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

fn no_answer(state: &StateDir) -> Failure {
    let text = format!(
        "the local server does not answer within {} s: see {}; on a directory that several hosts share, use \
         --state-dir with a directory of this host",
        START_TIMEOUT.as_secs(),
        state.server_log().display()
    );
    Failure::new(Code::Host, text)
}
