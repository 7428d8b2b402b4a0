//! Authentication: mutual TLS, user id and access key.

use std::collections::BTreeMap;

use ipu_core::hardware::Topology;
use ipu_vipu_client::{
    ConnectError, ConnectOptions, Credentials, GrpcController, RestController, Retry, TlsOptions, VipuError,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use vipu_sim::{ClientCertificates, Simulator, TlsFiles};

use super::{Fixture, Transport, endpoint, id, over_both_transports};

over_both_transports![
    a_user_with_a_certificate_and_a_key_is_admitted,
    a_wrong_or_missing_key_is_denied,
    a_client_without_a_certificate_is_denied,
    a_client_with_a_foreign_certificate_is_denied,
    a_client_rejects_a_controller_with_a_foreign_certificate,
    a_client_rejects_a_controller_with_another_name,
    a_secure_controller_rejects_plaintext_connections,
    invalid_options_are_refused_before_connecting,
];

/// A certificate authority.
pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Issues a certificate for `names` with its key.
    fn issue(&self, names: &[&str]) -> (String, String) {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let params = CertificateParams::new(names).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    /// Returns TLS options that trust this authority and present one of its certificates.
    pub(super) fn client(&self) -> TlsOptions {
        let (certificate, key) = self.issue(&["client"]);
        TlsOptions::new(self.pem()).with_identity(certificate, key)
    }
}

/// Starts a controller with a certificate for `names` and the user alice.
pub(super) async fn secure(
    transport: Transport,
    authority: &Authority,
    names: &[&str],
) -> (Fixture, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let put = |name: &str, text: String| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (certificate, key) = authority.issue(names);
    let files = TlsFiles {
        certificate: put("cert.pem", certificate),
        key: put("key.pem", key),
        clients: ClientCertificates::Required(put("ca.pem", authority.pem())),
    };
    let users = BTreeMap::from([("alice".to_owned(), "wonder_land".to_owned())]);
    let builder = Simulator::builder(Topology::pod4()).secure(files, users);
    (Fixture::start(transport, builder).await, directory)
}

fn alice() -> Credentials {
    Credentials::new("alice", "wonder_land")
}

pub(super) fn options(tls: TlsOptions) -> ConnectOptions {
    ConnectOptions::default().with_tls(tls).with_credentials(alice())
}

async fn connection_error(fixture: &Fixture, options: &ConnectOptions) -> VipuError {
    match fixture.reconnect(options).version().await {
        Ok(version) => panic!("the controller admitted the client and returned version {version}"),
        Err(error) => error,
    }
}

#[track_caller]
fn assert_denied(error: &VipuError) {
    let found = (error.label(), error.retry(), error.may_have_executed());
    assert_eq!(found, ("denied", Retry::AfterChange, false), "{error}");
}

async fn a_user_with_a_certificate_and_a_key_is_admitted(transport: Transport) {
    let authority = Authority::new();
    for (names, expected) in [(["127.0.0.1"], None), (["vipu.example"], Some("vipu.example"))] {
        let (fixture, _files) = secure(transport, &authority, &names).await;
        let mut tls = authority.client();
        tls.server_name = expected.map(ToOwned::to_owned);
        let controller = fixture.reconnect(&options(tls));
        let request = super::request("p1", 4);
        assert_eq!(controller.create_partition(request).await, Ok(id("p1")));
        assert_eq!(controller.list_partitions(None).await.unwrap().len(), 1);
        assert_eq!(controller.remove_partition(&id("p1"), false).await, Ok(()));
    }
}

async fn a_wrong_or_missing_key_is_denied(transport: Transport) {
    let authority = Authority::new();
    let (fixture, _files) = secure(transport, &authority, &["127.0.0.1"]).await;
    let tls = ConnectOptions::default().with_tls(authority.client());
    assert_denied(&connection_error(&fixture, &tls).await);
    for (user, key) in [("alice", "wrong"), ("bob", "wonder_land"), ("", "")] {
        let options = tls.clone().with_credentials(Credentials::new(user, key));
        let error = connection_error(&fixture, &options).await;
        assert_denied(&error);
        assert!(!error.to_string().contains("wonder_land"));
    }
}

async fn a_client_without_a_certificate_is_denied(transport: Transport) {
    let authority = Authority::new();
    let (fixture, _files) = secure(transport, &authority, &["127.0.0.1"]).await;
    let unauthenticated = TlsOptions::new(authority.pem());
    assert_denied(&connection_error(&fixture, &options(unauthenticated)).await);
}

async fn a_client_with_a_foreign_certificate_is_denied(transport: Transport) {
    let (authority, other) = (Authority::new(), Authority::new());
    let (fixture, _files) = secure(transport, &authority, &["127.0.0.1"]).await;
    let (certificate, key) = other.issue(&["client"]);
    let unauthenticated = TlsOptions::new(authority.pem()).with_identity(certificate, key);
    assert_denied(&connection_error(&fixture, &options(unauthenticated)).await);
}

async fn a_client_rejects_a_controller_with_a_foreign_certificate(transport: Transport) {
    let (authority, other) = (Authority::new(), Authority::new());
    let (fixture, _files) = secure(transport, &authority, &["127.0.0.1"]).await;
    assert_denied(&connection_error(&fixture, &options(other.client())).await);
}

async fn a_client_rejects_a_controller_with_another_name(transport: Transport) {
    let authority = Authority::new();
    let (fixture, _files) = secure(transport, &authority, &["vipu.example"]).await;
    assert_denied(&connection_error(&fixture, &options(authority.client())).await);
    let wrong = authority.client().with_server_name("other.example");
    assert_denied(&connection_error(&fixture, &options(wrong)).await);
}

async fn a_secure_controller_rejects_plaintext_connections(transport: Transport) {
    let authority = Authority::new();
    let (fixture, _files) = secure(transport, &authority, &["127.0.0.1"]).await;
    let error = fixture.controller.version().await.unwrap_err();
    assert_eq!(error.label(), "unreachable", "{error}");
}

async fn invalid_options_are_refused_before_connecting(transport: Transport) {
    let fixture = Fixture::without_delay(transport, Topology::pod4()).await;
    let (authority, other) = (Authority::new(), Authority::new());
    let connect = |options: &ConnectOptions| {
        let endpoint = endpoint(&fixture.simulator);
        match transport {
            Transport::Grpc => GrpcController::connect(&endpoint, options).map(drop),
            Transport::Rest => RestController::connect(&endpoint, options).map(drop),
        }
    };
    let (certificate, key) = authority.issue(&["client"]);
    let (_, other_key) = other.issue(&["client"]);
    let trust = || TlsOptions::new(authority.pem());

    let tls = |tls| connect(&ConnectOptions::default().with_tls(tls)).unwrap_err();
    let empty = tls(TlsOptions::new(""));
    assert!(
        matches!(empty, ConnectError::Certificate { what: "CA", .. }),
        "{empty}"
    );
    let swapped = tls(trust().with_identity(key.clone(), certificate.clone()));
    assert!(
        matches!(
            swapped,
            ConnectError::PrivateKey { .. } | ConnectError::Certificate { .. }
        ),
        "{swapped}"
    );
    let mixed = tls(trust().with_identity(certificate, other_key));
    assert!(matches!(mixed, ConnectError::PrivateKey { .. }), "{mixed}");
    let name = tls(trust().with_server_name("not a name"));
    assert!(matches!(name, ConnectError::ServerName { .. }), "{name}");
    let credentials = ConnectOptions::default().with_credentials(Credentials::new("alice", "two\nlines"));
    let error = connect(&credentials).unwrap_err();
    assert_eq!(error, ConnectError::Credential { what: "access key" });
}
