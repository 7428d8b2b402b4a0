//! Certificates with their keys, and what a Secret needs next (pure).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::pem::parse_x509_pem;

use super::Rotation;

/// Validity of an authority.
const AUTHORITY_VALIDITY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Seconds by which a certificate is backdated, because clocks differ.
const BACKDATED_SECONDS: u64 = 300;

/// A certificate and its private key, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct KeyedCertificate {
    pub(super) certificate: String,
    pub(super) key: String,
}

// The key is not printed.
impl std::fmt::Debug for KeyedCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyedCertificate")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

impl KeyedCertificate {
    /// Returns its expiry in seconds since 1970; 0 if it cannot be read.
    pub(super) fn not_after(&self) -> u64 {
        self.read().map_or(0, |read| read.not_after)
    }

    /// Reads it; none if it cannot be read, or its key is another one.
    fn read(&self) -> Option<Read> {
        let (_, pem) = parse_x509_pem(self.certificate.as_bytes()).ok()?;
        let certificate = pem.parse_x509().ok()?;
        let key = KeyPair::from_pem(&self.key).ok()?;
        if *certificate.public_key().subject_public_key.data != *key.public_key_raw() {
            return None;
        }
        let names = certificate.subject_alternative_name().ok()?;
        let names = names.map(|names| &*names.value.general_names).unwrap_or_default();
        let names = names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => {
                let address = match bytes.len() {
                    4 => IpAddr::from(<[u8; 4]>::try_from(*bytes).ok()?),
                    _ => IpAddr::from(<[u8; 16]>::try_from(*bytes).ok()?),
                };
                Some(address.to_string())
            }
            _ => None,
        });
        let names = names.collect();
        let (mut own, mut issuer) = (None, None);
        for extension in certificate.extensions() {
            match extension.parsed_extension() {
                ParsedExtension::SubjectKeyIdentifier(key) => own = Some(key.0.to_vec()),
                ParsedExtension::AuthorityKeyIdentifier(key) => {
                    issuer = key.key_identifier.as_ref().map(|key| key.0.to_vec());
                }
                _ => {}
            }
        }
        let validity = certificate.validity();
        Some(Read {
            names,
            not_before: u64::try_from(validity.not_before.timestamp()).ok()?,
            not_after: u64::try_from(validity.not_after.timestamp()).ok()?,
            own,
            issuer,
        })
    }
}

/// Content of a certificate.
struct Read {
    /// DNS names and addresses that it covers.
    names: BTreeSet<String>,
    /// Begin and end of its validity, in seconds since 1970.
    not_before: u64,
    not_after: u64,
    /// Identifiers of its key, and of the key that signed it.
    own: Option<Vec<u8>>,
    issuer: Option<Vec<u8>>,
}

/// Content of the Secret. A missing or unreadable pair is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StoredCertificates {
    pub(super) authority: Option<KeyedCertificate>,
    pub(super) server: Option<KeyedCertificate>,
}

impl StoredCertificates {
    /// Reads the data of a Secret.
    pub(super) fn read(data: Option<&BTreeMap<String, ByteString>>) -> Self {
        let text = |key: &str| {
            let bytes = data?.get(key)?;
            String::from_utf8(bytes.0.clone()).ok()
        };
        let pair = |certificate: &str, key: &str| {
            let pair = KeyedCertificate {
                certificate: text(certificate)?,
                key: text(key)?,
            };
            pair.read().is_some().then_some(pair)
        };
        Self {
            authority: pair(super::CA_KEY, "ca.key"),
            server: pair("tls.crt", "tls.key"),
        }
    }

    /// Returns the data of a Secret.
    pub(super) fn data(&self) -> BTreeMap<String, ByteString> {
        let pairs = [
            (super::CA_KEY, "ca.key", &self.authority),
            ("tls.crt", "tls.key", &self.server),
        ];
        let files = pairs.into_iter().flat_map(|(certificate, key, pair)| {
            let pair = pair.iter();
            pair.flat_map(move |pair| [(certificate, &pair.certificate), (key, &pair.key)])
        });
        files
            .map(|(name, text)| (name.to_owned(), ByteString(text.as_bytes().to_vec())))
            .collect()
    }
}

/// Returns the content to write; none if `stored` covers `names` and is valid for long enough.
pub(super) fn renewed(
    stored: Option<&StoredCertificates>,
    names: &BTreeSet<String>,
    now: u64,
    rotation: &Rotation,
) -> Result<Option<StoredCertificates>, rcgen::Error> {
    let canonical = |name: &String| match name.parse::<IpAddr>() {
        Ok(address) => address.to_string(),
        Err(_) => name.clone(),
    };
    let names: BTreeSet<String> = names.iter().map(canonical).collect();
    let stored_authority = stored.and_then(|stored| stored.authority.as_ref());
    // The authority outlives every certificate that it signs. After the clock was set back, it may begin in
    // the future.
    let known = stored_authority.and_then(|authority| {
        let read = authority.read()?;
        let is_usable = read.not_before <= now && now + rotation.validity.as_secs() < read.not_after;
        is_usable.then_some((authority, read.own))
    });
    let server = stored.and_then(|stored| stored.server.as_ref()?.read());
    let server = server.filter(|server| {
        let is_signed = known.as_ref().is_some_and(|(_, own)| *own == server.issuer);
        is_signed && server.not_before <= now
    });
    let (known_names, not_after) = server
        .map(|server| (server.names, server.not_after))
        .unwrap_or_default();
    if names.is_subset(&known_names) && now + rotation.renew_before.as_secs() < not_after {
        return Ok(None);
    }
    let authority = match known {
        Some((known, _)) => known.clone(),
        None => authority(now)?,
    };
    // Operators with other settings may run at the same time, and their names must be covered too.
    let names: BTreeSet<String> = if now < not_after {
        names.union(&known_names).cloned().collect()
    } else {
        names
    };
    let server = sign(&authority.key, &names, now, rotation.validity)?;
    Ok(Some(StoredCertificates {
        authority: Some(authority),
        server: Some(server),
    }))
}

