//! Decides once for each call whether it is sent.

use core::future::{Future, pending};
use core::pin::pin;
use std::sync::{Arc, OnceLock};

use ipu_core::BootTime;

use crate::boot_time::boot_time;
use crate::error::VipuError;

tokio::task_local! {
    static GATE: SendGate;
}

/// The error of a request body whose call is too late or was abandoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the call is not sent: its deadline has passed or its caller has given up")]
pub(crate) struct GateClosed;

/// Decides whether one call is sent: when the connection takes the request, or when the caller stops waiting,
/// whichever is first. Clones decide together.
#[derive(Clone, Debug)]
pub(crate) struct SendGate {
    deadline: Option<BootTime>,
    is_sent: Arc<OnceLock<bool>>,
}

/// Closes the gate of a call that its caller abandons.
struct CloseOnDrop(SendGate);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl SendGate {
    pub(crate) fn new(deadline: Option<BootTime>) -> Self {
        Self {
            deadline,
            is_sent: Arc::default(),
        }
    }

    /// Returns the gate of the call that this task makes within [`run`](Self::run).
    #[cfg(feature = "grpc")]
    pub(crate) fn current() -> Self {
        GATE.try_with(Clone::clone)
            .unwrap_or_else(|_| Self::new(crate::send_before::send_deadline()))
    }

    /// Called immediately before bytes of the request are sent.
    pub(crate) fn pass(&self) -> Result<(), GateClosed> {
        let is_late = self.deadline.is_some_and(|deadline| boot_time() > deadline);
        // Later parts of a message are too late as well: the controller acts only on a complete one.
        if *self.is_sent.get_or_init(|| !is_late) && !is_late {
            Ok(())
        } else {
            Err(GateClosed)
        }
    }

    /// Returns whether nothing was sent; then nothing will be.
    fn close(&self) -> bool {
        !*self.is_sent.get_or_init(|| false)
    }

    /// Runs `call`, the call of this gate. Nothing is sent after it returns or is dropped.
    pub(crate) async fn run<T>(
        &self,
        call: impl Future<Output = Result<T, VipuError>>,
    ) -> Result<T, VipuError> {
        let _close_on_drop = CloseOnDrop(self.clone());
        let deadline_passes = async {
            match self.deadline {
                Some(deadline) => tokio::time::sleep(deadline.since(boot_time())).await,
                None => pending().await,
            }
        };
        let mut call = pin!(GATE.scope(self.clone(), call));
        let early = tokio::select! {
            biased;
            result = &mut call => Some(result),
            () = deadline_passes => None,
        };
        let result = match early {
            Some(result) => result,
            None if self.close() => return Err(VipuError::NotSent),
            None => call.await,
        };
        if result.is_err() && self.is_sent.get() == Some(&false) {
            return Err(VipuError::NotSent);
        }
        result
    }
}
