//! `ipuctl __serve`: the local server, a `vipu-proxy` on a Unix socket that all commands of a state directory
//! share. It ends itself when it is idle.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use ipu_core::{ControllerName, ErrorChain};
use tokio::signal::unix::{SignalKind, signal};
use vipu_proxy::{ListenAddress, Proxy, Settings};

use crate::server_options::{ControllerOptions, ServerOptions};
use crate::state_dir::{StateDir, write_file};

/// Name of the simulated controller in the ledger; its port differs between servers.
const SIMULATED_CONTROLLER: &str = "simulated-pod16";

/// Interval of the repair in seconds: the longest time for which a killed command keeps a partition or a
/// place in the queue.
const REPAIR_INTERVAL_SECS: u64 = 5;

/// Interval between two checks that the state directory exists.
const DIRECTORY_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Time in which open requests finish after a signal. The ledger is consistent without it.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum size of the log in bytes. A longer one starts again.
const MAX_LOG_BYTES: u64 = 1 << 20;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Serves until the server is idle, or until a signal. The arguments are the options and the state directory;
/// standard output is the locked file of the state directory, and standard error the log.
pub(crate) fn main(arguments: &[OsString]) -> ExitCode {
    match start(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without a log, the error has no reader.
            writeln!(io::stderr(), "{}", ErrorChain(&*error)).ok();
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: &[OsString]) -> Result<(), Error> {
    // Own session: the terminal of the command that started this server does not signal it.
    rustix::process::setsid()?;
    let [options, directory] = arguments else {
        return Err("the internal command needs options and a state directory".into());
    };
    let options: ServerOptions = serde_json::from_str(options.to_str().unwrap_or_default())?;
    let state = StateDir::open(Some(Path::new(directory))).map_err(|failure| failure.chain())?;
    if !has_lock(&state) {
        return Err("the internal command needs the lock of the state directory".into());
    }
    init_logging(&state)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let served = runtime.block_on(serve(&state, &options));
    // Tasks that hang do not delay the end.
    runtime.shutdown_background();
    served
}

async fn serve(state: &StateDir, options: &ServerOptions) -> Result<(), Error> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    write_file(&state.server_options(), 0o600, &serde_json::to_vec(options)?)?;
    let proxy = Proxy::start(settings(state, options)?.check()?).await?;
    tracing::info!(target: "ipuctl", pid = std::process::id(), "serving");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        _ = hang_up.recv() => {}
        () = until_removed(state) => {}
        () = proxy.until_idle(Duration::from_millis(options.idle_millis)) => {}
    }
    tracing::info!(target: "ipuctl", "ending");
    tokio::time::timeout(SHUTDOWN_TIMEOUT, proxy.shutdown())
        .await
        .ok();
    Ok(())
}

/// Returns the settings of the proxy.
fn settings(state: &StateDir, options: &ServerOptions) -> Result<Settings, Error> {
    let mut settings = Settings::default();
    settings.listen = Some(ListenAddress::Unix(state.server_socket()));
    settings.store = Some(format!("file:{}", state.ledger_path().display()));
    settings.repair_interval = Some(REPAIR_INTERVAL_SECS);
    settings.placement.clone_from(&options.placement.placement);
    settings.preemption = Some(options.placement.preemption);
    // There is a single user, so that a limit per namespace is of no use.
    settings.max_queued_per_namespace = Some(u32::MAX);
    match &options.controller {
        Some(controller) => {
            settings.controllers = Some(controller.address.clone());
            settings.controllers_secrets = secrets(state, controller)?;
        }
        None => {
            settings.sim = Some("pod16".to_owned());
            settings.sim_listen = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
            let state_path = state.create_simulator_state_path();
            settings.sim_state = Some(state_path.map_err(|failure| failure.chain())?);
            settings.sim_delay_ms = Some(0);
            settings.sim_name = Some(ControllerName::new(SIMULATED_CONTROLLER)?);
        }
    }
    Ok(settings)
}

/// Returns a directory with links to the certificates and keys for the controller; none without any.
fn secrets(state: &StateDir, controller: &ControllerOptions) -> io::Result<Option<PathBuf>> {
    let directory = state.path().join("secrets");
    match std::fs::remove_dir_all(&directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    if controller.ca.is_none() && controller.identity.is_none() && controller.user.is_none() {
        return Ok(None);
    }
    let folder = directory.join("default");
    std::fs::create_dir_all(&folder)?;
    let link = |path: &Path, name: &str| std::os::unix::fs::symlink(path, folder.join(name));
    if let Some(ca) = &controller.ca {
        link(ca, "ca.crt")?;
    }
    if let Some((certificate, key)) = &controller.identity {
        link(certificate, "tls.crt")?;
        link(key, "tls.key")?;
    }
    if let Some((user, key)) = &controller.user {
        std::fs::write(folder.join("user-id"), user)?;
        link(key, "access-key")?;
    }
    Ok(Some(directory))
}

/// Waits until the state directory is removed, or another one has taken its place.
async fn until_removed(state: &StateDir) {
    while has_lock(state) {
        tokio::time::sleep(DIRECTORY_CHECK_INTERVAL).await;
    }
}

/// Returns whether standard output is the lock of the state directory.
fn has_lock(state: &StateDir) -> bool {
    let (Ok(own), Ok(lock)) = (
        rustix::fs::fstat(io::stdout()),
        std::fs::metadata(state.server_lock()),
    ) else {
        return false;
    };
    own.st_ino == lock.ino() && own.st_dev == lock.dev()
}

/// Logs to the file of the state directory.
fn init_logging(state: &StateDir) -> io::Result<()> {
    use tracing_subscriber::filter::{LevelFilter, Targets};
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::util::SubscriberInitExt as _;

    let filter = Targets::new()
        .with_default(LevelFilter::WARN)
        .with_targets([("ipuctl", LevelFilter::INFO)]);
    let log = Mutex::new(BoundedLog(state.open_server_log()?));
    let layer = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .with_writer(log)
        .log_internal_errors(false);
    tracing_subscriber::registry().with(layer).with(filter).init();
    Ok(())
}

/// A log file that starts again at [`MAX_LOG_BYTES`].
struct BoundedLog(File);

impl Write for BoundedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.metadata()?.len() > MAX_LOG_BYTES {
            self.0.set_len(0)?;
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_log_starts_again() {
        let home = tempfile::tempdir().unwrap();
        let state = StateDir::open(Some(home.path())).unwrap();
        let mut log = BoundedLog(state.open_server_log().unwrap());
        let line = [b'x'; 1 << 16];
        for _ in 0..40 {
            log.write_all(&line).unwrap();
        }
        let size = std::fs::metadata(state.server_log()).unwrap().len();
        assert!(size <= MAX_LOG_BYTES + line.len() as u64, "{size}");
        assert!(size > 0);
    }
}
