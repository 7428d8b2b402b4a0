//! `ipuctl __supervise`: the parent of one worker. It is a child subreaper, so that it stays an ancestor of
//! all processes that the worker starts, also detached ones. The end of the socket reports the end of
//! `ipuctl`, even by kill -9.
//!
//! The socket on standard input carries one message a line. From `ipuctl`: `go`, `stop <grace millis>`,
//! `kill`. To it: `started`, `failed <code> <reason>`, `gone code|signal <n> <unix millis>`. The worker
//! starts after `go` only: if `ipuctl` ends before, each process that is left has the marker in `/proc`.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpid, set_child_subreaper, wait, waitid,
};

use super::procfs;

/// Grace period after the end of `ipuctl`.
const ORPHAN_GRACE: Duration = Duration::from_secs(2);
/// Grace period of the descendants after the end of the worker.
const DESCENDANT_GRACE: Duration = Duration::from_secs(2);
/// First interval between two rounds of SIGKILL: a process may fork between two scans.
const KILL_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum of that interval.
const MAX_KILL_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between two scans for stopped processes among those that were terminated.
const WAKE_INTERVAL: Duration = Duration::from_millis(100);

enum Event {
    /// A child or inherited child has ended.
    Ended {
        pid: Pid,
        status: WaitStatus,
        /// True if no child is left, and so no descendant.
        is_last: bool,
    },
    /// Terminate all descendants, and kill those that are left after this time.
    Stop(Duration),
}

/// Runs a command until it and its descendants have ended. With `--terminal` as the first argument, the
/// command keeps this process group and reads from the terminal.
pub(crate) fn main(mut arguments: Vec<OsString>) -> ExitCode {
    let terminal = arguments.first().is_some_and(|first| first == "--terminal");
    if terminal {
        arguments.remove(0);
    }
    match supervise(&arguments, terminal) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_parent_ended_or_kernel_error) => ExitCode::FAILURE,
    }
}

fn supervise(command: &[OsString], terminal: bool) -> std::io::Result<()> {
    let mut socket = UnixStream::from(rustix::stdio::stdin().try_clone_to_owned()?);
    set_child_subreaper(Some(getpid()))?;
    let mut orders = BufReader::new(socket.try_clone()?).lines();
    if orders.next().transpose()?.as_deref() != Some("go") {
        return Ok(());
    }
    let child = match spawn(command, terminal) {
        Ok(child) => child,
        Err(error) => {
            let code = if error.kind() == std::io::ErrorKind::NotFound {
                127
            } else {
                126
            };
            let program = command
                .first()
                .map(|program| program.to_string_lossy().into_owned())
                .unwrap_or_default();
            return writeln!(socket, "failed {code} cannot start {program:?}: {error}");
        }
    };
    let main = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| std::io::Error::other("pid"))?;
    // Ignored if the parent has ended: the thread below notices that too.
    let _ = writeln!(socket, "started");
    let (events, receiver) = channel();
    let order_events = events.clone();
    std::thread::spawn(move || listen(orders, &order_events));
    std::thread::spawn(move || reap(&events));
    // An interactive shell ignores SIGTERM, and on SIGHUP restores the terminal before it ends.
    let request = if terminal { Signal::HUP } else { Signal::TERM };
    let Some((status, at)) = wait_for_all(main, request, &receiver) else {
        return writeln!(socket, "failed 126 its exit status was lost");
    };
    let exit = match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("gone code {code}"),
        (None, signal) => format!("gone signal {}", signal.unwrap_or(0)),
    };
    writeln!(socket, "{exit} {at}")
}

fn spawn(command: &[OsString], terminal: bool) -> std::io::Result<std::process::Child> {
    let (program, arguments) = command
        .split_first()
        .ok_or_else(|| std::io::Error::other("no command"))?;
    let mut command = Command::new(program);
    command.args(arguments);
    if terminal {
        command.stdin(std::fs::File::open("/dev/tty")?);
    } else {
        command.stdin(Stdio::null()).process_group(0);
    }
    command.spawn()
}

/// Forwards orders; the end of the socket is one too.
fn listen(orders: impl Iterator<Item = std::io::Result<String>>, events: &Sender<Event>) {
    for order in orders.map_while(Result::ok) {
        let grace = match order.split_once(' ') {
            Some(("stop", millis)) => millis.parse().map_or(ORPHAN_GRACE, Duration::from_millis),
            _ => Duration::ZERO,
        };
        if events.send(Event::Stop(grace)).is_err() {
            return;
        }
    }
    let _ = events.send(Event::Stop(ORPHAN_GRACE));
}

/// Reaps children and inherited children until none is left.
fn reap(events: &Sender<Event>) {
    let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    loop {
        let (pid, status) = match wait(WaitOptions::empty()) {
            Ok(Some(ended)) => ended,
            Ok(None) | Err(Errno::INTR) => continue,
            Err(_no_child) => return,
        };
        let is_last = waitid(WaitId::All, peek).is_err_and(|error| error == Errno::CHILD);
        if events.send(Event::Ended { pid, status, is_last }).is_err() || is_last {
            return;
        }
    }
}

/// Waits until no descendant is left. Returns the exit status of the main child and its time in Unix
/// milliseconds.
fn wait_for_all(main: Pid, request: Signal, receiver: &Receiver<Event>) -> Option<(WaitStatus, u64)> {
    let mut exit = None;
    // End of the grace period; none while the main child may continue.
    let mut deadline: Option<Instant> = None;
    let mut interval = KILL_INTERVAL;
    loop {
        let event = match deadline {
            None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => {
                let remaining = at.saturating_duration_since(Instant::now());
                receiver.recv_timeout(if remaining.is_zero() {
                    interval
                } else {
                    remaining.min(WAKE_INTERVAL)
                })
            }
        };
        match event {
            Ok(Event::Ended { pid, status, is_last }) => {
                if pid == main {
                    exit = Some((status, now_millis()));
                }
                if is_last {
                    return exit;
                }
                if pid == main {
                    deadline.get_or_insert_with(|| signal_all(request, DESCENDANT_GRACE));
                }
            }
            Ok(Event::Stop(grace)) => {
                let at = signal_all(request, grace);
                deadline = Some(deadline.map_or(at, |before| before.min(at)));
            }
            Err(RecvTimeoutError::Disconnected) => return exit,
            Err(RecvTimeoutError::Timeout) => {}
        }
        match deadline {
            Some(at) if at <= Instant::now() => {
                signal_all(Signal::KILL, Duration::ZERO);
                // A process that does not end immediately is blocked in the kernel.
                interval = (interval * 2).min(MAX_KILL_INTERVAL);
            }
            Some(_) => continue_stopped(),
            None => {}
        }
    }
}

/// Signals all descendants. Returns the end of the grace period.
fn signal_all(signal: Signal, grace: Duration) -> Instant {
    for process in descendants() {
        procfs::signal(&process, signal);
    }
    Instant::now() + grace
}

/// Continues stopped processes, which would otherwise not handle SIGTERM before they are killed.
fn continue_stopped() {
    for process in descendants().iter().filter(|process| process.state == 'T') {
        procfs::signal(process, Signal::CONT);
    }
}

fn descendants() -> Vec<procfs::Process> {
    procfs::descendants(getpid().as_raw_nonzero().get())
}

fn now_millis() -> u64 {
    ipu_proxy_client::now().as_millis()
}
