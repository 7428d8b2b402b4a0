//! SHA-256, by the crypto provider that the harness already uses for TLS.

use std::fmt::Write as _;

use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;

/// Returns the digest of these bytes, in hexadecimal.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(64);
    if let Some(suite) = TLS13_AES_128_GCM_SHA256.tls13() {
        for byte in suite.common.hash_provider.hash(bytes).as_ref() {
            // Writing into a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
    }
    text
}
