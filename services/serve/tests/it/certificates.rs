//! Certificates that are replaced while the server runs.

use std::convert::Infallible;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use ipu_serve::{ClientCertificates, Handler, Peer, ServeOptions, Tls, TlsError, TlsFiles, TlsPem, serve};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

/// Returns the names in the client certificate.
struct Names;

impl Handler for Names {
    type Body = Full<Bytes>;
    type Error = Infallible;

    async fn handle(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let peer = request.extensions().get::<Peer>().unwrap();
        Ok(Response::new(Full::from(peer.names().join(","))))
    }
}

/// Certificate authority.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// Certificate and key, as PEM.
struct Identity {
    certificate: String,
    key: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn issue(&self, name: &str) -> Identity {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        Identity {
            certificate: params.signed_by(&key, &self.0).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }

    fn pem(&self) -> String {
        self.0.pem()
    }
}

fn write(directory: &Path, server: &Identity, clients: &Authority) {
    for (name, text) in [
        ("tls.crt", &server.certificate),
        ("tls.key", &server.key),
        ("ca.crt", &clients.pem()),
    ] {
        fs::write(directory.join(name), text).unwrap();
    }
}

fn files(directory: &Path) -> TlsFiles {
    TlsFiles {
        certificate: directory.join("tls.crt"),
        key: directory.join("tls.key"),
        clients: ClientCertificates::Required(directory.join("ca.crt")),
    }
}

async fn start(tls: Tls) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut options = ServeOptions::default();
    options.tls = Some(tls);
    tokio::spawn(async move {
        let (_serving, stop) = tokio::sync::watch::channel(());
        serve(listener, Arc::new(Names), options, stop).await;
    });
    address
}

/// Sends a request with this client certificate and trusted authority; returns the body, or none without a
/// connection.
async fn get(address: SocketAddr, trusted: &Authority, client: &Identity) -> Option<String> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(trusted.pem().as_bytes()).unwrap())
        .unwrap();
    let certificate = CertificateDer::from_pem_slice(client.certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(client.key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate], key)
        .unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    let mut stream = connector
        .connect("localhost".try_into().unwrap(), stream)
        .await
        .ok()?;
    let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.ok()?;
    text.rsplit_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}

#[tokio::test]
async fn a_reload_replaces_the_certificate_and_the_client_issuers_of_a_running_server() {
    let scratch = tempfile::tempdir().unwrap();
    let (old, new) = (Authority::new(), Authority::new());
    write(scratch.path(), &old.issue("localhost"), &old);
    let tls = Tls::from_files(files(scratch.path())).unwrap();
    let address = start(tls.clone()).await;
    let (old_client, new_client) = (old.issue("old"), new.issue("new"));
    assert!(get(address, &old, &old_client).await.unwrap().contains("old"));
    assert_eq!(get(address, &old, &new_client).await, None);
    assert!(!tls.reload().unwrap(), "the files are unchanged");

    write(scratch.path(), &new.issue("localhost"), &new);
    assert!(tls.reload().unwrap());
    assert!(get(address, &new, &new_client).await.unwrap().contains("new"));
    assert_eq!(
        get(address, &old, &old_client).await,
        None,
        "the old server certificate is not in use"
    );
    assert_eq!(
        get(address, &new, &old_client).await,
        None,
        "the old issuer is not trusted"
    );
}

#[tokio::test]
async fn mismatched_files_are_named_and_not_loaded() {
    let scratch = tempfile::tempdir().unwrap();
    let (old, new) = (Authority::new(), Authority::new());
    write(scratch.path(), &old.issue("localhost"), &old);
    let tls = Tls::from_files(files(scratch.path())).unwrap();
    let address = start(tls.clone()).await;
    let client = old.issue("client");
    let other = new.issue("localhost");
    // Only the first of two files is replaced.
    fs::write(scratch.path().join("tls.crt"), &other.certificate).unwrap();
    let error = tls.reload().unwrap_err();
    assert!(
        matches!(&error, TlsError::Certificate { path, .. } if path.ends_with("tls.crt")),
        "{error}"
    );
    assert!(get(address, &old, &client).await.is_some());
    fs::write(scratch.path().join("tls.key"), &other.key).unwrap();
    assert!(tls.reload().unwrap());
    assert!(get(address, &new, &client).await.is_some());

    fs::remove_file(scratch.path().join("ca.crt")).unwrap();
    let error = tls.reload().unwrap_err();
    assert!(
        matches!(&error, TlsError::Read { path, .. } if path.ends_with("ca.crt")),
        "{error}"
    );
    assert!(get(address, &new, &client).await.is_some());
}

#[tokio::test]
async fn a_server_reloads_a_replaced_certificate_without_a_request() {
    let scratch = tempfile::tempdir().unwrap();
    let (old, new) = (Authority::new(), Authority::new());
    write(scratch.path(), &old.issue("localhost"), &old);
    let address = start(Tls::from_files(files(scratch.path())).unwrap()).await;
    let client = old.issue("client");
    assert!(get(address, &old, &client).await.is_some());
    write(scratch.path(), &new.issue("localhost"), &old);
    while get(address, &new, &client).await.is_none() {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_certificate_in_memory_can_be_replaced_and_an_unusable_one_is_refused() {
    let (old, new) = (Authority::new(), Authority::new());
    let pem = |identity: Identity| TlsPem::new(identity.certificate, identity.key);
    let first = pem(old.issue("localhost"));
    let tls = Tls::from_pem(&first).unwrap();
    let address = start(tls.clone()).await;
    let client = old.issue("client");
    assert!(get(address, &old, &client).await.is_some());
    assert!(!tls.reload().unwrap(), "there is no file to reload");

    let second = pem(new.issue("localhost"));
    tls.replace(&TlsPem::new(&second.certificate, &first.key))
        .unwrap_err();
    assert!(get(address, &old, &client).await.is_some());
    tls.replace(&second).unwrap();
    assert!(get(address, &new, &client).await.is_some());
    assert_eq!(get(address, &old, &client).await, None);
    assert!(!format!("{second:?}").contains("PRIVATE KEY"));
}
