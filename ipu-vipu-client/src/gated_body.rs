//! A request body that is not sent after its call's deadline.

use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::error::Error;

use hyper::body::{Body, Frame, SizeHint};

use crate::send_gate::SendGate;

/// A request body whose every part passes the gate of its call when the connection takes it.
#[derive(Debug)]
pub(crate) struct GatedBody<B> {
    body: B,
    gate: SendGate,
    is_taken: bool,
}

impl<B> GatedBody<B> {
    pub(crate) const fn new(body: B, gate: SendGate) -> Self {
        Self {
            body,
            gate,
            is_taken: false,
        }
    }
}

impl<B: Body<Error: Into<Box<dyn Error + Send + Sync>>> + Unpin> Body for GatedBody<B> {
    type Data = B::Data;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        self.is_taken = true;
        if let Err(closed) = self.gate.pass() {
            return Poll::Ready(Some(Err(closed.into())));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    // The connection must take even an empty body, because it is asked for nothing else before it sends.
    fn is_end_stream(&self) -> bool {
        self.is_taken && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.body.is_end_stream() {
            return SizeHint::default();
        }
        self.body.size_hint()
    }
}
