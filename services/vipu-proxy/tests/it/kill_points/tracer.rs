//! `strace`, which counts the system calls of a process or kills it at one of them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

/// Calls whose effect others can observe. The question mark lets `strace` ignore names that the architecture
/// does not have.
const CALLS: [&str; 12] = [
    "?write",
    "?pwrite64",
    "?writev",
    "?fsync",
    "?fdatasync",
    "?ftruncate",
    "?rename",
    "?renameat2",
    "?unlink",
    "?connect",
    "?sendto",
    "?sendmsg",
];

/// The call of this kind, counted from 1, at which a process is killed before the call has an effect.
#[derive(Clone)]
pub(super) struct Injection {
    call: String,
    number: u32,
}

impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.call, self.number)
    }
}

pub(super) enum Tracing {
    None,
    /// Writes the calls into this file.
    Count(PathBuf),
    Kill(Injection),
}

impl Tracing {
    /// Returns `strace` without its program.
    pub(super) fn command(&self) -> Command {
        let mut strace = Command::new("strace");
        strace.arg("-f");
        match self {
            Self::None => {}
            Self::Count(file) => {
                strace
                    .arg(format!("--trace={}", CALLS.join(",")))
                    .arg("-o")
                    .arg(file);
            }
            Self::Kill(Injection { call, number }) => {
                strace.arg(format!("--trace={call}")).args(["-o", "/dev/null"]);
                strace.arg(format!("--inject={call}:signal=KILL:when={number}"));
            }
        }
        strace
    }

    /// Returns a command that traces `program` from its start. The process is a child of the caller.
    pub(super) fn start(&self, program: &str) -> Command {
        if matches!(self, Self::None) {
            return Command::new(program);
        }
        let mut strace = self.command();
        strace.args(["-D", "--", program]);
        strace
    }

    /// Traces the running process `pid` from now on, until it ends.
    pub(super) async fn attach(&self, pid: u32) {
        let mut strace = self.command();
        let mut strace = strace
            .args(["-p", &pid.to_string()])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut messages = BufReader::new(strace.stderr.take().unwrap()).lines();
        let attached = messages.next_line().await.unwrap().unwrap_or_default();
        assert!(attached.contains(" attached"), "{attached}");
        tokio::spawn(async move {
            while let Ok(Some(_)) = messages.next_line().await {}
            strace.wait().await.ok();
        });
    }
}

/// Returns the trace of a process that has ended, when the tracer has written the end.
pub(super) async fn complete(trace: &Path) -> String {
    loop {
        let text = std::fs::read_to_string(trace).unwrap();
        if text.lines().last().is_some_and(|line| line.ends_with("+++")) && text.ends_with('\n') {
            return text;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Returns one injection for each call in a trace.
pub(super) fn injections(trace: &str) -> Vec<Injection> {
    let mut counts: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for line in trace.lines() {
        let Some((thread, rest)) = line.split_once(' ') else {
            continue;
        };
        // Signals, exits and the second half of interrupted calls have no name here.
        let call = rest.trim_start().split('(').next().unwrap_or_default();
        if CALLS.iter().any(|traced| traced.trim_start_matches('?') == call) {
            *counts.entry((call, thread)).or_default() += 1;
        }
    }
    let mut most: BTreeMap<&str, u32> = BTreeMap::new();
    for ((call, _), count) in counts {
        let most = most.entry(call).or_default();
        *most = count.max(*most);
    }
    let injections = |(call, count): (&str, u32)| {
        let call = call.to_owned();
        (1..=count).map(move |number| Injection {
            call: call.clone(),
            number,
        })
    };
    most.into_iter().flat_map(injections).collect()
}

/// Returns whether `test` can run here.
#[expect(clippy::print_stdout, reason = "a skipped test prints the reason")]
pub(super) fn is_available(test: &str) -> bool {
    let is_installed = std::process::Command::new("strace").arg("-V").output().is_ok();
    // Yama lets only root trace processes other than its children.
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let may_attach = rustix::process::geteuid().is_root() || matches!(scope.trim(), "" | "0");
    let is_available = is_installed && may_attach;
    assert!(
        is_available || std::env::var_os("CI").is_none(),
        "{test} needs strace, and root"
    );
    if !is_available {
        println!("skipped: {test}: it needs strace, and root");
    }
    is_available
}

#[test]
fn a_trace_has_a_point_for_each_call_of_the_busiest_thread_of_its_kind() {
    let trace = "10 write(1, \"write(\", 6) = 6\n\
                 11 write(3, \"\\1\", 8 <unfinished ...>\n\
                 10 fsync(4)                        = 0\n\
                 11 <... write resumed>) = 8\n\
                 11  write(3, \"\\1\", 8) = 8\n\
                 11 --- SIGTERM {si_signo=SIGTERM} ---\n\
                 10 +++ exited with 0 +++\n";
    let points: Vec<_> = injections(trace).iter().map(ToString::to_string).collect();
    assert_eq!(points, ["fsync 1", "write 1", "write 2"]);
}
