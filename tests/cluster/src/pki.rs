//! Keys and certificates of one cluster, as files in one directory.

use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::error::ClusterError;

/// Subject alternative names of the cluster's servers.
const SERVER_NAMES: [&str; 7] = [
    "127.0.0.1",
    "10.0.0.1",
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// A certificate authority and its certificates.
pub(crate) struct Pki {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    ca_pem: String,
}

impl Pki {
    /// Creates the files that the servers need, in `folder`; the servers listen at `address`.
    pub(crate) fn make(folder: &Path, address: IpAddr) -> Result<Self, ClusterError> {
        let certificate_error = |error: rcgen::Error| ClusterError::step("create certificates", error);
        fs::create_dir_all(folder).map_err(|error| ClusterError::step("create the folder of keys", error))?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, "test-cluster");
        let key = KeyPair::generate().map_err(certificate_error)?;
        let ca_pem = params.self_signed(&key).map_err(certificate_error)?.pem();
        let pki = Self {
            folder: folder.to_owned(),
            issuer: Issuer::new(params, key),
            ca_pem,
        };
        pki.write("ca.crt", &pki.ca_pem)?;
        pki.server("apiserver", address)?;
        let accounts = KeyPair::generate().map_err(certificate_error)?;
        pki.write("accounts.key", &accounts.serialize_pem())?;
        pki.write("accounts.pub", &accounts.public_key_pem())?;
        Ok(pki)
    }

    pub(crate) fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Returns the path of a file.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Issues a certificate for a user in groups, as `<user>.crt` and `<user>.key`.
    pub(crate) fn user(&self, user: &str, groups: &[&str]) -> Result<(PathBuf, PathBuf), ClusterError> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        // rcgen writes one organisation per certificate; no test user is in several groups.
        for group in groups {
            params.distinguished_name.push(DnType::OrganizationName, *group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&user.replace([':', '/'], "-"), params)
    }

    /// Issues a certificate for a server at `address`, as `<name>.crt` and `<name>.key`.
    pub(crate) fn server(&self, name: &str, address: IpAddr) -> Result<(PathBuf, PathBuf), ClusterError> {
        let mut names: Vec<String> = SERVER_NAMES.map(String::from).to_vec();
        names.push(address.to_string());
        let mut params =
            CertificateParams::new(names).map_err(|error| ClusterError::step("name a server", error))?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(name, params)
    }

    fn sign(&self, name: &str, mut params: CertificateParams) -> Result<(PathBuf, PathBuf), ClusterError> {
        let certificate_error = |error: rcgen::Error| ClusterError::step(format!("certify {name}"), error);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().map_err(certificate_error)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(certificate_error)?;
        Ok((
            self.write(&format!("{name}.crt"), &certificate.pem())?,
            self.write(&format!("{name}.key"), &key.serialize_pem())?,
        ))
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf, ClusterError> {
        let path = self.path(name);
        fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| ClusterError::step(format!("write {}", path.display()), error))?;
        Ok(path)
    }
}
