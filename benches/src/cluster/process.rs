//! A program under measurement.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

/// One that ends with this.
pub struct Process {
    child: Child,
}

/// What it has taken so far.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    /// Seconds of processor time.
    pub cpu: f64,
    /// The most memory that it had resident, in MiB.
    pub peak: f64,
}

impl Process {
    /// Starts it, and waits until it prints a line with `ready`; that line.
    ///
    /// # Panics
    ///
    /// If it ends instead.
    #[must_use]
    pub fn start(mut command: Command, ready: &str) -> (Self, String) {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let line = lines.map_while(Result::ok).find(|line| line.contains(ready));
        (Self { child }, line.expect("the program says that it is ready"))
    }

    /// What it has taken so far.
    ///
    /// # Panics
    ///
    /// If it does not run any more.
    #[must_use]
    pub fn spent(&self) -> Spent {
        let of = |file: &str| {
            std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).expect("it runs")
        };
        let stat = of("stat");
        // Behind the name, which may have any letter in it: user and system time are the 12th and 13th.
        let fields = stat.rsplit(')').next().unwrap_or_default();
        let ticks: f64 = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|ticks| ticks.parse::<f64>().ok())
            .sum();
        let status = of("status");
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .and_then(|line| line.split_whitespace().next())
            .and_then(|kib| kib.parse::<f64>().ok());
        Spent {
            cpu: ticks / 100.0,
            peak: peak.unwrap_or_default() / 1024.0,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