fn authority(now: u64) -> Result<KeyedCertificate, rcgen::Error> {
    let key = KeyPair::generate()?;
    Ok(KeyedCertificate {
        certificate: authority_params(now).self_signed(&key)?.pem(),
        key: key.serialize_pem(),
    })
}

fn authority_params(now: u64) -> CertificateParams {
    let mut params = dated(CertificateParams::default(), now, AUTHORITY_VALIDITY);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
        .distinguished_name
        .push(DnType::CommonName, "ipu-operator CA");
    params
}

fn sign(
    authority_key: &str,
    names: &BTreeSet<String>,
    now: u64,
    validity: Duration,
) -> Result<KeyedCertificate, rcgen::Error> {
    let issuer = Issuer::new(authority_params(now), KeyPair::from_pem(authority_key)?);
    let all: Vec<String> = names.iter().cloned().collect();
    let mut params = dated(CertificateParams::new(all)?, now, validity);
    params.distinguished_name.push(DnType::CommonName, "ipu-operator");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    Ok(KeyedCertificate {
        certificate: params.signed_by(&key, &issuer)?.pem(),
        key: key.serialize_pem(),
    })
}

fn dated(mut params: CertificateParams, now: u64, validity: Duration) -> CertificateParams {
    let at = |seconds: u64| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
    params.not_before = at(now.saturating_sub(BACKDATED_SECONDS));
    params.not_after = at(now + validity.as_secs());
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 2_000_000_000;

    fn names(all: &[&str]) -> BTreeSet<String> {
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    fn next(stored: &StoredCertificates, names: &BTreeSet<String>, now: u64) -> Option<StoredCertificates> {
        renewed(Some(stored), names, now, &Rotation::default()).unwrap()
    }

    fn covered(stored: &StoredCertificates) -> BTreeSet<String> {
        stored.server.as_ref().unwrap().read().unwrap().names
    }

    fn first() -> StoredCertificates {
        let own = names(&["hooks.ns.svc", "10.0.0.1", "fd00:0::1"]);
        renewed(None, &own, NOW, &Rotation::default()).unwrap().unwrap()
    }

    #[test]
    fn a_certificate_covers_its_names_and_addresses_and_survives_the_secret() {
        let first = first();
        assert_eq!(covered(&first), names(&["hooks.ns.svc", "10.0.0.1", "fd00::1"]));
        let read = StoredCertificates::read(Some(&first.data()));
        assert_eq!(read, first);
        assert_eq!(next(&read, &names(&["10.0.0.1"]), NOW), None);
    }

    #[test]
    fn an_additional_name_and_the_coming_expiry_renew_the_certificate_of_the_same_authority() {
        let (first, day) = (first(), 24 * 3600);
        let added = next(&first, &names(&["other"]), NOW).unwrap();
        assert_eq!(
            covered(&added),
            names(&["hooks.ns.svc", "10.0.0.1", "fd00::1", "other"])
        );
        assert_eq!(next(&first, &names(&[]), NOW + 59 * day), None);
        let renewed = next(&first, &names(&[]), NOW + 60 * day).unwrap();
        assert_eq!(renewed.authority, first.authority);
        assert_eq!(added.authority, first.authority);
        assert_ne!(renewed.server, first.server);
        // Names of operators that no longer run are dropped with an expired certificate.
        let expired = next(&first, &names(&["other"]), NOW + 91 * day).unwrap();
        assert_eq!(covered(&expired), names(&["other"]));
    }

    #[test]
    fn a_lost_certificate_is_signed_again_and_a_lost_or_ending_authority_replaced() {
        let first = first();
        let own = names(&["hooks.ns.svc"]);
        let mut without_server = first.data();
        without_server.remove("tls.crt");
        let restored = next(&StoredCertificates::read(Some(&without_server)), &own, NOW).unwrap();
        assert_eq!(restored.authority, first.authority);
        let mut without_key = first.data();
        without_key.insert("ca.key".to_owned(), ByteString(b"no key".to_vec()));
        let replaced = next(&StoredCertificates::read(Some(&without_key)), &own, NOW).unwrap();
        assert_ne!(replaced.authority, first.authority);
        // Keys and certificates that do not belong together.
        let other = renewed(None, &own, NOW, &Rotation::default()).unwrap().unwrap();
        let mixed = StoredCertificates {
            authority: other.authority.clone(),
            server: first.server.clone(),
        };
        assert_ne!(next(&mixed, &own, NOW).unwrap().server, first.server);
        let mut mixed = first.data();
        mixed.insert("tls.key".to_owned(), other.data()["tls.key"].clone());
        let mixed = StoredCertificates::read(Some(&mixed));
        assert_ne!(next(&mixed, &own, NOW).unwrap().server, first.server);
        // A certificate of the future, after the clock was set back.
        assert_ne!(next(&first, &own, NOW - 24 * 3600).unwrap().server, first.server);
        let late = next(&first, &own, NOW + AUTHORITY_VALIDITY.as_secs() - 80 * 24 * 3600).unwrap();
        assert_ne!(late.authority, first.authority);
    }
}
