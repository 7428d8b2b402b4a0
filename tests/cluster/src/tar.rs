//! Reproducible tar archives.

use std::io;

use tar::{Builder, EntryType, Header};

/// An archive in memory. The owner of all entries is root and their time is the epoch, so that the same
/// entries give the same bytes.
pub struct TarArchive(Builder<Vec<u8>>);

impl Default for TarArchive {
    fn default() -> Self {
        Self(Builder::new(Vec::new()))
    }
}

impl TarArchive {
    /// Appends a folder.
    ///
    /// # Errors
    ///
    /// If the path is not relative.
    pub fn folder(&mut self, path: &str, mode: u32) -> io::Result<()> {
        let mut header = header(EntryType::Directory, mode);
        self.0.append_data(&mut header, path, io::empty())
    }

    /// Appends a file.
    ///
    /// # Errors
    ///
    /// If the path is not relative.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        let mut header = header(EntryType::Regular, mode);
        header.set_size(content.len() as u64);
        self.0.append_data(&mut header, path, content)
    }

    /// Appends a symbolic link to `target`.
    ///
    /// # Errors
    ///
    /// If the path is not relative.
    pub fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.0
            .append_link(&mut header(EntryType::Symlink, 0o777), path, target)
    }

    /// Returns the bytes of the archive.
    ///
    /// # Errors
    ///
    /// None in memory.
    pub fn finish(self) -> io::Result<Vec<u8>> {
        self.0.into_inner()
    }
}

fn header(kind: EntryType, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(0);
    header
}
