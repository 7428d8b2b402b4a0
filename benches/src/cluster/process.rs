//! A measured process.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

/// A process that is killed on drop.
pub struct Process {
    child: Child,
}

/// CPU time and memory of a process.
#[derive(Clone, Copy, Debug)]
pub struct ResourceUsage {
    /// CPU time in seconds.
    pub cpu: f64,
    /// Peak resident memory, in MiB.
    pub peak: f64,
}

impl Process {
    /// Starts the program and waits until it prints a line with `ready`. Returns the process and that line.
    ///
    /// # Panics
    ///
    /// If the program ends first.
    #[must_use]
    pub fn start(mut command: Command, ready: &str) -> (Self, String) {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let line = lines.map_while(Result::ok).find(|line| line.contains(ready));
        (Self { child }, line.expect("the program prints its ready line"))
    }

    /// CPU time and memory of a process.
    ///
    /// # Panics
    ///
    /// If the process has ended.
    #[must_use]
    pub fn usage(&self) -> ResourceUsage {
        let read_proc = |file: &str| {
            std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).expect("the process runs")
        };
        let stat = read_proc("stat");
        // After the name, which may contain any character: user and system time are the 12th and 13th
        // fields after it.
        let fields = stat.rsplit(')').next().unwrap_or_default();
        let ticks: f64 = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|ticks| ticks.parse::<f64>().ok())
            .sum();
        let status = read_proc("status");
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .and_then(|line| line.split_whitespace().next())
            .and_then(|kib| kib.parse::<f64>().ok());
        ResourceUsage {
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
