//! Processes of this host as holders of partitions: their identity, and their liveness.
//!
//! A scheduler whose jobs end with a process sets [`Request::holder`](ipu_core::allocator::Request::holder)
//! to the text of a [`ProcessHolder`], and [`Options::liveness`](crate::Options::liveness) to
//! [`ProcessLiveness`]. The partition of a killed process is then released, even if its parent never reaps it
//! or the host reboots.
//!
//! ```
//! use ipu_allocator::process::ProcessHolder;
//! use ipu_core::allocator::OwnerLiveness;
//!
//! let mut child = std::process::Command::new("sleep").arg("600").spawn()?;
//! let holder = ProcessHolder::of(child.id())?;
//! assert_eq!(holder.liveness(), OwnerLiveness::Live);
//! child.kill()?;
//! child.wait()?;
//! assert_eq!(holder.to_string().parse::<ProcessHolder>()?.liveness(), OwnerLiveness::Dead);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::{self, Read as _};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use ipu_core::PartitionId;
use ipu_core::allocator::{Entry, OwnerLiveness};
use ipu_core::render::IpuofEnv;
use procfs::ProcError;
use procfs::process::{Process, Stat};
use tokio::sync::{Mutex, oneshot};

use crate::liveness::Liveness;

/// Environment variable with the id of a partition, for processes that a scheduler may end.
pub const PARTITION_MARKER: &str = "IPUCTL_PARTITION";

/// Prefix of the text form.
const HOLDER_PREFIX: &str = "process:";

/// Identity of a process, unique within all boots and pid namespaces of a host. The text form is
/// `process:BOOT_ID:PID_NAMESPACE:PID:START_TIME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessHolder {
    boot: String,
    /// Inode of the pid namespace.
    namespace: u64,
    pid: u32,
    /// Start time in clock ticks since boot.
    started: u64,
}

/// Error of a text that is not a process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a process: a process is `process:BOOT_ID:PID_NAMESPACE:PID:START_TIME`")]
#[non_exhaustive]
pub struct InvalidProcess {
    /// The rejected text.
    pub text: String,
}

impl ProcessHolder {
    /// Returns the identity of the process `pid` of this pid namespace.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::NotFound`] if there is no such process, and errors of `/proc`.
    pub fn of(pid: u32) -> io::Result<Self> {
        let gone = || io::Error::new(io::ErrorKind::NotFound, format!("there is no process {pid}"));
        let started = start_time(pid).map_err(io::Error::other)?.ok_or_else(gone)?;
        Ok(Self {
            boot: boot()?,
            namespace: namespace()?,
            pid,
            started,
        })
    }

    /// Returns the identity of this process.
    ///
    /// # Errors
    ///
    /// As [`of`](Self::of).
    pub fn own() -> io::Result<Self> {
        Self::of(std::process::id())
    }

    /// Process id.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns whether the process is of the present boot of this host. Another boot may be an earlier one,
    /// or that of another host.
    #[must_use]
    pub fn is_of_this_boot(&self) -> bool {
        boot().is_ok_and(|boot| boot == self.boot)
    }

    /// Returns whether the process runs: [`OwnerLiveness::Dead`] if it has ended, even if its parent has not
    /// reaped it, and [`OwnerLiveness::Unknown`] if it belongs to another pid namespace.
    ///
    /// ```
    /// use ipu_allocator::process::ProcessHolder;
    /// use ipu_core::allocator::OwnerLiveness;
    ///
    /// let mut job = std::process::Command::new("sleep").arg("60").spawn()?;
    /// let holder = ProcessHolder::of(job.id())?;
    /// assert_eq!(holder.liveness(), OwnerLiveness::Live);
    /// job.kill()?;
    /// job.wait()?;
    /// // The text of the process outlives this one: record it as the holder of a request.
    /// let holder: ProcessHolder = holder.to_string().parse()?;
    /// assert_eq!(holder.liveness(), OwnerLiveness::Dead);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn liveness(&self) -> OwnerLiveness {
        let (Ok(boot), Ok(namespace)) = (boot(), namespace()) else {
            return OwnerLiveness::Unknown;
        };
        if self.boot != boot {
            return OwnerLiveness::Dead;
        }
        if self.namespace != namespace {
            return OwnerLiveness::Unknown;
        }
        match start_time(self.pid) {
            Ok(Some(started)) if started == self.started => OwnerLiveness::Live,
            Ok(_) => OwnerLiveness::Dead,
            Err(_) => OwnerLiveness::Unknown,
        }
    }
}

