//! Parses and checks certificates before anything is sent, and distinguishes a refused handshake from a
//! broken connection.

use std::error::Error;
use std::io;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use crate::options::{ConnectError, TlsOptions};

/// The parts of [`TlsOptions`], parsed.
struct Parsed {
    roots: RootCertStore,
    identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    server_name: Option<ServerName<'static>>,
}

fn parse(options: &TlsOptions) -> Result<Parsed, ConnectError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&options.ca_pem, "CA")? {
        roots
            .add(certificate)
            .map_err(|error| ConnectError::Certificate {
                what: "CA",
                detail: error.to_string(),
            })?;
    }
    let identity = options.identity.as_ref().map(|identity| {
        let key =
            PrivateKeyDer::from_pem_slice(&identity.key_pem).map_err(|error| ConnectError::PrivateKey {
                detail: error.to_string(),
            })?;
        Ok((certificates(&identity.cert_pem, "client")?, key))
    });
    let server_name = options.server_name.as_ref().map(|name| {
        ServerName::try_from(name.clone()).map_err(|_| ConnectError::ServerName { name: name.clone() })
    });
    Ok(Parsed {
        roots,
        identity: identity.transpose()?,
        server_name: server_name.transpose()?,
    })
}

fn certificates(pem: &[u8], what: &'static str) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(ConnectError::Certificate {
            what,
            detail: "there is none".into(),
        }),
        Ok(found) => Ok(found),
        Err(error) => Err(ConnectError::Certificate {
            what,
            detail: error.to_string(),
        }),
    }
}

fn builder() -> Result<rustls::ConfigBuilder<rustls::ClientConfig, rustls::WantsVerifier>, ConnectError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| ConnectError::Certificate {
            what: "CA",
            detail: error.to_string(),
        })
}

/// Returns a configuration for connections that never use TLS.
#[cfg(feature = "rest")]
pub(crate) fn plaintext_config() -> Result<rustls::ClientConfig, ConnectError> {
    let roots = rustls::RootCertStore::empty();
    Ok(builder()?.with_root_certificates(roots).with_no_client_auth())
}

/// Returns the configuration for `options`. The cryptography provider is passed explicitly and not installed
/// for the process.
pub(crate) fn client_config(options: &TlsOptions) -> Result<rustls::ClientConfig, ConnectError> {
    let parsed = parse(options)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(parsed.roots), provider)
        .build()
        .map_err(|error| ConnectError::Certificate {
            what: "CA",
            detail: error.to_string(),
        })?;
    let verifier: Arc<dyn ServerCertVerifier> = match parsed.server_name {
        Some(name) => Arc::new(NameOverrideVerifier { name, verifier }),
        None => verifier,
    };
    // Dangerous only in that the verifier is custom: it is the standard one, at most with another expected
    // name.
    let builder = builder()?.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = match parsed.identity {
        Some((chain, key)) => {
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| ConnectError::PrivateKey {
                    detail: error.to_string(),
                })?
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// The standard verification with another name than the host of the connection.
#[derive(Debug)]
struct NameOverrideVerifier {
    name: ServerName<'static>,
    verifier: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for NameOverrideVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _host: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.verifier
            .verify_server_cert(end_entity, intermediates, &self.name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// The text with which rustls reports that the peer refused the handshake. HTTP/2 keeps only the text of the
/// error that broke the connection (the `h2` crate's `Error`). A server reports a refused client certificate
/// there, because with TLS 1.3 the client's side of the handshake has ended by then.
const FATAL_ALERT_PREFIX: &str = "received fatal alert";

/// Returns whether a certificate was refused, the client's by the controller or the controller's by the
/// client. A retry cannot help.
pub(crate) fn is_refused_certificate(error: &(dyn Error + 'static)) -> bool {
    if let Some(tls) = error.downcast_ref::<rustls::Error>() {
        return matches!(
            tls,
            rustls::Error::InvalidCertificate(_)
                | rustls::Error::AlertReceived(_)
                | rustls::Error::NoCertificatesPresented
        );
    }
    // An error inside an `io::Error` is not its source and needs `get_ref`.
    let wrapped = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref)
        .is_some_and(|inner| is_refused_certificate(inner));
    wrapped
        || error.to_string().starts_with(FATAL_ALERT_PREFIX)
        || error.source().is_some_and(is_refused_certificate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(options: &TlsOptions) -> ConnectError {
        match client_config(options) {
            Ok(_) => panic!("{options:?} was accepted"),
            Err(error) => error,
        }
    }

    #[test]
    fn an_invalid_certificate_is_refused_before_anything_is_sent() {
        for pem in [
            "",
            "nonsense",
            "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n",
        ] {
            let error = refusal(&TlsOptions::new(pem));
            assert!(
                matches!(error, ConnectError::Certificate { what: "CA", .. }),
                "{pem:?} {error}"
            );
        }
    }

    #[test]
    fn a_refused_certificate_is_found_in_nested_errors() {
        #[derive(Debug, thiserror::Error)]
        #[error("connect")]
        struct Outer(#[source] io::Error);

        let alert = rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired);
        let text = io::Error::other(alert.to_string());
        assert!(is_refused_certificate(&Outer(text)), "as text: {alert}");
        assert!(is_refused_certificate(&Outer(io::Error::other(
            io::Error::other(alert)
        ))));
        assert!(!is_refused_certificate(&Outer(io::Error::other("broken pipe"))));
        assert!(!is_refused_certificate(&io::Error::from(
            io::ErrorKind::ConnectionRefused
        )));
    }
}
