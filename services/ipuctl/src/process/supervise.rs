//! `ipuctl __supervise`: the parent of one worker. It is a child subreaper, so that whatever the worker starts, however
//! it detaches itself, ends up below it; and it sees the end of the socket when `ipuctl` dies, by kill -9 too.
//!
//! One line a message over the socket on standard input. From `ipuctl`: `go`, `stop <grace millis>`, `kill`. To it:
//! `started`, `failed <code> <why>`, `gone code|signal <n> <unix millis>`. Nothing is started before `go`: an `ipuctl` that
//! dies while it starts the supervisor leaves none that `/proc` does not show with its marker.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpid, set_child_subreaper, wait, waitid,
};

use super::procfs;

/// How long the rest of a worker may take to end by itself when nobody is left to say how long.
const ORPHAN_GRACE: Duration = Duration::from_secs(2);
/// How long processes that a worker left behind may take to end by themselves.
const OUTPUT_GRACE: Duration = Duration::from_secs(2);
/// The first pause between two rounds of killing: a process may fork between two looks.
const KILL_INTERVAL: Duration = Duration::from_millis(5);
/// The longest such pause.
const MAX_KILL_INTERVAL: Duration = Duration::from_secs(1);

/// How often it is looked for stopped processes among those that were asked to end.
const WAKE_INTERVAL: Duration = Duration::from_millis(100);

enum Event {
    /// A child, own or inherited, has ended.
    Ended {
        pid: Pid,
        status: WaitStatus,
        /// Whether there is no child any more, hence no descendant either.
        alone: bool,
    },
    /// End everything, killing what is left after this time.
    Stop(Duration),
}

/// Runs `command` until it and everything that it started has ended. `--terminal` as the first argument leaves the
/// command in this process group and with the terminal as its input.
pub(crate) fn main(mut arguments: Vec<OsString>) -> ExitCode {
    let terminal = arguments.first().is_some_and(|first| first == "--terminal");
    if terminal {
        arguments.remove(0);
    }
    match supervise(&arguments, terminal) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_parent_is_gone_or_kernel_refuses) => ExitCode::FAILURE,
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
    // Ignored when the parent has died: the thread below sees that as well.
    let _ = writeln!(socket, "started");
    let (events, incoming) = channel();
    let to_loop = events.clone();
    std::thread::spawn(move || listen(orders, &to_loop));
    std::thread::spawn(move || reap(&events));
    // An interactive shell ignores SIGTERM, and on SIGHUP gives the terminal back before it ends.
    let request = if terminal { Signal::HUP } else { Signal::TERM };
    let Some((status, at)) = until_alone(main, request, &incoming) else {
        return writeln!(socket, "failed 126 its end was not seen");
    };
    let gone = match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("gone code {code}"),
        (None, signal) => format!("gone signal {}", signal.unwrap_or(0)),
    };
    writeln!(socket, "{gone} {at}")
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

/// Passes orders on; the end of the socket is one.
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

/// Reaps own and inherited children until there is none.
fn reap(events: &Sender<Event>) {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    loop {
        let (pid, status) = match wait(WaitOptions::empty()) {
            Ok(Some(ended)) => ended,
            Ok(None) | Err(Errno::INTR) => continue,
            Err(_no_child) => return,
        };
        let alone = waitid(WaitId::All, look).is_err_and(|error| error == Errno::CHILD);
        if events.send(Event::Ended { pid, status, alone }).is_err() || alone {
            return;
        }
    }
}

/// Waits until nothing is left; answers how the main child ended, and when (Unix milliseconds).
fn until_alone(main: Pid, request: Signal, incoming: &Receiver<Event>) -> Option<(WaitStatus, u128)> {
    let mut ended = None;
    // When patience ends and killing begins; none while the main child may run on.
    let mut deadline: Option<Instant> = None;
    let mut pause = KILL_INTERVAL;
    loop {
        let event = match deadline {
            None => incoming.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => {
                let left = at.saturating_duration_since(Instant::now());
                incoming.recv_timeout(if left.is_zero() {
                    pause
                } else {
                    left.min(WAKE_INTERVAL)
                })
            }
        };
        match event {
            Ok(Event::Ended { pid, status, alone }) => {
                if pid == main {
                    ended = Some((status, now_millis()));
                }
                if alone {
                    return ended;
                }
                if pid == main {
                    deadline.get_or_insert_with(|| end_all(request, OUTPUT_GRACE));
                }
            }
            Ok(Event::Stop(grace)) => {
                let at = end_all(request, grace);
                deadline = Some(deadline.map_or(at, |before| before.min(at)));
            }
            Err(RecvTimeoutError::Disconnected) => return ended,
            Err(RecvTimeoutError::Timeout) => {}
        }
        match deadline {
            Some(at) if at <= Instant::now() => {
                end_all(Signal::KILL, Duration::ZERO);
                // What does not end at once is stuck in the kernel; it is waited for, but not at full speed.
                pause = (pause * 2).min(MAX_KILL_INTERVAL);
            }
            Some(_) => wake_stopped(),
            None => {}
        }
    }
}

/// Signals every descendant; answers when the grace ends.
fn end_all(signal: Signal, grace: Duration) -> Instant {
    for process in descendants() {
        procfs::signal(&process, signal);
    }
    Instant::now() + grace
}

/// Lets stopped processes go on: they would otherwise see the request to end only when they are killed.
fn wake_stopped() {
    for process in descendants().iter().filter(|process| process.state == 'T') {
        procfs::signal(process, Signal::CONT);
    }
}

fn descendants() -> Vec<procfs::Process> {
    procfs::descendants(getpid().as_raw_nonzero().get())
}

fn now_millis() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis()
}
