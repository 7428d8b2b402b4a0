//! Joins the streams of this process with those of a remote command.

use kube::api::AttachedProcess;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::task::JoinHandle;

/// What the remote command writes, on its way.
pub(crate) struct Pipes {
    stdout: JoinHandle<std::io::Result<()>>,
    stderr: JoinHandle<std::io::Result<()>>,
}

impl Pipes {
    /// Begins to pass everything on. What is read from standard input may be left over at the end.
    pub(crate) fn join(process: &mut AttachedProcess) -> Self {
        if let Some(remote) = process.stdin() {
            tokio::spawn(async {
                // When it cannot be passed on any more, the command has ended.
                let _ = copy(tokio::io::stdin(), remote).await;
            });
        }
        let (stdout, stderr) = (process.stdout(), process.stderr());
        Self {
            stdout: tokio::spawn(async { pass(stdout, tokio::io::stdout()).await }),
            stderr: tokio::spawn(async { pass(stderr, tokio::io::stderr()).await }),
        }
    }

    /// Waits until everything was passed on.
    pub(crate) async fn drain(self) {
        // Whoever closed the other end does not want to hear it.
        let _ = self.stdout.await;
        let _ = self.stderr.await;
    }
}

async fn pass(from: Option<impl AsyncRead + Unpin>, to: impl AsyncWrite + Unpin) -> std::io::Result<()> {
    match from {
        Some(from) => copy(from, to).await,
        None => Ok(()),
    }
}

/// Copies until the end, and passes on at once what there is.
async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> std::io::Result<()> {
    let mut buffer = vec![0; 32 * 1024];
    let mut wanted = true;
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        // Once nobody listens the rest is read all the same, so that the command is not held up.
        if wanted {
            let written = async {
                to.write_all(&buffer[..count]).await?;
                to.flush().await
            };
            wanted = written.await.is_ok();
        }
    }
}
