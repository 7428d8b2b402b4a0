//! Deadlines after which a call is not sent.

use core::future::Future;

use ipu_core::BootTime;

use crate::boot_time::boot_time;
use crate::error::VipuError;

tokio::task_local! {
    static DEADLINE: BootTime;
}

/// Runs `call`, and sends nothing for it after `deadline`, even if the process or the machine was suspended
/// in between. `call` is any future that calls a [`VipuController`](crate::VipuController), but not in a task
/// that it spawns. Of nested deadlines, the earliest applies.
///
/// The deadline limits the sending only. The wait for the reply of a sent call is limited by
/// [`ConnectOptions::deadline`](crate::ConnectOptions::deadline).
///
/// The transports compare the time when the connection takes the request message, after it was established:
///
/// - gRPC: a late call sends at most its headers and resets its stream. The controller acts after the
///   message.
/// - REST: a late call with a changing method (POST, DELETE) sends nothing. A late read (GET) may be sent
///   when its connection was established late.
///
/// Bytes that the connection has taken may still wait for the controller to read earlier ones (flow control
/// of HTTP/2 and TCP). The system discards them if they are not acknowledged within
/// [`ConnectOptions::deadline`](crate::ConnectOptions::deadline). So a call has arrived by the sum of both
/// deadlines or never does. Two exceptions are not covered: an intermediary that holds bytes back, and a
/// machine that is suspended while its system waits for the acknowledgement.
///
/// # Errors
///
/// [`VipuError::NotSent`] if the deadline passed before the call was sent, and the errors of `call`.
///
/// ```
/// use ipu_vipu_client::{VipuError, boot_time, send_before};
/// use std::time::Duration;
///
/// # #[tokio::main]
/// # async fn main() {
/// let soon = boot_time().plus(Duration::from_secs(5));
/// let call = async { Ok("created") }; // a call of a controller
/// assert!(matches!(send_before(soon, call).await, Ok("created")));
///
/// let past = ipu_core::BootTime::from_millis(0);
/// let late = send_before(past, async { Ok("created") }).await;
/// assert!(matches!(late, Err(VipuError::NotSent)));
/// # }
/// ```
pub async fn send_before<T>(
    deadline: BootTime,
    call: impl Future<Output = Result<T, VipuError>>,
) -> Result<T, VipuError> {
    let deadline = send_deadline().map_or(deadline, |outer| outer.min(deadline));
    if boot_time() > deadline {
        return Err(VipuError::NotSent);
    }
    DEADLINE.scope(deadline, call).await
}

/// Returns the earliest deadline of the [`send_before`] calls that this task is in. For transports: after it,
/// send nothing and return [`VipuError::NotSent`]. Read it before you spawn a task or a blocking call, which
/// have none.
#[must_use]
pub fn send_deadline() -> Option<BootTime> {
    DEADLINE.try_with(|deadline| *deadline).ok()
}
