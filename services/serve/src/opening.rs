//! A connection whose peer has to say soon which protocol it speaks.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// What a connection of HTTP/2 begins with. As long as all that came is a part of it, nobody else looks at the time.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream that fails when it is not known after `patience` whether its peer speaks HTTP/1.1 or HTTP/2.
pub(crate) struct Opening<S> {
    stream: S,
    /// How much of the preface has come, and until when the rest may.
    open: Option<(usize, Pin<Box<Sleep>>)>,
}

impl<S> Opening<S> {
    pub(crate) fn new(stream: S, patience: Duration) -> Self {
        Self {
            stream,
            open: Some((0, Box::pin(tokio::time::sleep(patience)))),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Opening<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let progress = Pin::new(&mut self.stream).poll_read(context, buffer);
        let Some((seen, until)) = &mut self.open else {
            return progress;
        };
        if progress.is_pending() {
            return until.as_mut().poll(context).map(|()| {
                let late = "the peer does not say which protocol it speaks";
                Err(io::Error::new(io::ErrorKind::TimedOut, late))
            });
        }
        let more = buffer.filled().get(before..).unwrap_or_default();
        *seen += more.len();
        let rest = PREFACE.get(*seen - more.len()..).unwrap_or_default();
        if more.is_empty() || rest.len() <= more.len() || !rest.starts_with(more) {
            self.open = None;
        }
        progress
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Opening<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    /// What reading comes to when the peer says `said` and then nothing for an hour.
    async fn after(said: &[u8]) -> Option<io::ErrorKind> {
        let (near, mut far) = tokio::io::duplex(1024);
        far.write_all(said).await.unwrap();
        let mut near = Opening::new(near, PATIENCE);
        let mut all = Vec::new();
        let reading = near.read_to_end(&mut all);
        let hour = Duration::from_secs(3_600);
        let read = tokio::time::timeout(hour, reading).await;
        read.ok().map(|read| read.unwrap_err().kind())
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_leaves_open_what_he_speaks_is_given_up_and_nobody_else_is() {
        for said in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n\r\n"] {
            assert_eq!(after(said).await, Some(io::ErrorKind::TimedOut), "{said:?}");
        }
        for said in [
            &b"GET"[..],
            b"PUT /",
            PREFACE,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nand more",
        ] {
            assert_eq!(after(said).await, None, "{said:?}");
        }
    }
}
