//! `--tls-init`: creates a certificate authority, a server certificate for this host and a client
//! certificate.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// Subject alternative names of the server certificate.
const SERVER_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Writes `server/` and `client/` below `directory`, each with `cert.pem`, `key.pem` and `ca.pem`. Never
/// overwrites existing files.
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
        write_new(&directory.join("cert.pem"), &certificate.pem(), 0o644)?;
        write_new(&directory.join("key.pem"), &key.serialize_pem(), 0o600)?;
        write_new(&directory.join("ca.pem"), &authority.pem(), 0o644)?;
    }
    Ok(())
}

fn write_new(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut file = fs::OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(mode)
        .open(path)?;
    file.write_all(text.as_bytes())
}
