//! A supervisor ends everything that its worker started, however it was started and whoever dies first.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

struct Supervisor {
    process: Child,
    orders: UnixStream,
    answers: BufReader<UnixStream>,
    mark: String,
}

impl Supervisor {
    /// A supervisor of a shell that runs `script`, before it was told to go.
    fn of(mark: &str, script: &str) -> Self {
        Self::of_command(mark, &["sh", "-c", script])
    }

    fn of_command(mark: &str, command: &[&str]) -> Self {
        let mark = format!("{mark}-{}", std::process::id());
        let (orders, theirs) = UnixStream::pair().unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_ipuctl"))
            .arg("__supervise")
            .args(command)
            .env("SUPERVISE_TEST", &mark)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(orders.try_clone().unwrap());
        Self {
            process,
            orders,
            answers,
            mark,
        }
    }

    fn order(&mut self, text: &str) {
        writeln!(self.orders, "{text}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Waits until the worker has printed a line.
    fn wait_for_output(&mut self) {
        let mut line = String::new();
        BufReader::new(self.process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
    }

    /// Waits for the supervisor's own end; nothing of its worker may be left then.
    fn end(mut self) {
        self.process.wait().unwrap();
        assert_eq!(left(&self.mark), Vec::<String>::new());
    }
}

/// The command lines of the processes that carry the mark.
fn left(mark: &str) -> Vec<String> {
    let entry = format!("SUPERVISE_TEST={mark}");
    let numbers = std::fs::read_dir("/proc").unwrap().filter_map(|found| {
        let path = found.unwrap().path();
        let environment = std::fs::read(path.join("environ")).ok()?;
        let carries = environment
            .split(|byte| *byte == 0)
            .any(|found| found == entry.as_bytes());
        let command = std::fs::read(path.join("cmdline")).unwrap_or_default();
        carries.then(|| String::from_utf8_lossy(&command).replace('\0', " "))
    });
    numbers.collect()
}

#[test]
fn what_a_worker_leaves_behind_is_ended_however_it_detached_itself() {
    let mut supervisor = Supervisor::of(
        "detached",
        "setsid sh -c 'trap \"\" TERM HUP; sleep 600' & (setsid sh -c 'sleep 600 & sleep 600' &) & exit 3",
    );
    supervisor.order("go");
    assert_eq!(supervisor.answer(), "started");
    assert!(supervisor.answer().starts_with("gone code 3 "));
    supervisor.end();
}

#[test]
fn the_death_of_ipuctl_ends_everything() {
    let mut supervisor = Supervisor::of(
        "orphan",
        "setsid sleep 600 & (setsid sleep 600 &); echo ready; sleep 600",
    );
    supervisor.order("go");
    supervisor.wait_for_output();
    let (left_over, _) = UnixStream::pair().unwrap();
    supervisor.orders.shutdown(std::net::Shutdown::Both).unwrap();
    supervisor.orders = left_over;
    supervisor.end();
}

#[test]
fn a_worker_is_asked_before_it_is_killed() {
    let mut asked = Supervisor::of(
        "asked",
        "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done",
    );
    asked.order("go");
    asked.wait_for_output();
    asked.order("stop 60000");
    assert_eq!(asked.answer(), "started");
    assert!(asked.answer().starts_with("gone code 7 "));
    asked.end();

    let mut deaf = Supervisor::of("deaf", "trap '' TERM; echo ready; while :; do sleep 0.05; done");
    deaf.order("go");
    deaf.wait_for_output();
    deaf.order("stop 30");
    assert_eq!(deaf.answer(), "started");
    assert!(deaf.answer().starts_with("gone signal 9 "));
    deaf.end();
}

#[test]
fn a_stopped_worker_is_asked_too() {
    let mut stopped = Supervisor::of(
        "stopped",
        "trap 'exit 7' TERM; echo ready; kill -STOP $$; while :; do sleep 0.05; done",
    );
    stopped.order("go");
    stopped.wait_for_output();
    stopped.order("stop 60000");
    assert_eq!(stopped.answer(), "started");
    assert!(stopped.answer().starts_with("gone code 7 "));
    stopped.end();
}

#[test]
fn nothing_starts_before_it_is_told_to() {
    let home = tempfile::tempdir().unwrap();
    let trace = home.path().join("trace");
    let supervisor = Supervisor::of_command("early", &["touch", trace.to_str().unwrap()]);
    supervisor.orders.shutdown(std::net::Shutdown::Both).unwrap();
    supervisor.end();
    assert!(!trace.exists());
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let mut supervisor = Supervisor::of_command("missing", &["no-such-program-anywhere"]);
    supervisor.order("go");
    assert_eq!(
        supervisor.answer(),
        "failed 127 cannot start \"no-such-program-anywhere\": No such file or directory (os error 2)"
    );
    supervisor.end();
}
