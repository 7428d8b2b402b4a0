//! Lines on standard error and in the system log.

use std::os::unix::net::UnixDatagram;

use ipu_slurm::text::hook_failure;

use crate::failure::Failure;

/// The socket of the system log.
const SYSLOG_SOCKET: &str = "/dev/log";
/// Facility `daemon` (3), severity `err` (3), as RFC 5424 encodes them.
const SYSLOG_PRIORITY: u8 = 3 * 8 + 3;

/// Prints the line of a failed command on standard error and in the system log.
pub(crate) fn failure(command: &str, failure: &Failure) {
    let job_id = std::env::var("SLURM_JOB_ID").ok();
    let line = hook_failure(command, job_id.and_then(|id| id.parse().ok()), &failure.0);
    print(&line);
    // The system log is the second place: without it the line is on standard error.
    let _ = send_to_syslog(&line);
}

/// Prints a line of the agent on standard error, which systemd writes to its journal.
pub(crate) fn note(text: &str) {
    print(&format!("ipu-slurm: {text}"));
}

#[expect(clippy::print_stderr, reason = "Slurm and systemd log standard error")]
fn print(line: &str) {
    eprintln!("{line}");
}

fn send_to_syslog(line: &str) -> std::io::Result<usize> {
    let socket = UnixDatagram::unbound()?;
    // A daemon that does not read must not hold up a job.
    socket.set_nonblocking(true)?;
    let message = line.strip_prefix("ipu-slurm ").unwrap_or(line);
    let datagram = format!("<{SYSLOG_PRIORITY}>ipu-slurm[{}]: {message}", std::process::id());
    socket.send_to(datagram.as_bytes(), SYSLOG_SOCKET)
}
