//! The archive of `kubectl-ipu` for krew, and its manifest.

use std::error::Error;

use ipu_test_cluster::{TarArchive, sha256};

use super::gzip;

/// Name of the archive.
pub(super) const ARCHIVE: &str = "kubectl-ipu-linux-amd64.tar.gz";

/// Returns the archive. As krew expects, the files are at its top.
pub(super) fn archive(program: &[u8], completer: &[u8], license: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut archive = TarArchive::default();
    archive.file("LICENSE", 0o644, license)?;
    archive.file("kubectl-ipu", 0o755, program)?;
    archive.file("kubectl_complete-ipu", 0o755, completer)?;
    Ok(gzip(&archive.finish()?)?)
}

/// Returns the manifest with the checksum of the archive.
pub(super) fn manifest(template: &str, archive: &[u8]) -> Result<String, Box<dyn Error>> {
    let mut sums = 0;
    let mut lines = String::new();
    for line in template.lines() {
        let indent = line.len() - line.trim_start().len();
        if line.trim_start().starts_with("sha256: ") {
            sums += 1;
            lines.push_str(&format!("{}sha256: {}\n", &line[..indent], sha256(archive)));
        } else if !line.trim_start().starts_with('#') {
            lines.push_str(&format!("{line}\n"));
        }
    }
    if sums == 1 {
        Ok(lines)
    } else {
        Err(format!("the manifest for krew has {sums} lines with sha256, use one").into())
    }
}
