//! Processes of other programs.

use std::ffi::OsStr;
use std::process::Stdio;

use tokio::process::Command;

/// `PATH` of a command: hooks have none.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Returns a command without the environment of this process. It is killed if nothing awaits it.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", PATH)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}
