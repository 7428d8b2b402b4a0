//! Secure mode: mutual TLS, and a user with an access key.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use ipu_core::hardware::Topology;
use ipu_vipu_client::wire::VersionRequest;
use ipu_vipu_client::wire::version_service_client::VersionServiceClient;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};
use tonic::{Code, Request};
use vipu_sim::{ClientCertificates, Simulator, TlsFiles};

/// Creates certificates with the binary.
fn certificates(directory: &Path) -> TlsFiles {
    let status = Command::new(env!("CARGO_BIN_EXE_vipu-sim"))
        .arg("--tls-init")
        .arg(directory)
        .status()
        .unwrap();
    assert!(status.success());
    let server = directory.join("server");
    TlsFiles {
        certificate: server.join("cert.pem"),
        key: server.join("key.pem"),
        clients: ClientCertificates::Required(server.join("ca.pem")),
    }
}

fn tls(directory: &Path) -> ClientTlsConfig {
    let ca = std::fs::read(directory.join("client/ca.pem")).unwrap();
    ClientTlsConfig::new()
        .domain_name("localhost")
        .ca_certificate(Certificate::from_pem(ca))
}

fn with_identity(directory: &Path) -> ClientTlsConfig {
    let read = |name| std::fs::read(directory.join("client").join(name)).unwrap();
    tls(directory).identity(Identity::from_pem(read("cert.pem"), read("key.pem")))
}

fn request(user: &'static str, key: &'static str) -> Request<VersionRequest> {
    let mut request = Request::new(VersionRequest {});
    request
        .metadata_mut()
        .insert("vipu-user-id", user.parse().unwrap());
    request
        .metadata_mut()
        .insert("vipu-access-key", key.parse().unwrap());
    request
}

#[tokio::test]
async fn only_a_configured_user_with_a_certificate_is_admitted() {
    let directory = tempfile::tempdir().unwrap();
    let files = certificates(directory.path());
    let users = BTreeMap::from([("alice".to_owned(), "wonder_land".to_owned())]);
    let simulator = Simulator::builder(Topology::pod4())
        .secure(files, users)
        .start()
        .await
        .unwrap();
    let endpoint = Channel::from_shared(format!("https://{}", simulator.addr())).unwrap();
    let channel = endpoint
        .clone()
        .tls_config(with_identity(directory.path()))
        .unwrap()
        .connect()
        .await
        .unwrap();
    let mut client = VersionServiceClient::new(channel);
    client.get_version(request("alice", "wonder_land")).await.unwrap();
    for (user, key) in [("alice", "wrong"), ("bob", "wonder_land"), ("", "")] {
        let refused = client.get_version(request(user, key)).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
    }
    let refused = client.get_version(VersionRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    // Without a client certificate the connection fails at the latest on first use.
    let stranger = endpoint.tls_config(tls(directory.path())).unwrap().connect_lazy();
    let refused = VersionServiceClient::new(stranger)
        .get_version(request("alice", "wonder_land"))
        .await;
    assert_ne!(refused.unwrap_err().code(), Code::Unauthenticated);
}

#[test]
fn certificates_are_never_replaced() {
    let directory = tempfile::tempdir().unwrap();
    certificates(directory.path());
    let second = Command::new(env!("CARGO_BIN_EXE_vipu-sim"))
        .arg("--tls-init")
        .arg(directory.path())
        .output();
    let second = second.unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&second.stderr).contains("File exists"));
}
