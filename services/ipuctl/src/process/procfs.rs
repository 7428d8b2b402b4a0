//! Finds processes in `/proc` and signals them. A process with a recycled pid is never signalled.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ipu_allocator::process::{has_ended, marked};
use procfs::process::{Process as ProcProcess, all_processes};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Snapshot of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// Process id; may be reused later.
    pub(crate) pid: i32,
    /// Process id of the parent.
    pub(crate) parent: i32,
    /// Start time in clock ticks since boot; unique together with the pid.
    pub(crate) started: u64,
    /// State of its first thread as a letter, see proc(5).
    pub(crate) state: char,
    /// Whether all its threads have ended, reaped or not.
    pub(crate) has_ended: bool,
}

impl Process {
    fn snapshot(process: &ProcProcess) -> Option<Self> {
        let stat = process.stat().ok()?;
        Some(Self {
            pid: stat.pid,
            parent: stat.ppid,
            started: stat.starttime,
            state: stat.state,
            has_ended: has_ended(&stat),
        })
    }
}

/// Returns the process `pid`.
fn process(pid: i32) -> Option<Process> {
    Process::snapshot(&ProcProcess::new(pid).ok()?)
}

/// Returns the descendants of `root` that have not ended.
pub(crate) fn descendants(root: i32) -> Vec<Process> {
    let mut children: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    let all = all_processes().into_iter().flatten().filter_map(Result::ok);
    for process in all.filter_map(|process| Process::snapshot(&process)) {
        children.entry(process.parent).or_default().push(process);
    }
    let mut descendants = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            parents.push(child.pid);
            if !child.has_ended {
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

/// Kills all processes that use one of `partitions`. Returns their number and whether all have ended.
///
/// A process that starts during a scan of `/proc` has a marked parent, which the same scan finds. So one scan
/// without a result shows that none is left.
pub(crate) fn end_marked(partitions: &BTreeSet<String>, timeout: Duration) -> (usize, bool) {
    let mut killed = BTreeSet::new();
    let deadline = std::time::Instant::now() + timeout;
    loop {
        let found: Result<Vec<_>, _> = partitions.iter().map(|partition| marked(partition)).collect();
        let is_known = found.is_ok();
        let found = found.into_iter().flatten().flatten();
        let remaining: Vec<Process> = found.filter_map(|process| Process::snapshot(&process)).collect();
        if is_known && remaining.is_empty() {
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
