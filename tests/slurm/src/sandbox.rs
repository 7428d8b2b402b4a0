//! The machine of a bed: network, mount and process namespaces of its own. When its first process ends, the
//! kernel kills all others and removes mounts and network.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::error::BedError;
use crate::options::BED;
use crate::support::{PATH, tree};

/// The directory with the program of this process, as the processes of a bed see it.
const PROGRAMS: &str = "/run/test-programs";

/// The first process: it sets up the machine and ends when its standard input closes. The pipe closes when
/// the test process dies, even by SIGKILL. With `CHLD` ignored, the kernel reaps orphans. A shell cannot wait
/// here: `read` of dash ends when an orphan ends.
///
/// Slurm looks names up only for address families of interfaces besides the loopback one, so the loopback
/// interface gets an address of the range for documentation (RFC 5737).
///
/// Its arguments are the directory of the bed, the directory of this program, and the tree of another Debian,
/// or nothing for the root of this machine. An overlay keeps the tree as it is. slurmctld looks up the
/// host of `srun`, and would wait for a name server that a bed cannot reach.
const INIT_SCRIPT: &str = r#"
set -e
mount --make-rprivate /
ip link set lo up
ip addr add 192.0.2.78/32 dev lo
root=
if [ -n "$3" ]; then
  mkdir "$1/root"
  mount -t tmpfs -o mode=755 tmpfs "$1/root"
  root=$1/root/merged
  mkdir "$root" "$1/root/upper" "$1/root/work"
  mount -t overlay -o "lowerdir=$3,upperdir=$1/root/upper,workdir=$1/root/work" overlay "$root"
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  rm -f "$root/etc/hosts" "$root/etc/resolv.conf"
  echo "127.0.0.1 localhost $(uname -n)" > "$root/etc/hosts"
fi
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mkdir -p "$root/run/slurm-bed" "$root/run/test-programs" "$root/run/munge" "$root/etc/slurm"
mount --bind "$1" "$root/run/slurm-bed"
mount --bind "$2" "$root/run/test-programs"
mount --bind "$1/etc" "$root/etc/slurm"
exec chroot "${root:-/}" sh -c 'echo ready; exec env --ignore-signal=CHLD cat >/dev/null'
"#;

/// Returns the path of this process's program inside any bed, for [`Bed::start_program`].
///
/// # Panics
///
/// If the program was removed meanwhile.
///
/// [`Bed::start_program`]: crate::Bed::start_program
#[must_use]
pub fn this_program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    match path.file_name() {
        Some(name) => format!("{PROGRAMS}/{}", name.to_string_lossy()),
        None => panic!("this program has no path"),
    }
}

/// A running machine.
#[derive(Debug)]
pub(crate) struct Sandbox {
    unshare: Child,
    stdin: Option<ChildStdin>,
    /// The first process, as the host numbers it.
    init: u32,
}

impl Sandbox {
    /// Creates a machine in which `directory` is [`BED`] and its `etc` is `/etc/slurm`.
    pub(crate) fn start(directory: &Path) -> Result<Self, BedError> {
        let start_error = |detail: String| BedError::step("create the namespaces of a bed", detail);
        let program = std::env::current_exe().map_err(|error| start_error(error.to_string()))?;
        let programs = program
            .parent()
            .ok_or_else(|| start_error("this program has no directory".into()))?;
        let mut unshare = Command::new("unshare")
            .args(["--net", "--mount", "--pid", "--fork"])
            .args([
                "--kill-child=SIGKILL",
                "--mount-proc",
                "sh",
                "-c",
                INIT_SCRIPT,
                "bed",
            ])
            .args([directory, programs, tree().unwrap_or_else(|| Path::new(""))])
            .env_clear()
            .env("PATH", PATH)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| start_error(error.to_string()))?;
        let stdin = unshare.stdin.take();
        let mut line = String::new();
        if let Some(stdout) = unshare.stdout.take() {
            // An empty line follows from a failed script, whose error is on standard error.
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        let mut sandbox = Self {
            unshare,
            stdin,
            init: 0,
        };
        if line != "ready\n" {
            return Err(start_error("the first process ended".into()));
        }
        let parent = sandbox.unshare.id();
        let children = format!("/proc/{parent}/task/{parent}/children");
        let text = std::fs::read_to_string(&children).map_err(|error| start_error(error.to_string()))?;
        sandbox.init = text
            .trim()
            .parse()
            .map_err(|_| start_error(format!("{children} has no process id")))?;
        Ok(sandbox)
    }

    /// Returns a command that runs `program` inside, in the directory `work` of the bed, with nothing of the
    /// caller's environment. `user` is a name of the system's user database.
    pub(crate) fn command(&self, user: Option<&str>, program: &str) -> Command {
        let init = self.init;
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/proc/{init}/ns/net"))
            .arg(format!("--mount=/proc/{init}/ns/mnt"))
            .arg(format!("--pid=/proc/{init}/ns/pid"))
            .arg(format!("--root=/proc/{init}/root"));
        if let Some(user) = user {
            command.args(["setpriv", "--clear-groups"]);
            command
                .arg(format!("--reuid={user}"))
                .arg(format!("--regid={user}"));
        }
        command
            .args(["env", "-C", &format!("{BED}/work"), program])
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", format!("{BED}/work"))
            .env("LANG", "C.UTF-8")
            .stdin(Stdio::null());
        command
    }

    /// Returns the file of the network namespace.
    pub(crate) fn network(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.init))
    }

    /// Returns the path at which this process sees a path of the bed.
    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.init))
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        drop(self.stdin.take());
        // It ends with the first process.
        let _ = self.unshare.wait();
    }
}
