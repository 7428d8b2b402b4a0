//! Response bodies that are being sent: each reaches its client within a bounded time, or its connection
//! closes.

use std::any::Any;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Boxed error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Response extension that marks an unbounded body, such as an event stream.
///
/// The deadline of [`ServeOptions::response_timeout`](crate::ServeOptions::response_timeout) then applies to
/// each frame instead of the whole body.
#[derive(Clone, Copy, Debug)]
pub struct UnboundedBody;

/// Body that keeps a guard until the connection has written the last byte or is closed.
///
/// hyper drops a body as soon as it has read the data, which may stay in a buffer long after that. Therefore
/// each data frame keeps the guard, too.
pub struct GuardedBody<B> {
    body: Pin<Box<B>>,
    guard: Guard,
}

type AnyGuard = Arc<dyn Any + Send + Sync>;

enum Guard {
    Body(AnyGuard),
    /// Creates the guard of a frame from its size in bytes.
    PerFrame(Box<dyn FnMut(usize) -> Result<AnyGuard, BoxError> + Send>),
}

impl<B> std::fmt::Debug for GuardedBody<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GuardedBody").finish_non_exhaustive()
    }
}

impl<B> GuardedBody<B> {
    /// Creates a body that keeps `guard` until all of it is sent.
    pub fn new(body: B, guard: impl Send + Sync + 'static) -> Self {
        Self {
            body: Box::pin(body),
            guard: Guard::Body(Arc::new(guard)),
        }
    }

    /// Creates a body that keeps a guard for each frame, which `guard` creates from its size in bytes.
    ///
    /// An error of `guard` ends the body.
    pub fn with_frame_guards<G: Send + Sync + 'static>(
        body: B,
        mut guard: impl FnMut(usize) -> Result<G, BoxError> + Send + 'static,
    ) -> Self {
        Self {
            body: Box::pin(body),
            guard: Guard::PerFrame(Box::new(move |size| Ok(Arc::new(guard(size)?)))),
        }
    }
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>>> Body for GuardedBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(frame) = ready!(self.body.as_mut().poll_frame(context)) else {
            return Poll::Ready(None);
        };
        let frame = match frame.map_err(Into::into)?.into_data() {
            Err(other) => other,
            Ok(data) => {
                let guard = match &mut self.guard {
                    Guard::Body(guard) => Arc::clone(guard),
                    Guard::PerFrame(guard) => guard(data.len())?,
                };
                Frame::data(Bytes::from_owner(GuardedData { data, _guard: guard }))
            }
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

struct GuardedData {
    data: Bytes,
    _guard: AnyGuard,
}

impl AsRef<[u8]> for GuardedData {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

/// Responses that one connection is sending.
#[derive(Debug, Default)]
pub(crate) struct PendingResponses(Mutex<StartTimes>);

#[derive(Debug, Default)]
struct StartTimes {
    next_number: u64,
    /// Start times by number; a later response has a greater number.
    by_number: BTreeMap<u64, Instant>,
}

/// Guard of a response, or of one of its frames, until it is sent.
#[derive(Debug)]
pub(crate) struct ResponseGuard {
    number: u64,
    responses: Arc<PendingResponses>,
}

impl PendingResponses {
    /// Starts the timer of a response.
    pub(crate) fn start(self: &Arc<Self>) -> ResponseGuard {
        let mut started = self.0.lock();
        let number = started.next_number;
        started.next_number += 1;
        started.by_number.insert(number, Instant::now());
        ResponseGuard {
            number,
            responses: Arc::clone(self),
        }
    }

    /// Returns as soon as a response has been pending for `deadline`.
    pub(crate) async fn until_overdue(&self, deadline: Duration) {
        loop {
            let started = self.oldest_start().unwrap_or_else(Instant::now);
            tokio::time::sleep_until(started + deadline).await;
            if self
                .oldest_start()
                .is_some_and(|started| started.elapsed() >= deadline)
            {
                return;
            }
        }
    }

    fn oldest_start(&self) -> Option<Instant> {
        self.0.lock().by_number.values().next().copied()
    }
}

impl Drop for ResponseGuard {
    fn drop(&mut self) {
        self.responses.0.lock().by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_response_is_overdue_at_its_deadline_regardless_of_later_responses() {
        let responses = Arc::new(PendingResponses::default());
        let started = Instant::now();
        let overdue = tokio::spawn({
            let responses = Arc::clone(&responses);
            async move { responses.until_overdue(RESPONSE_TIMEOUT).await }
        });
        tokio::time::sleep(RESPONSE_TIMEOUT / 2).await;
        let stuck = responses.start();
        for _ in 0..8 {
            drop(responses.start());
            tokio::time::sleep(RESPONSE_TIMEOUT / 16).await;
        }
        overdue.await.unwrap();
        assert_eq!(
            started.elapsed().as_secs(),
            (RESPONSE_TIMEOUT + RESPONSE_TIMEOUT / 2).as_secs()
        );
        drop(stuck);
    }
}