/// The liveness of owners whose holder is a [`ProcessHolder`]. It is [`OwnerLiveness::Unknown`] as long as
/// processes have outlived the holder that have the partition in [`PARTITION_MARKER`] or
/// [`IpuofEnv::PARTITION`], and for any other owner.
///
/// All holders of the record must be processes of one host: a process of another host looks like one of an
/// earlier boot, which is dead. Run it as root if jobs run as several users, so that it sees their
/// variables.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessLiveness;

/// The last scan for a [`ProcessLiveness`], locked while the next one is under way.
static LAST_SCAN: Mutex<Option<Arc<Scan>>> = Mutex::const_new(None);

#[async_trait]
impl Liveness for ProcessLiveness {
    async fn liveness_of(&self, entry: &Entry) -> OwnerLiveness {
        let Ok(holder) = entry.holder.parse::<ProcessHolder>() else {
            return OwnerLiveness::Unknown;
        };
        let liveness = holder.liveness();
        if liveness != OwnerLiveness::Dead {
            return liveness;
        }
        let ended = Instant::now();
        let mut last = LAST_SCAN.lock().await;
        let scan = match last.clone().filter(|scan| scan.begun >= ended) {
            Some(scan) => Some(scan),
            None => {
                // On a thread of its own: it does not end while a process hangs in the kernel.
                let (send, scanned) = oneshot::channel();
                let scan = move || {
                    let scan = Arc::new(Scan::take());
                    *last = Some(Arc::clone(&scan));
                    let _ = send.send(scan);
                };
                let _ = std::thread::Builder::new().spawn(scan);
                scanned.await.ok()
            }
        };
        scan.map_or(OwnerLiveness::Unknown, |scan| {
            scan.liveness_without_holder(&entry.id)
        })
    }
}

/// A look at all processes.
struct Scan {
    begun: Instant,
    /// The values of [`PARTITION_MARKER`] and [`IpuofEnv::PARTITION`]; none if a process could not be read.
    partitions: Option<BTreeSet<Vec<u8>>>,
}

impl Scan {
    fn take() -> Self {
        let begun = Instant::now();
        let mut values = BTreeSet::new();
        let variables = [PARTITION_MARKER, IpuofEnv::PARTITION];
        let unread = each_process(&variables, |_, found| values.extend(found));
        let partitions = unread.and_then(|unread| unread.map_or(Ok(values), Err));
        let partitions = partitions.map_err(|error| {
            tracing::warn!(%error, "cannot read all processes: partitions of ended holders are kept");
        });
        Self {
            begun,
            partitions: partitions.ok(),
        }
    }

    /// Returns the liveness of an owner whose holder has ended.
    fn liveness_without_holder(&self, partition: &PartitionId) -> OwnerLiveness {
        match &self.partitions {
            Some(partitions) if !partitions.contains(partition.as_str().as_bytes()) => OwnerLiveness::Dead,
            _ => OwnerLiveness::Unknown,
        }
    }
}

