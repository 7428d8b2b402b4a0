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

use std::fmt;
use std::fs;
use std::io::{self, Read as _};
use std::str::FromStr;
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

    /// Returns whether the holder of `partition` is alive: [`OwnerLiveness::Unknown`] as long as processes
    /// have outlived it that have the partition in [`PARTITION_MARKER`] or [`IpuofEnv::PARTITION`].
    #[must_use]
    pub fn liveness_as_holder_of(&self, partition: &PartitionId) -> OwnerLiveness {
        match self.liveness() {
            OwnerLiveness::Dead => {
                let variables = [PARTITION_MARKER, IpuofEnv::PARTITION];
                match with_partition(&variables, partition.as_str()) {
                    Ok(found) if found.is_empty() => OwnerLiveness::Dead,
                    Ok(_) => OwnerLiveness::Unknown,
                    Err(error) => {
                        tracing::warn!(%partition, %error, "its holder has ended, but /proc cannot be read");
                        OwnerLiveness::Unknown
                    }
                }
            }
            liveness => liveness,
        }
    }
}

/// The liveness of owners whose holder is a [`ProcessHolder`], as in
/// [`liveness_as_holder_of`](ProcessHolder::liveness_as_holder_of). That of any other owner is unknown.
///
/// All holders of the record must be processes of one host: a process of another host looks like one of an
/// earlier boot, which is dead. Run it as root if jobs run as several users, so that it sees their
/// variables.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessLiveness;

/// Held during a scan of `/proc`.
static SCAN: Mutex<()> = Mutex::const_new(());

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
        // One scan at a time, on a thread of its own: it does not end while a process hangs in the kernel.
        let turn = SCAN.lock().await;
        let id = entry.id.clone();
        let (send, judged) = oneshot::channel();
        let scan = move || {
            let liveness = holder.liveness_as_holder_of(&id);
            drop(turn);
            let _ = send.send(liveness);
        };
        match std::thread::Builder::new().spawn(scan) {
            Ok(_) => judged.await.unwrap_or(OwnerLiveness::Unknown),
            Err(_) => OwnerLiveness::Unknown,
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
    with_partition(&[PARTITION_MARKER], partition)
}

