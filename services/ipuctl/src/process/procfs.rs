//! Finds processes in `/proc` and signals them without ever hitting one that merely got a recycled pid.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The variable that marks every process of a run with the partition that it uses, so that processes that outlived
/// both `ipuctl` and their supervisor can be found.
pub(crate) const RUN_MARKER: &str = "IPUCTL_PARTITION";

/// One process at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// Its number; may be given to another process later.
    pub(crate) pid: i32,
    /// Its parent's number.
    pub(crate) parent: i32,
    /// When it started, in clock ticks since boot: with the pid this names it for good.
    pub(crate) started: u64,
    /// The kernel's letter for its state.
    pub(crate) state: char,
}

impl Process {
    /// Whether it has ended and is only not yet waited for.
    pub(crate) const fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// The process `pid`, if there is one.
pub(crate) fn process(pid: i32) -> Option<Process> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses a line of `/proc/<pid>/stat`. The name in brackets may hold blanks and brackets of its own.
fn parse_stat(text: &str) -> Option<Process> {
    let (pid, rest) = text.split_once(" (")?;
    let (_, rest) = rest.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // proc(5) counts from 1 and these start at field 3: state 3, parent 4, start time 22.
    Some(Process {
        pid: pid.parse().ok()?,
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        state: fields.first()?.chars().next()?,
    })
}

/// Every process that can be seen.
fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| process(entry.ok()?.file_name().to_str()?.parse().ok()?))
        .collect()
}

/// The processes below `root`, ended ones left out.
pub(crate) fn descendants(root: i32) -> Vec<Process> {
    let mut children: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    for process in all() {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut from = vec![root];
    while let Some(parent) = from.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            from.push(child.pid);
            if !child.has_ended() {
                found.push(child);
            }
        }
    }
    found
}

/// Signals exactly this process; true if it is gone or may not be signalled, so that there is nothing to wait for.
pub(crate) fn signal(target: &Process, signal: Signal) -> bool {
    let Some(pid) = Pid::from_raw(target.pid) else {
        return true;
    };
    // The descriptor pins the process; only then is it compared with what was seen, so that the number cannot have
    // been given to another one in between.
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

/// The processes of this user that carry one of `values` in the variable [`RUN_MARKER`].
pub(crate) fn marked(values: &BTreeSet<String>) -> Vec<Process> {
    if values.is_empty() {
        return Vec::new();
    }
    let prefix = format!("{RUN_MARKER}=");
    let carries = |process: &Process| {
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
        .filter(|process| process.pid != own && !process.has_ended() && carries(process))
        .collect()
}

/// Kills every process marked with one of `values`; returns how many there were, and whether all are gone.
///
/// A process that is born while `/proc` is read has a marked parent, which this very reading finds: one reading that
/// finds nothing proves that nothing is left.
pub(crate) fn end_marked(values: &BTreeSet<String>, patience: Duration) -> (usize, bool) {
    let mut seen = BTreeSet::new();
    let until = std::time::Instant::now() + patience;
    loop {
        let found = marked(values);
        if found.is_empty() {
            return (seen.len(), true);
        }
        for process in &found {
            seen.insert((process.pid, process.started));
            signal(process, Signal::KILL);
        }
        if std::time::Instant::now() > until {
            return (seen.len(), false);
        }
        // The kernel gives no event for the end of a process that is not a child; the pause only keeps the loop cool.
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
    fn this_process_is_found_below_its_parent() {
        let own = process(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(
            descendants(own.parent)
                .iter()
                .any(|process| process.pid == own.pid)
        );
    }

    #[test]
    fn a_recycled_number_is_never_signalled() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut seen = process(i32::try_from(child.id()).unwrap()).unwrap();
        seen.started += 1;
        assert!(signal(&seen, Signal::KILL));
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
