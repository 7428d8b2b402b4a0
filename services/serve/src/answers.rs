//! Answers that are being sent: each must reach its client within a bounded time.

use std::any::Any;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use crate::server::BoxError;

/// Marks an answer without an end of its own, such as an event stream: an extension of the response. The deadline of
/// [`ServeOptions::answer`](crate::ServeOptions::answer) applies to each of its frames instead of to the whole.
#[derive(Clone, Copy, Debug)]
pub struct Endless;

/// A body that keeps a guard until the connection has written the last byte or is closed.
///
/// A server drops a body once it has taken the data, which may lie in a buffer long after that. Therefore the data
/// keep the guard, too.
pub struct GuardedBody<B> {
    body: Pin<Box<B>>,
    guard: Guard,
}

type AnyGuard = Arc<dyn Any + Send + Sync>;

enum Guard {
    Whole(AnyGuard),
    /// A guard for a frame of this many bytes.
    Frames(Box<dyn FnMut(usize) -> Result<AnyGuard, BoxError> + Send>),
}

impl<B> std::fmt::Debug for GuardedBody<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}

impl<B> GuardedBody<B> {
    /// Returns `body` with a guard.
    pub fn new(body: B, guard: impl Send + Sync + 'static) -> Self {
        Self {
            body: Box::pin(body),
            guard: Guard::Whole(Arc::new(guard)),
        }
    }

    /// Returns `body` with a guard for each frame, by its size in bytes. The body ends with the error of `guard`.
    pub fn each_frame<G: Send + Sync + 'static>(
        body: B,
        mut guard: impl FnMut(usize) -> Result<G, BoxError> + Send + 'static,
    ) -> Self {
        Self {
            body: Box::pin(body),
            guard: Guard::Frames(Box::new(move |size| Ok(Arc::new(guard(size)?)))),
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
                    Guard::Whole(guard) => Arc::clone(guard),
                    Guard::Frames(guard) => guard(data.len())?,
                };
                Frame::data(Bytes::from_owner(HeldData { data, _guard: guard }))
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

struct HeldData {
    data: Bytes,
    _guard: AnyGuard,
}

impl AsRef<[u8]> for HeldData {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

/// The answers that one connection is sending.
#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    next: u64,
    /// Start times; a later answer has a greater number.
    began: BTreeMap<u64, Instant>,
}

/// An answer, or a frame of one, until it is sent.
#[derive(Debug)]
pub(crate) struct Sending {
    number: u64,
    answers: Arc<Answers>,
}

impl Answers {
    /// Starts the clock of an answer.
    pub(crate) fn begin(self: &Arc<Self>) -> Sending {
        let mut open = self.open();
        let number = open.next;
        open.next += 1;
        open.began.insert(number, Instant::now());
        Sending {
            number,
            answers: Arc::clone(self),
        }
    }

    /// Returns as soon as an answer has been under way for `deadline`.
    pub(crate) async fn overdue(&self, deadline: Duration) {
        loop {
            let began = self.oldest().unwrap_or_else(Instant::now);
            tokio::time::sleep_until(began + deadline).await;
            if self.oldest().is_some_and(|began| began.elapsed() >= deadline) {
                return;
            }
        }
    }

    fn oldest(&self) -> Option<Instant> {
        self.open().began.values().next().copied()
    }

    // Nothing panics while it is locked.
    fn open(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.answers.open().began.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_overdue_at_its_deadline_however_many_others_were_sent() {
        let answers = Arc::new(Answers::default());
        let began = Instant::now();
        let overdue = tokio::spawn({
            let answers = Arc::clone(&answers);
            async move { answers.overdue(RESPONSE_TIMEOUT).await }
        });
        tokio::time::sleep(RESPONSE_TIMEOUT / 2).await;
        let stuck = answers.begin();
        for _ in 0..8 {
            drop(answers.begin());
            tokio::time::sleep(RESPONSE_TIMEOUT / 16).await;
        }
        overdue.await.unwrap();
        assert_eq!(
            began.elapsed().as_secs(),
            (RESPONSE_TIMEOUT + RESPONSE_TIMEOUT / 2).as_secs()
        );
        drop(stuck);
    }
}
