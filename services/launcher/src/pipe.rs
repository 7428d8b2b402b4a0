//! Connects the streams of this process with those of a remote command.

use kube::api::AttachedProcess;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::task::JoinHandle;

/// Tasks that copy the output of the remote command.
pub(crate) struct Pipes {
    stdout: JoinHandle<std::io::Result<()>>,
    stderr: JoinHandle<std::io::Result<()>>,
}

impl Pipes {
    /// Starts copying all streams. Bytes already read from standard input may remain unsent at the end.
    pub(crate) fn join(process: &mut AttachedProcess) -> Self {
        if let Some(remote) = process.stdin() {
            tokio::spawn(async {
                // A failed write means that the command has ended.
                let _ = copy(tokio::io::stdin(), remote).await;
            });
        }
        let (stdout, stderr) = (process.stdout(), process.stderr());
        Self {
            stdout: tokio::spawn(async { forward(stdout, tokio::io::stdout()).await }),
            stderr: tokio::spawn(async { forward(stderr, tokio::io::stderr()).await }),
        }
    }

    /// Waits until all output is copied.
    pub(crate) async fn drain(self) {
        // An error means that the local reader closed its end, so there is no stream to report it on.
        let _ = self.stdout.await;
        let _ = self.stderr.await;
    }
}

async fn forward(
    reader: Option<impl AsyncRead + Unpin>,
    writer: impl AsyncWrite + Unpin,
) -> std::io::Result<()> {
    match reader {
        Some(reader) => copy(reader, writer).await,
        None => Ok(()),
    }
}

/// Copies until end of file, and flushes after each read.
async fn copy(
    mut reader: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 32 * 1024];
    let mut writable = true;
    loop {
        let count = reader.read(&mut buffer).await?;
        if count == 0 {
            return writer.shutdown().await;
        }
        // After a write error the rest is still read, so that the command does not block.
        if writable {
            let written = async {
                writer.write_all(&buffer[..count]).await?;
                writer.flush().await
            };
            writable = written.await.is_ok();
        }
    }
}
