//! Finds processes in `/proc` and signals them. A process with a recycled pid is never signalled.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Environment variable with the partition of a process. It identifies the processes that outlive both
/// `ipuctl` and their supervisor.
pub(crate) const RUN_MARKER: &str = "IPUCTL_PARTITION";

/// Snapshot of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// Process id; may be reused later.
    pub(crate) pid: i32,
    /// Process id of the parent.
    pub(crate) parent: i32,
    /// Start time in clock ticks since boot; unique together with the pid.
    pub(crate) started: u64,
    /// State as a letter, see proc(5).
    pub(crate) state: char,
}

impl Process {
    /// Returns whether the process has ended, but was not reaped.
    pub(crate) const fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// Returns the process `pid`.
pub(crate) fn process(pid: i32) -> Option<Process> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses a line of `/proc/<pid>/stat`. The name in brackets may contain blanks and brackets.
fn parse_stat(text: &str) -> Option<Process> {
    let (pid, rest) = text.split_once(" (")?;
    let (_, rest) = rest.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // Fields of proc(5), from 3 on: state 3, parent 4, start time 22.
    Some(Process {
        pid: pid.parse().ok()?,
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        state: fields.first()?.chars().next()?,
    })
}

/// Returns all visible processes.
fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| process(entry.ok()?.file_name().to_str()?.parse().ok()?))
        .collect()
}

/// Returns the descendants of `root` that have not ended.
pub(crate) fn descendants(root: i32) -> Vec<Process> {
    let mut children: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    for process in all() {
        children.entry(process.parent).or_default().push(process);
    }
    let mut descendants = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            parents.push(child.pid);
            if !child.has_ended() {
                descendants.push(child);
            }
        }
    }
    descendants
}

/// Signals exactly this process. Returns true if it has ended or cannot be signalled, so that waiting is
/// useless.
pub(crate) fn signal(target: &Process, signal: Signal) -> bool {
    let Some(pid) = Pid::from_raw(target.pid) else {
        return true;
    };
    // The start time is compared after the descriptor pins the process, so that the pid cannot be reused in
    // between.
    let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else {
        return true;
    };
    if process(target.pid).is_none_or(|now| now.started != target.started) {
        return true;
    }
    match pidfd_send_signal(&descriptor, signal) {
        Ok(()) => false,
        Err(Errno::SRCH | Errno::PERM) | Err(_) => true,
    }
}

/// Returns the processes of this user with one of `values` in the variable [`RUN_MARKER`].
pub(crate) fn marked(values: &BTreeSet<String>) -> Vec<Process> {
    if values.is_empty() {
        return Vec::new();
    }
    let prefix = format!("{RUN_MARKER}=");
    let is_marked = |process: &Process| {
        let environment = fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| {
            std::str::from_utf8(entry)
                .ok()
                .and_then(|entry| entry.strip_prefix(&prefix))
                .is_some_and(|value| values.contains(value))
        })
    };
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    all()
        .into_iter()
        .filter(|process| process.pid != own && !process.has_ended() && is_marked(process))
        .collect()
}

/// Kills all processes marked with one of `values`. Returns their number and whether all have ended.
///
/// A process that starts during a scan of `/proc` has a marked parent, which the same scan finds. So one scan
/// without a result shows that none is left.
pub(crate) fn end_marked(values: &BTreeSet<String>, timeout: Duration) -> (usize, bool) {
    let mut killed = BTreeSet::new();
    let deadline = std::time::Instant::now() + timeout;
    loop {
        let remaining = marked(values);
        if remaining.is_empty() {
            return (killed.len(), true);
        }
        for process in &remaining {
            killed.insert((process.pid, process.started));
            signal(process, Signal::KILL);
        }
        if std::time::Instant::now() > deadline {
            return (killed.len(), false);
        }
        // The kernel reports no event for the end of a process that is not a child; the pause limits the CPU
        // use.
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_blanks_and_brackets_does_not_shift_the_fields() {
        let line = "42 (a) b (c) S 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 9876 1 2 3\n";
        let expected = Process {
            pid: 42,
            parent: 7,
            started: 9876,
            state: 'S',
        };
        assert_eq!(parse_stat(line), Some(expected));
        assert_eq!(parse_stat("42 (short) S 7"), None);
    }

    #[test]
    fn this_process_is_a_descendant_of_its_parent() {
        let own = process(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(
            descendants(own.parent)
                .iter()
                .any(|process| process.pid == own.pid)
        );
    }

    #[test]
    fn a_process_with_a_recycled_pid_is_never_signalled() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut earlier = process(i32::try_from(child.id()).unwrap()).unwrap();
        earlier.started += 1;
        assert!(signal(&earlier, Signal::KILL));
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
