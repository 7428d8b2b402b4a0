//! An HTTPS server of scripted answers: the webhooks of an operator, or a proxy.

use std::io::{BufReader, Write as _};
use std::net::{IpAddr, Shutdown, TcpListener, UdpSocket};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;

use crate::fake_api::{Request, read_request};

/// Names of the Services that a server stands for.
const NAMES: [&str; 3] = [
    "ipu-operator-webhook-svc.ipu-operator-system.svc",
    "gc-ipu-operator-webhook-svc.ipu.svc",
    "gc-vipu-proxy.ipu.svc",
];
/// End of the validity of certificates, since 1970.
pub(crate) const NEVER: Duration = Duration::from_secs(3_000_000_000);

/// Returns the key of the servers' CA.
fn key() -> &'static KeyPair {
    static KEY: OnceLock<KeyPair> = OnceLock::new();
    KEY.get_or_init(|| KeyPair::generate().unwrap())
}

/// Returns a CA with this key that ends at this time since 1970.
fn ca(key: &KeyPair, end: Duration) -> (CertificateParams, rcgen::Certificate) {
    let mut parameters = CertificateParams::new(Vec::new()).unwrap();
    parameters.distinguished_name = DistinguishedName::new();
    parameters
        .distinguished_name
        .push(rcgen::DnType::CommonName, "test");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.not_after = rcgen::date_time_ymd(1970, 1, 1) + end;
    let certificate = parameters.self_signed(key).unwrap();
    (parameters, certificate)
}

/// A CA certificate in PEM of the servers that ends at this time since 1970.
pub(crate) fn own_ca(end: Duration) -> String {
    ca(key(), end).1.pem()
}

/// A CA certificate in PEM of another server.
pub(crate) fn foreign_ca() -> String {
    ca(&KeyPair::generate().unwrap(), NEVER).1.pem()
}

/// Returns an address of this host that is not the loopback, which endpoints may not have.
pub(crate) fn host_address() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // Only the route is chosen: nothing is sent.
    socket.connect("192.0.2.1:9").unwrap();
    socket.local_addr().unwrap().ip()
}

/// Starts a server on all addresses, and returns its port. Its threads end with the process of the test.
pub(crate) fn serve(answer: fn(&Request) -> Value) -> u16 {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (issuer, _) = ca(key(), NEVER);
    let own = KeyPair::generate().unwrap();
    let parameters = CertificateParams::new(NAMES.map(str::to_owned).to_vec()).unwrap();
    let certificate = parameters
        .signed_by(&own, &Issuer::from_params(&issuer, key()))
        .unwrap();
    let private = PrivateKeyDer::try_from(own.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)
        .unwrap();
    let config = Arc::new(config);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let config = Arc::clone(&config);
            std::thread::spawn(move || {
                let connection = ServerConnection::new(config).unwrap();
                // A client that refuses the certificate closes the connection.
                let _ = answer_one(StreamOwned::new(connection, stream.unwrap()), answer);
            });
        }
    });
    port
}

/// Answers one request, and closes the connection.
fn answer_one(
    stream: StreamOwned<ServerConnection, std::net::TcpStream>,
    answer: fn(&Request) -> Value,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (request, _) = read_request(&mut reader)?;
    let text = answer(&request).to_string();
    let mut stream = reader.into_inner();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{text}",
        text.len()
    )?;
    stream.conn.send_close_notify();
    stream.flush()?;
    // A connection that is dropped with unread bytes is reset, and the client may lose the answer.
    stream.sock.shutdown(Shutdown::Write)?;
    std::io::copy(&mut stream.sock, &mut std::io::sink()).map(drop)
}
