//! Copies of log streams, in bounded memory.

use std::io::{self, ErrorKind};

use futures::{AsyncBufRead, AsyncBufReadExt as _};

/// Maximum length of a line with a prefix; a longer one is split.
const MAX_LINE: usize = 64 * 1024;

/// Cause of the end of a log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LogEnd {
    Complete,
    ReaderClosed,
}

/// Error of one side of a copied log.
#[derive(Debug)]
pub(super) enum CopyError {
    Read(io::Error),
    Write(io::Error),
}

/// Writes part of a log.
fn put(write: &mut impl FnMut(&[u8]) -> io::Result<()>, bytes: &[u8]) -> Result<bool, CopyError> {
    match write(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(CopyError::Write(error)),
    }
}

/// Copies a log unchanged, as it comes.
pub(super) async fn copy(
    log: impl AsyncBufRead,
    mut write: impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<LogEnd, CopyError> {
    let mut log = std::pin::pin!(log);
    loop {
        let part = log.fill_buf().await.map_err(CopyError::Read)?;
        if part.is_empty() {
            return Ok(LogEnd::Complete);
        }
        if !put(&mut write, part)? {
            return Ok(LogEnd::ReaderClosed);
        }
        let length = part.len();
        log.consume_unpin(length);
    }
}

/// Copies the lines of a log with a prefix, so that those of several logs do not mix.
pub(super) async fn copy_lines(
    log: impl AsyncBufRead,
    prefix: &[u8],
    mut write: impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<LogEnd, CopyError> {
    let mut log = std::pin::pin!(log);
    let mut line = prefix.to_vec();
    loop {
        let part = log.fill_buf().await.map_err(CopyError::Read)?;
        let is_end = part.is_empty();
        let room = MAX_LINE + prefix.len() - line.len();
        let end = part.iter().take(room).position(|byte| *byte == b'\n');
        let length = end.map_or(part.len().min(room), |end| end + 1);
        line.extend_from_slice(&part[..length]);
        log.consume_unpin(length);
        let is_full = line.len() == MAX_LINE + prefix.len();
        if end.is_some() || is_full || is_end && line.len() > prefix.len() {
            if end.is_none() {
                line.push(b'\n');
            }
            if !put(&mut write, &line)? {
                return Ok(LogEnd::ReaderClosed);
            }
            line.truncate(prefix.len());
        }
        if is_end {
            return Ok(LogEnd::Complete);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::io::BufReader;

    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(future)
    }

    /// Returns the pieces that are written for a log that is read in parts of some bytes.
    fn pieces(log: &[u8], capacity: usize, prefix: Option<&str>) -> Vec<Vec<u8>> {
        let mut pieces = Vec::new();
        let write = |piece: &[u8]| {
            pieces.push(piece.to_vec());
            Ok(())
        };
        let log = BufReader::with_capacity(capacity, log);
        let end = match prefix {
            Some(prefix) => block_on(copy_lines(log, prefix.as_bytes(), write)),
            None => block_on(copy(log, write)),
        };
        assert_eq!(end.unwrap(), LogEnd::Complete);
        pieces
    }

    #[test]
    fn a_log_is_copied_unchanged_as_it_comes() {
        let log = b"10%\r20%\r\xff\0\nend";
        assert_eq!(pieces(log, 4, None).concat(), log);
        assert_eq!(pieces(log, 4, None)[0], b"10%\r");
    }

    #[test]
    fn each_line_has_the_prefix_and_is_written_at_once() {
        assert_eq!(
            pieces(b"one\n\ntwo", 2, Some("[w] ")),
            [b"[w] one\n".to_vec(), b"[w] \n".to_vec(), b"[w] two\n".to_vec()]
        );
    }

    #[test]
    fn a_line_without_end_is_split() {
        let log = vec![b'y'; 2 * MAX_LINE + 1];
        let pieces = pieces(&log, 1000, Some("[w] "));
        let lengths: Vec<_> = pieces.iter().map(Vec::len).collect();
        assert_eq!(lengths, [MAX_LINE + 5, MAX_LINE + 5, 6]);
    }

    #[test]
    fn a_closed_reader_ends_the_copy_and_a_full_disk_is_an_error() {
        let closed = |_: &[u8]| Err(ErrorKind::BrokenPipe.into());
        let full = |_: &[u8]| Err(ErrorKind::StorageFull.into());
        let log: &[u8] = b"line\n";
        assert_eq!(block_on(copy(log, closed)).unwrap(), LogEnd::ReaderClosed);
        assert_eq!(
            block_on(copy_lines(log, b"", closed)).unwrap(),
            LogEnd::ReaderClosed
        );
        assert!(matches!(block_on(copy(log, full)), Err(CopyError::Write(_))));
    }
}
