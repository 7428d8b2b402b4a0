//! Writes POSIX ustar archives with the features that images need: folders, files, links.

use std::io::{self, Write};

const BLOCK: usize = 512;

/// An archive in memory. The owner of all entries is root and their time is the epoch, so that the same
/// entries give the same bytes.
#[derive(Debug, Default)]
pub struct TarArchive(Vec<u8>);

impl TarArchive {
    /// Appends a folder.
    ///
    /// # Errors
    ///
    /// If the path is too long for the format.
    pub fn folder(&mut self, path: &str, mode: u32) -> io::Result<()> {
        append(&mut self.0, path, mode, &Content::Folder)
    }

    /// Appends a file.
    ///
    /// # Errors
    ///
    /// If the path is too long for the format.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        append(&mut self.0, path, mode, &Content::File(content))
    }

    /// Appends a symbolic link to `target`.
    ///
    /// # Errors
    ///
    /// If a path is too long for the format.
    pub fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        append(&mut self.0, path, 0o777, &Content::Link(target))
    }

    /// Returns the bytes of the archive.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 2 * BLOCK]);
        self.0
    }
}

/// Content of an entry.
enum Content<'a> {
    Folder,
    File(&'a [u8]),
    /// A symbolic link to this target.
    Link(&'a str),
}

/// Appends one entry.
fn append(out: &mut impl Write, path: &str, mode: u32, content: &Content<'_>) -> io::Result<()> {
    let (kind, size, link) = match content {
        Content::Folder => (b'5', 0, ""),
        Content::File(bytes) => (b'0', bytes.len(), ""),
        Content::Link(target) => (b'2', 0, *target),
    };
    let (prefix, name) = split(path)?;
    let mut header = [0_u8; BLOCK];
    put(&mut header, 0, 100, name)?;
    put(&mut header, 100, 8, &format!("{mode:07o}"))?;
    put(&mut header, 108, 8, "0000000")?;
    put(&mut header, 116, 8, "0000000")?;
    put(&mut header, 124, 12, &format!("{size:011o}"))?;
    put(&mut header, 136, 12, "00000000000")?;
    header[156] = kind;
    put(&mut header, 157, 100, link)?;
    put(&mut header, 257, 6, "ustar")?;
    header[263..265].copy_from_slice(b"00");
    put(&mut header, 345, 155, prefix)?;
    // The checksum is computed with spaces in its field.
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    put(&mut header, 148, 7, &format!("{sum:06o}"))?;
    header[154] = 0;
    out.write_all(&header)?;
    if let Content::File(bytes) = content {
        out.write_all(bytes)?;
        out.write_all(&[0; BLOCK][..size.next_multiple_of(BLOCK) - size])?;
    }
    Ok(())
}

fn put(header: &mut [u8; BLOCK], at: usize, width: usize, text: &str) -> io::Result<()> {
    if text.len() > width {
        return Err(too_long(text));
    }
    header[at..at + text.len()].copy_from_slice(text.as_bytes());
    Ok(())
}

/// Splits a long path at a '/' into prefix and name.
fn split(path: &str) -> io::Result<(&str, &str)> {
    if path.len() <= 100 {
        return Ok(("", path));
    }
    path.match_indices('/')
        .map(|(at, _)| (&path[..at], &path[at + 1..]))
        .find(|(prefix, name)| prefix.len() <= 155 && name.len() <= 100)
        .ok_or_else(|| too_long(path))
}

fn too_long(text: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("{text} is too long for an archive"),
    )
}