/// Returns the running processes, except this one, with `partition` in one of the variables.
fn with_partition(variables: &[&str], partition: &str) -> Result<Vec<Process>, ProcError> {
    let wanted: Vec<String> = variables
        .iter()
        .map(|name| format!("{name}={partition}"))
        .collect();
    let own = std::process::id();
    let (mut found, mut unknown) = (Vec::new(), None);
    for process in procfs::process::all_processes()? {
        let is_marked = process.and_then(|process| {
            let is_marked = u32::try_from(process.pid) != Ok(own) && has_variable(&process, &wanted)?;
            Ok(is_marked.then_some(process))
        });
        match is_marked {
            Ok(process) => found.extend(process),
            // It has ended, or belongs to another user.
            Err(error) if is_gone(&error) || matches!(error, ProcError::PermissionDenied(_)) => {}
            Err(error) => unknown = Some(error),
        }
    }
    match unknown {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

/// Returns whether a process has one of the variables `NAME=VALUE`. Waits while it begins a program, by
/// execve(2), or ends: its variables cannot be read then.
fn has_variable(process: &Process, wanted: &[String]) -> Result<bool, ProcError> {
    /// Flag of a thread of the kernel, which has no program.
    const PF_KTHREAD: u32 = 0x0020_0000;
    let is_wanted = |variable: &[u8]| wanted.iter().any(|wanted| variable == wanted.as_bytes());
    let (begun, mut first) = (Instant::now(), None);
    loop {
        let stat = process.stat()?;
        if has_ended(&stat) || stat.flags & PF_KTHREAD != 0 {
            return Ok(false);
        }
        let mut last = None;
        // All threads have the same variables, and the first may have ended.
        for task in process.tasks()? {
            match task.and_then(|task| Variables::read(process, task.tid)) {
                Ok(found) => {
                    last = Some(found);
                    break;
                }
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let is_late = begun.elapsed() > Duration::from_secs(1);
        match last {
            // A part of the variables may be unreadable for good.
            Some(found) if found.are_whole || (is_late && first == Some(found.program)) => {
                return Ok(found.text.split(|byte| *byte == 0).any(is_wanted));
            }
            Some(_) if is_late => return Err(ProcError::Incomplete(None)),
            // Its threads are ending, and have no memory any more.
            None if is_late => return Ok(false),
            found => first = first.or(found.map(|found| found.program)),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The variables of a process as one of its threads shows them.
struct Variables {
    text: Vec<u8>,
    are_whole: bool,
    /// What tells the program from another one.
    program: [u64; 4],
}

impl Variables {
    fn read(process: &Process, tid: i32) -> Result<Self, ProcError> {
        /// Flag of a thread that is ending.
        const PF_EXITING: u32 = 0x0000_0004;
        let stat = || process.read::<_, Stat>(format!("task/{tid}/stat"));
        let range = |stat: &Stat| (stat.env_start.unwrap_or(0), stat.env_end.unwrap_or(0));
        let len = |(start, end): (u64, u64)| usize::try_from(end.saturating_sub(start)).unwrap_or(usize::MAX);
        let mut text = vec![0; len(range(&stat()?)).saturating_add(1)];
        let mut file = process.open_relative(format!("task/{tid}/environ"))?;
        // One call: a program that begins between two calls removes the variables of the one before.
        let count = file.read(&mut text)?;
        text.truncate(count);
        let after = stat()?;
        if after.flags & PF_EXITING != 0 {
            return Err(ProcError::NotFound(None));
        }
        let (start, end) = range(&after);
        Ok(Self {
            // While a program begins, the range is empty until all variables are there, and the start of the
            // code is zero until later.
            are_whole: count == len((start, end)) && (count > 0 || after.startcode != 0),
            text,
            program: [after.startcode, after.startstack, start, end],
        })
    }
}

/// Returns whether the error is that of a process that has ended.
fn is_gone(error: &ProcError) -> bool {
    match error {
        ProcError::NotFound(_) => true,
        ProcError::Io(error, _) => error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()),
        _ => false,
    }
}

/// Returns whether all threads of a process have ended, even if its parent has not reaped it.
#[must_use]
pub const fn has_ended(stat: &Stat) -> bool {
    // Without a thread, the process was reaped during the look, or another thread of it begins a program.
    matches!(stat.state, 'Z' | 'X') && stat.num_threads == 1
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
    use std::process::Command;

    use procfs::FromRead as _;

    use super::*;

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

    #[test]
    fn a_process_whose_first_thread_has_ended_is_live_and_marked_while_others_come_and_go() {
        let threads = "import ctypes, threading, time
def run(): time.sleep(0.001); threading.Thread(target=run).start()
run()
ctypes.CDLL(None).pthread_exit(None)";
        let mut python = Command::new("python3");
        python.args(["-c", threads]).env(PARTITION_MARKER, "a");
        let Ok(mut child) = python.spawn() else {
            assert!(std::env::var_os("CI").is_none(), "python3 is not installed");
            return;
        };
        let holder = ProcessHolder::of(child.id()).unwrap();
        let process = Process::new(child.id().cast_signed()).unwrap();
        while process.stat().unwrap().state != 'Z' {
            std::thread::yield_now();
        }
        let wanted = [format!("{PARTITION_MARKER}=a")];
        let looks = (0..300).map(|_| (holder.liveness(), has_variable(&process, &wanted).ok()));
        let other = looks
            .into_iter()
            .find(|look| *look != (OwnerLiveness::Live, Some(true)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(other, None);
        assert_eq!(holder.liveness(), OwnerLiveness::Dead);
    }

    #[test]
    fn a_process_that_begins_one_program_after_another_is_live_and_marked() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script");
        fs::write(&script, "exec sh \"$0\"").unwrap();
        let mut shell = Command::new("sh");
        // So many that the kernel needs some time for them.
        let variables = (0..400).map(|number| (format!("VARIABLE_{number}"), "x".repeat(60)));
        shell.arg(&script).envs(variables).env(PARTITION_MARKER, "a");
        let mut child = shell.spawn().unwrap();
        let holder = ProcessHolder::of(child.id()).unwrap();
        let process = Process::new(child.id().cast_signed()).unwrap();
        let wanted = [format!("{PARTITION_MARKER}=a")];
        let looks = (0..3_000).map(|_| (holder.liveness(), has_variable(&process, &wanted).ok()));
        let other = looks
            .into_iter()
            .find(|look| *look != (OwnerLiveness::Live, Some(true)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(other, None);
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
            let found = has_variable(&process, &[format!("{PARTITION_MARKER}=a")]);
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(found.unwrap());
        }
    }

    #[test]
    fn a_process_with_the_partition_in_its_environment_keeps_it_after_the_holder() {
        let partition = format!("p-{}", std::process::id());
        let dead = ProcessHolder {
            boot: "another".into(),
            ..ProcessHolder::own().unwrap()
        };
        let id = PartitionId::new(&*partition).unwrap();
        for variable in [PARTITION_MARKER, IpuofEnv::PARTITION] {
            let mut left = Command::new("sleep");
            let mut left = left.arg("600").env(variable, &partition).spawn().unwrap();
            assert_eq!(dead.liveness_as_holder_of(&id), OwnerLiveness::Unknown);
            let found: Vec<_> = marked(&partition)
                .unwrap()
                .iter()
                .map(|found| found.pid)
                .collect();
            let expected = (variable == PARTITION_MARKER).then(|| left.id().cast_signed());
            assert_eq!(found, Vec::from_iter(expected));
            left.kill().unwrap();
            left.wait().unwrap();
            assert_eq!(dead.liveness_as_holder_of(&id), OwnerLiveness::Dead);
        }
    }
}
