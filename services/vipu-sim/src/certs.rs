//! `--tls-init`: an authority of its own, a certificate of the server for this host, and one for clients.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// The names that the server's certificate is for.
const SERVER_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Writes `server/` and `client/` below `directory`, each with `cert.pem`, `key.pem` and `ca.pem`. Existing files are never
/// replaced.
pub(crate) fn init(directory: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
        .distinguished_name
        .push(DnType::CommonName, "vipu-sim authority");
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    for (side, names) in [
        ("server", SERVER_NAMES.map(String::from).to_vec()),
        ("client", Vec::new()),
    ] {
        let mut params = CertificateParams::new(names)?;
        params
            .distinguished_name
            .push(DnType::CommonName, format!("vipu-sim {side}"));
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &authority)?;
        let directory = directory.join(side);
        fs::create_dir_all(&directory)?;
        put(&directory.join("cert.pem"), &certificate.pem(), 0o644)?;
        put(&directory.join("key.pem"), &key.serialize_pem(), 0o600)?;
        put(&directory.join("ca.pem"), &authority.pem(), 0o644)?;
    }
    Ok(())
}

fn put(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut file = fs::OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(mode)
        .open(path)?;
    file.write_all(text.as_bytes())
}
