//! One generation of certificates: a CA, whose key is discarded after signing, and the one certificate it
//! signed.

use std::collections::BTreeSet;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde::{Deserialize, Serialize};

/// Seconds by which a certificate is backdated, because clocks differ.
const BACKDATED: u64 = 300;

/// A CA certificate and the one server certificate it signed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CertBundle {
    /// CA certificate, in PEM.
    pub(crate) ca: String,
    /// Server certificate, in PEM.
    pub(crate) certificate: String,
    /// Private key of the server certificate, in PEM.
    pub(crate) key: String,
    /// DNS names and addresses of the server certificate.
    pub(crate) names: BTreeSet<String>,
    /// Expiry of both certificates, in seconds since 1970.
    pub(crate) not_after: u64,
}

impl CertBundle {
    /// Creates certificates for `names`, valid from `now` (in seconds since 1970) for `validity`.
    pub(crate) fn create(
        names: &BTreeSet<String>,
        now: u64,
        validity: Duration,
    ) -> Result<Self, rcgen::Error> {
        let not_after = now + validity.as_secs();
        let mut authority = dated(CertificateParams::default(), now, not_after);
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate()?;
        // The common name distinguishes generations as well.
        let suffix: String = key
            .public_key_raw()
            .iter()
            .rev()
            .take(4)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let name = format!("ipu-operator {suffix}");
        authority.distinguished_name.push(DnType::CommonName, &name);
        let ca = authority.self_signed(&key)?.pem();
        let issuer = Issuer::new(authority, key);

        let all: Vec<String> = names.iter().cloned().collect();
        let mut server = dated(CertificateParams::new(all)?, now, not_after);
        server.distinguished_name.push(DnType::CommonName, "ipu-operator");
        server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        Ok(Self {
            ca,
            certificate: server.signed_by(&key, &issuer)?.pem(),
            key: key.serialize_pem(),
            names: names.clone(),
            not_after,
        })
    }
}

fn dated(mut params: CertificateParams, now: u64, not_after: u64) -> CertificateParams {
    let at = |seconds: u64| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
    params.not_before = at(now.saturating_sub(BACKDATED));
    params.not_after = at(not_after);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
}
