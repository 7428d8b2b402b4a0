//! A supervisor ends all processes that its worker started, also detached ones.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

struct Supervisor {
    process: Child,
    orders: UnixStream,
    messages: BufReader<UnixStream>,
    marker: String,
}

impl Supervisor {
    /// Starts a supervisor of a shell that runs `script`; it waits for `go`.
    fn of(marker: &str, script: &str) -> Self {
        Self::of_command(marker, &["sh", "-c", script])
    }

    fn of_command(marker: &str, command: &[&str]) -> Self {
        let marker = format!("{marker}-{}", std::process::id());
        let (orders, supervisor_end) = UnixStream::pair().unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_ipuctl"))
            .arg("__supervise")
            .args(command)
            .env("SUPERVISE_TEST", &marker)
            .stdin(Stdio::from(OwnedFd::from(supervisor_end)))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let messages = BufReader::new(orders.try_clone().unwrap());
        Self {
            process,
            orders,
            messages,
            marker,
        }
    }

    fn order(&mut self, text: &str) {
        writeln!(self.orders, "{text}").unwrap();
    }

    fn message(&mut self) -> String {
        let mut line = String::new();
        self.messages.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Waits for the line `ready` of the worker.
    fn wait_for_output(&mut self) {
        let mut line = String::new();
        BufReader::new(self.process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
    }

    /// Waits for the end of the supervisor, and asserts that no process of its worker is left.
    fn end(mut self) {
        self.process.wait().unwrap();
        assert_eq!(marked_processes(&self.marker), Vec::<String>::new());
    }
}

/// Returns the command lines of the processes with the marker.
fn marked_processes(marker: &str) -> Vec<String> {
    let entry = format!("SUPERVISE_TEST={marker}");
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(|process| {
        let path = process.unwrap().path();
        let environment = std::fs::read(path.join("environ")).ok()?;
        let is_marked = environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == entry.as_bytes());
        let command = std::fs::read(path.join("cmdline")).unwrap_or_default();
        is_marked.then(|| String::from_utf8_lossy(&command).replace('\0', " "))
    });
    processes.collect()
}

#[test]
fn detached_processes_of_a_worker_are_ended() {
    let mut supervisor = Supervisor::of(
        "detached",
        "setsid sh -c 'trap \"\" TERM HUP; sleep 600' & (setsid sh -c 'sleep 600 & sleep 600' &) & exit 3",
    );
    supervisor.order("go");
    assert_eq!(supervisor.message(), "started");
    assert!(supervisor.message().starts_with("gone code 3 "));
    supervisor.end();
}

#[test]
fn the_end_of_ipuctl_ends_all_processes() {
    let mut supervisor = Supervisor::of(
        "orphan",
        "setsid sleep 600 & (setsid sleep 600 &); echo ready; sleep 600",
    );
    supervisor.order("go");
    supervisor.wait_for_output();
    let (replacement, _) = UnixStream::pair().unwrap();
    supervisor.orders.shutdown(std::net::Shutdown::Both).unwrap();
    supervisor.orders = replacement;
    supervisor.end();
}

#[test]
fn a_worker_is_terminated_before_it_is_killed() {
    let mut graceful = Supervisor::of(
        "graceful",
        "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done",
    );
    graceful.order("go");
    graceful.wait_for_output();
    graceful.order("stop 60000");
    assert_eq!(graceful.message(), "started");
    assert!(graceful.message().starts_with("gone code 7 "));
    graceful.end();

    let mut ignoring = Supervisor::of(
        "ignoring",
        "trap '' TERM; echo ready; while :; do sleep 0.05; done",
    );
    ignoring.order("go");
    ignoring.wait_for_output();
    ignoring.order("stop 30");
    assert_eq!(ignoring.message(), "started");
    assert!(ignoring.message().starts_with("gone signal 9 "));
    ignoring.end();
}

#[test]
fn a_stopped_worker_is_terminated_too() {
    let mut stopped = Supervisor::of(
        "stopped",
        "trap 'exit 7' TERM; echo ready; kill -STOP $$; while :; do sleep 0.05; done",
    );
    stopped.order("go");
    stopped.wait_for_output();
    stopped.order("stop 60000");
    assert_eq!(stopped.message(), "started");
    assert!(stopped.message().starts_with("gone code 7 "));
    stopped.end();
}

#[test]
fn the_worker_starts_after_go_only() {
    let home = tempfile::tempdir().unwrap();
    let trace = home.path().join("trace");
    let supervisor = Supervisor::of_command("early", &["touch", trace.to_str().unwrap()]);
    supervisor.orders.shutdown(std::net::Shutdown::Both).unwrap();
    supervisor.end();
    assert!(!trace.exists());
}

#[test]
fn a_missing_program_is_named() {
    let mut supervisor = Supervisor::of_command("missing", &["no-such-program-anywhere"]);
    supervisor.order("go");
    assert_eq!(
        supervisor.message(),
        "failed 127 cannot start \"no-such-program-anywhere\": No such file or directory (os error 2)"
    );
    supervisor.end();
}