/// Returns the running processes, except this one, with `partition` in the variable [`PARTITION_MARKER`].
/// Processes of other users are visible to root only.
///
/// # Errors
///
/// Errors of `/proc`, such as too many open files: it is not known then which processes there are.
pub fn marked(partition: &str) -> Result<Vec<Process>, ProcError> {
    let mut found = Vec::new();
    let unread = each_process(&[PARTITION_MARKER], |process, values| {
        if values.iter().any(|value| value == partition.as_bytes()) {
            found.push(process);
        }
    })?;
    match unread {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

/// Passes each running process, except this one, to `visit` with its values of the variables. Returns the
/// error of a process that could not be read.
fn each_process(
    variables: &[&str],
    mut visit: impl FnMut(Process, Vec<Vec<u8>>),
) -> Result<Option<ProcError>, ProcError> {
    let mut seen = BTreeSet::from([std::process::id().cast_signed()]);
    let mut unread = None;
    // A process that ended before it was read may have started another one after the list was made.
    for _ in 0..2 {
        for process in procfs::process::all_processes()? {
            let read = process.and_then(|process| {
                let is_new = seen.insert(process.pid);
                let values = if is_new {
                    values_of(&process, variables)?
                } else {
                    Vec::new()
                };
                Ok((process, values))
            });
            match read {
                Ok((process, values)) => visit(process, values),
                Err(error) => unread = unread_error(error).or(unread),
            }
        }
    }
    Ok(unread)
}

/// Returns the values of the variables of a process. Waits while it begins a program, by execve(2), or ends:
/// its variables cannot be read then.
fn values_of(process: &Process, variables: &[&str]) -> Result<Vec<Vec<u8>>, ProcError> {
    /// Flag of a thread of the kernel, which has no program.
    const PF_KTHREAD: u32 = 0x0020_0000;
    let value = |text: &[u8]| {
        let value = variables
            .iter()
            .find_map(|name| text.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        value.map(<[u8]>::to_vec)
    };
    let (begun, mut first) = (Instant::now(), None);
    loop {
        let stat = process.stat()?;
        if has_ended(&stat) || stat.flags & PF_KTHREAD != 0 {
            return Ok(Vec::new());
        }
        let (mut seen, mut ended) = (None, 0);
        // All threads have the same variables, and the first may have ended.
        for task in process.tasks()? {
            match task.and_then(|task| Variables::read(process, task.tid)) {
                Ok(Some(variables)) => {
                    seen = Some(variables);
                    break;
                }
                Ok(None) => ended += 1,
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let is_late = begun.elapsed() > Duration::from_secs(1);
        match conclusion(seen.as_ref(), first, ended, stat.num_threads, is_late) {
            Conclusion::Read => {
                let text = seen.map(|seen| seen.text).unwrap_or_default();
                return Ok(text.split(|byte| *byte == 0).filter_map(value).collect());
            }
            Conclusion::Unreadable => return Err(ProcError::Incomplete(None)),
            Conclusion::LookAgain => first = first.or(seen.map(|seen| seen.program)),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The result of a look at the variables of a process.
#[derive(Debug, PartialEq, Eq)]
enum Conclusion {
    Read,
    LookAgain,
    Unreadable,
}

/// `first` is the program at the first look. If all `threads` have `ended`, a tracer has not reaped them.
fn conclusion(
    seen: Option<&Variables>,
    first: Option<Program>,
    ended: i64,
    threads: i64,
    is_late: bool,
) -> Conclusion {
    match seen {
        Some(seen) if seen.are_whole => Conclusion::Read,
        _ if !is_late => Conclusion::LookAgain,
        // A part of the variables may be unreadable for good. Without code, the process ends: devices may
        // still be open.
        Some(seen) if first == Some(seen.program) && seen.program[0] != 0 => Conclusion::Read,
        None if ended > 0 && ended == threads => Conclusion::Read,
        _ => Conclusion::Unreadable,
    }
}

/// Start of the code, of the stack and of the variables, and their end: they tell programs apart.
type Program = [u64; 4];

/// The variables of a process as one of its threads shows them.
struct Variables {
    text: Vec<u8>,
    are_whole: bool,
    program: Program,
}

impl Variables {
    /// Returns none if the thread has ended.
    fn read(process: &Process, tid: i32) -> Result<Option<Self>, ProcError> {
        /// Bytes that a program can have as arguments and variables: three quarters of the largest stack for
        /// them, see execve(2).
        const MAX_LEN: u64 = 6 << 20;
        let stat = || process.read::<_, Stat>(format!("task/{tid}/stat"));
        let program = |stat: &Stat| {
            let (start, end) = (stat.env_start.unwrap_or(0), stat.env_end.unwrap_or(0));
            [stat.startcode, stat.startstack, start, end]
        };
        let before = stat()?;
        if is_ended(&before) {
            return Ok(None);
        }
        let before = program(&before);
        let len = before[3].saturating_sub(before[2]);
        let mut text = vec![0; usize::try_from(len.min(MAX_LEN)).unwrap_or(0) + 1];
        let mut file = process.open_relative(format!("task/{tid}/environ"))?;
        // One call: a program that begins between two calls removes the variables of the one before.
        let count = file.read(&mut text)?;
        text.truncate(count);
        let program = program(&stat()?);
        Ok(Some(Self {
            are_whole: are_whole(before, program, count),
            text,
            program,
        }))
    }
}

/// Returns whether `count` bytes are all variables of a program. While a program begins, the range is empty
/// until all variables are there, and the start of the code is zero until later.
fn are_whole(before: Program, after: Program, count: usize) -> bool {
    let [code, _, start, end] = after;
    after == before && u64::try_from(count) == Ok(end.saturating_sub(start)) && (count > 0 || code != 0)
}

/// Returns whether the error is that of a process that has ended.
fn is_gone(error: &ProcError) -> bool {
    match error {
        ProcError::NotFound(_) => true,
        ProcError::Io(error, _) => error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()),
        _ => false,
    }
}

/// Returns the error unless the process has ended or is of another user.
fn unread_error(error: ProcError) -> Option<ProcError> {
    match error {
        ProcError::PermissionDenied(_) => None,
        error if is_gone(&error) => None,
        error => Some(error),
    }
}

/// Returns whether all threads of a process have ended, even if its parent has not reaped it.
#[must_use]
pub const fn has_ended(stat: &Stat) -> bool {
    // Without a thread, the process was reaped during the look, or another thread of it begins a program.
    is_ended(stat) && stat.num_threads == 1
}

/// Returns whether a thread has ended.
const fn is_ended(stat: &Stat) -> bool {
    matches!(stat.state, 'Z' | 'X')
}

/// Returns whether the innermost pid namespace of the process is that of this process. A [`ProcessHolder`] of
/// another namespace is of unknown liveness.
#[must_use]
pub fn is_in_own_namespace(pid: u32) -> bool {
    let status = i32::try_from(pid)
        .ok()
        .and_then(|pid| Process::new(pid).ok()?.status().ok());
    // One id for each namespace from that of `/proc` to the innermost.
    status.is_some_and(|status| status.nspid.is_none_or(|ids| ids.len() == 1))
}

/// Returns the start time of a running process; none if there is no such process.
fn start_time(pid: u32) -> Result<Option<u64>, ProcError> {
    let Ok(pid) = i32::try_from(pid) else {
        return Ok(None);
    };
    loop {
        match Process::new(pid).and_then(|process| process.stat()) {
            Ok(stat) if has_ended(&stat) => return Ok(None),
            // It was reaped, or begins a program: the next look shows which.
            Ok(stat) if stat.num_threads == 0 => std::thread::yield_now(),
            Ok(stat) => return Ok(Some(stat.starttime)),
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

fn boot() -> io::Result<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(id.trim().to_owned())
}

/// Returns the inode of the pid namespace of this process.
fn namespace() -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    Ok(fs::metadata("/proc/self/ns/pid")?.ino())
}

impl fmt::Display for ProcessHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            boot,
            namespace,
            pid,
            started,
        } = self;
        write!(f, "{HOLDER_PREFIX}{boot}:{namespace}:{pid}:{started}")
    }
}

impl FromStr for ProcessHolder {
    type Err = InvalidProcess;

    fn from_str(text: &str) -> Result<Self, InvalidProcess> {
        let parsed = || {
            let mut parts = text.strip_prefix(HOLDER_PREFIX)?.split(':');
            let holder = Self {
                boot: parts.next().filter(|boot| !boot.is_empty())?.to_owned(),
                namespace: parts.next()?.parse().ok()?,
                pid: parts.next()?.parse().ok()?,
                started: parts.next()?.parse().ok()?,
            };
            parts.next().is_none().then_some(holder)
        };
        parsed().ok_or_else(|| InvalidProcess { text: text.into() })
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use ipu_core::allocator::{Event, Hardware, Policy, Request, State, step};
    use ipu_core::hardware::PartitionSpec;
    use ipu_core::{IpuCount, JobKey, Owner, Timestamp};
    use procfs::FromRead as _;

    use super::*;

    fn is_marked(process: &Process) -> bool {
        values_of(process, &[PARTITION_MARKER]).is_ok_and(|values| values == [b"a"])
    }

    #[test]
    fn the_text_form_is_parsed_again() {
        let own = ProcessHolder::own().unwrap();
        assert_eq!(own.to_string().parse(), Ok(own));
        for text in ["", "process:", "process:b:1:2", "process:b:1:2:3:4", "lease:1:2"] {
            assert!(text.parse::<ProcessHolder>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_running_process_is_live_and_a_recycled_pid_is_dead() {
        let own = ProcessHolder::own().unwrap();
        assert_eq!(own.liveness(), OwnerLiveness::Live);
        let recycled = ProcessHolder {
            started: own.started + 1,
            ..own.clone()
        };
        assert_eq!(recycled.liveness(), OwnerLiveness::Dead);
        let before_reboot = ProcessHolder {
            boot: "another".into(),
            ..own.clone()
        };
        assert_eq!(before_reboot.liveness(), OwnerLiveness::Dead);
        assert!(own.is_of_this_boot());
        assert!(!before_reboot.is_of_this_boot());
        assert!(is_in_own_namespace(own.pid()));
        assert!(!is_in_own_namespace(u32::MAX), "there is no such process");
    }

    #[test]
    fn a_zombie_is_dead() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let holder = ProcessHolder::of(child.id()).unwrap();
        child.kill().unwrap();
        while holder.liveness() == OwnerLiveness::Live {
            std::thread::yield_now();
        }
        assert_eq!(holder.liveness(), OwnerLiveness::Dead);
        child.wait().unwrap();
        assert_eq!(holder.liveness(), OwnerLiveness::Dead);
        assert_eq!(
            ProcessHolder::of(child.id()).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    /// Kills the process after some looks at it. Returns the first that did not show it as live and marked.
    fn other_look(mut child: Child, looks: usize) -> Option<(OwnerLiveness, bool)> {
        let holder = ProcessHolder::of(child.id()).unwrap();
        let process = Process::new(child.id().cast_signed()).unwrap();
        let mut looks = (0..looks).map(|_| (holder.liveness(), is_marked(&process)));
        let other = looks.find(|look| *look != (OwnerLiveness::Live, true));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(holder.liveness(), OwnerLiveness::Dead);
        other
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_is_live_and_marked_while_others_come_and_go() {
        // The kernel ends it if this test is killed.
        let threads = "import ctypes, resource, threading, time
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
def run(): time.sleep(0.001); threading.Thread(target=run).start()
run()
ctypes.CDLL(None).pthread_exit(None)";
        let mut python = Command::new("python3");
        python.args(["-c", threads]).env(PARTITION_MARKER, "a");
        let Ok(child) = python.spawn() else {
            assert!(std::env::var_os("CI").is_none(), "python3 is not installed");
            return;
        };
        let process = Process::new(child.id().cast_signed()).unwrap();
        while process.stat().unwrap().state != 'Z' {
            std::thread::yield_now();
        }
        assert_eq!(other_look(child, 300), None);
    }

    #[test]
    fn a_process_that_begins_one_program_after_another_is_live_and_marked() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script");
        // The kernel ends it if this test is killed.
        fs::write(&script, "ulimit -t 60; exec sh \"$0\"").unwrap();
        let mut shell = Command::new("sh");
        // So many that the kernel needs some time for them.
        let variables = (0..400).map(|number| (format!("VARIABLE_{number}"), "x".repeat(60)));
        shell.arg(&script).envs(variables).env(PARTITION_MARKER, "a");
        assert_eq!(other_look(shell.spawn().unwrap(), 3_000), None);
    }

    #[test]
    fn only_processes_that_have_ended_or_are_of_another_user_may_be_unreadable() {
        let io = |error: rustix::io::Errno| ProcError::Io(error.into(), None);
        for (error, may_be) in [
            (ProcError::NotFound(None), true),
            (io(rustix::io::Errno::SRCH), true),
            (ProcError::PermissionDenied(None), true),
            (io(rustix::io::Errno::MFILE), false),
            (ProcError::Incomplete(None), false),
        ] {
            assert_eq!(unread_error(error).is_none(), may_be);
        }
    }

    #[test]
    fn variables_that_stay_unreadable_are_none_only_if_the_process_runs_or_its_threads_have_ended() {
        let (old, new, none) = ([1, 2, 3, 4], [2, 2, 3, 4], [0; 4]);
        let seen = |are_whole, program| {
            Some(Variables {
                text: Vec::new(),
                are_whole,
                program,
            })
        };
        let after = |seen: &Option<Variables>, first, (ended, threads), is_late| {
            conclusion(seen.as_ref(), first, ended, threads, is_late)
        };
        for is_late in [false, true] {
            assert_eq!(after(&seen(true, old), None, (0, 1), is_late), Conclusion::Read);
        }
        for (seen, first, ended, late) in [
            (seen(false, old), Some(old), (0, 1), Conclusion::Read),
            (seen(false, old), Some(new), (0, 1), Conclusion::Unreadable),
            (seen(false, old), None, (0, 1), Conclusion::Unreadable),
            (seen(false, none), Some(none), (0, 1), Conclusion::Unreadable),
            (None, Some(old), (2, 2), Conclusion::Read),
            (None, Some(old), (1, 2), Conclusion::Unreadable),
            (None, Some(old), (0, 0), Conclusion::Unreadable),
        ] {
            assert_eq!(after(&seen, first, ended, false), Conclusion::LookAgain);
            assert_eq!(after(&seen, first, ended, true), late);
        }
    }

    #[test]
    fn variables_are_whole_if_the_program_stayed_and_all_bytes_were_read() {
        let (program, begins) = ([1, 2, 10, 14], [0, 2, 10, 10]);
        for (before, after, count, expected) in [
            (program, program, 4, true),
            (program, program, 3, false),
            (begins, program, 4, false),
            (begins, begins, 0, false),
            ([1, 2, 10, 10], [1, 2, 10, 10], 0, true),
        ] {
            assert_eq!(
                are_whole(before, after, count),
                expected,
                "{before:?} {after:?} {count}"
            );
        }
    }

    #[tokio::test]
    async fn an_owner_is_judged_by_a_scan_of_its_own_time() {
        let id = PartitionId::new(format!("own-time-{}", std::process::id())).unwrap();
        let owner = Owner::new("Test", JobKey::new("default", "job", "1").unwrap());
        let request = Request::with_id(id.clone(), owner, PartitionSpec::of_size(IpuCount::ONE));
        let dead = ProcessHolder {
            boot: "another".into(),
            ..ProcessHolder::own().unwrap()
        };
        let request = request.with_holder(dead.to_string());
        let mut state = State::default();
        let hardware = Hardware::new(Vec::new());
        let (event, now) = (Event::Ensure(request), Timestamp::from_millis(0));
        for change in step(&state, &hardware, &Policy::default(), now, &event)
            .unwrap()
            .changes
        {
            state.apply(&change);
        }
        let entry = state.get(&id).unwrap();
        let mut left = Command::new("sleep");
        let mut left = left
            .arg("600")
            .env(PARTITION_MARKER, id.as_str())
            .spawn()
            .unwrap();
        assert_eq!(ProcessLiveness.liveness_of(entry).await, OwnerLiveness::Unknown);
        left.kill().unwrap();
        left.wait().unwrap();
        assert_eq!(ProcessLiveness.liveness_of(entry).await, OwnerLiveness::Dead);
    }

    #[test]
    fn a_process_without_threads_may_have_begun_a_program() {
        let stat = |state: char, threads: u32| {
            let text = format!("7 (sh) {state} {}{threads} {}", "0 ".repeat(16), "0 ".repeat(33));
            Stat::from_read(text.as_bytes()).unwrap()
        };
        assert!(has_ended(&stat('Z', 1)));
        for (state, threads) in [('S', 1), ('Z', 2), ('Z', 0)] {
            assert!(!has_ended(&stat(state, threads)), "{state} {threads}");
        }
    }

    #[test]
    fn a_process_that_is_not_visible_is_never_dead() {
        let elsewhere = ProcessHolder {
            namespace: 1,
            started: 1,
            ..ProcessHolder::own().unwrap()
        };
        assert_eq!(elsewhere.liveness(), OwnerLiveness::Unknown);
    }

    #[test]
    fn a_process_has_its_variables_from_its_first_moment_on() {
        for _ in 0..300 {
            let mut child = Command::new("sleep")
                .arg("600")
                .env(PARTITION_MARKER, "a")
                .spawn()
                .unwrap();
            let process = Process::new(child.id().try_into().unwrap()).unwrap();
            let found = is_marked(&process);
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(found);
        }
    }

    #[test]
    fn a_process_with_the_partition_in_its_environment_keeps_it_after_the_holder() {
        let partition = format!("p-{}", std::process::id());
        let id = PartitionId::new(&*partition).unwrap();
        let liveness = || Scan::take().liveness_without_holder(&id);
        for variable in [PARTITION_MARKER, IpuofEnv::PARTITION] {
            let mut left = Command::new("sleep");
            let mut left = left.arg("600").env(variable, &partition).spawn().unwrap();
            assert_eq!(liveness(), OwnerLiveness::Unknown);
            let found: Vec<_> = marked(&partition)
                .unwrap()
                .iter()
                .map(|found| found.pid)
                .collect();
            let expected = (variable == PARTITION_MARKER).then(|| left.id().cast_signed());
            assert_eq!(found, Vec::from_iter(expected));
            left.kill().unwrap();
            left.wait().unwrap();
            assert_eq!(liveness(), OwnerLiveness::Dead);
        }
    }
}
