//! Certificates and keys for controllers, from a directory with one folder for each, as Kubernetes mounts secrets.

use std::io;
use std::path::{Path, PathBuf};

use crate::endpoint::ControllerEndpoint;
use crate::options::{ConnectError, ConnectOptions, Credentials, TlsOptions};

/// The folder of the controllers that have none of their own.
const DEFAULT: &str = "default";

/// The names that Kubernetes gives them in a Secret of type `kubernetes.io/tls`.
const CA: &str = "ca.crt";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const SERVER_NAME: &str = "server-name";
const USER_ID: &str = "user-id";
const ACCESS_KEY: &str = "access-key";

const FILES: [&str; 6] = [CA, CERTIFICATE, KEY, SERVER_NAME, USER_ID, ACCESS_KEY];

/// The largest file that is read: many times a long chain of certificates.
const MAX_BYTES: u64 = 1024 * 1024;

/// What a controller is shown, and what it has to show. By default nothing, over connections without TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControllerSecrets {
    /// The TLS that is spoken with it.
    pub tls: Option<TlsOptions>,
    /// Who we are to it.
    pub credentials: Option<Credentials>,
}

/// A file of secrets cannot be used. The message never tells what is in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {rule}", path.display())]
#[non_exhaustive]
pub struct SecretsError {
    /// The file or folder.
    pub path: PathBuf,
    /// The rule that it breaks, and what to do.
    pub rule: String,
}

impl ControllerSecrets {
    /// What the folder of `endpoint` in `directory` says: `HOST_PORT`, such as `pod001_8090`, or else `default`. Nothing if
    /// there is neither.
    ///
    /// In it may be `ca.crt` (TLS, with a controller whose certificate one of these has issued), `tls.crt` and `tls.key`
    /// (our own certificate), `server-name` (the name in the controller's certificate, if it is not the host), `user-id`
    /// and `access-key`. Names that begin with a point are passed over, as Kubernetes has such.
    ///
    /// # Errors
    ///
    /// [`SecretsError`] names the file and the rule: one that is not one of these, one without the other that belongs to
    /// it, one whose content is not what it should be, an access key that would travel without TLS.
    pub fn read(directory: &Path, endpoint: &ControllerEndpoint) -> Result<Self, SecretsError> {
        let own = format!("{}_{}", endpoint.host(), endpoint.port());
        for name in [own.as_str(), DEFAULT] {
            let folder = directory.join(name);
            match std::fs::read_dir(&folder) {
                Ok(entries) => return Folder::of(folder, entries)?.secrets(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(wrong(&folder, error.to_string())),
            }
        }
        // That there is nothing for this controller is said only of a directory that is there.
        match std::fs::read_dir(directory) {
            Ok(_) => Ok(Self::default()),
            Err(error) => Err(wrong(directory, error.to_string())),
        }
    }

    /// `options` with these secrets.
    #[must_use]
    pub fn apply(self, options: ConnectOptions) -> ConnectOptions {
        ConnectOptions {
            tls: self.tls,
            credentials: self.credentials,
            ..options
        }
    }
}

/// The files of one controller.
struct Folder {
    path: PathBuf,
    found: Vec<&'static str>,
}

impl Folder {
    fn of(path: PathBuf, entries: std::fs::ReadDir) -> Result<Self, SecretsError> {
        let mut found = Vec::new();
        for entry in entries {
            let name = entry
                .map_err(|error| wrong(&path, error.to_string()))?
                .file_name();
            let known = FILES.iter().find(|known| name == **known);
            match known {
                Some(known) => found.push(*known),
                None if name.to_string_lossy().starts_with('.') => {}
                None => {
                    let rule = format!("is none of {}; remove or rename it", FILES.join(", "));
                    return Err(wrong(&path.join(name), rule));
                }
            }
        }
        Ok(Self { path, found })
    }

    fn secrets(&self) -> Result<ControllerSecrets, SecretsError> {
        for (one, other, why) in [
            (CERTIFICATE, KEY, "a certificate needs its key"),
            (KEY, CERTIFICATE, "a key needs its certificate"),
            (USER_ID, ACCESS_KEY, "a user has an access key"),
            (ACCESS_KEY, USER_ID, "an access key is a user's"),
            (CERTIFICATE, CA, "a certificate is shown over TLS only"),
            (
                SERVER_NAME,
                CA,
                "a certificate with that name is shown over TLS only",
            ),
            (ACCESS_KEY, CA, "an access key is sent over TLS only"),
        ] {
            if self.has(one) && !self.has(other) {
                return Err(wrong(
                    &self.path.join(one),
                    format!("{why}: {other} is missing beside it"),
                ));
            }
        }
        let mut secrets = ControllerSecrets::default();
        if self.has(CA) {
            let mut tls = TlsOptions::new(self.read(CA)?);
            if self.has(CERTIFICATE) {
                tls = tls.with_identity(self.read(CERTIFICATE)?, self.read(KEY)?);
            }
            if self.has(SERVER_NAME) {
                tls = tls.with_server_name(self.word(SERVER_NAME)?);
            }
            crate::tls::client_config(&tls).map_err(|error| self.refused(&error))?;
            secrets.tls = Some(tls);
        }
        if self.has(USER_ID) {
            secrets.credentials = Some(Credentials::new(self.word(USER_ID)?, self.word(ACCESS_KEY)?));
        }
        Ok(secrets)
    }

    fn has(&self, name: &str) -> bool {
        self.found.contains(&name)
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, SecretsError> {
        let path = self.path.join(name);
        let size = std::fs::metadata(&path).map(|metadata| metadata.len());
        match size.and_then(|size| {
            if size > MAX_BYTES {
                Ok(None)
            } else {
                std::fs::read(&path).map(Some)
            }
        }) {
            Ok(Some(content)) => Ok(content),
            Ok(None) => Err(wrong(&path, format!("has more than {MAX_BYTES} bytes"))),
            Err(error) => Err(wrong(&path, error.to_string())),
        }
    }

    /// A file of one word, with or without the end of a line behind it.
    fn word(&self, name: &str) -> Result<String, SecretsError> {
        let content = String::from_utf8(self.read(name)?).unwrap_or_default();
        let word = content.trim_end_matches(['\r', '\n']);
        if word.is_empty() || !word.bytes().all(|byte| byte.is_ascii_graphic()) {
            let rule = "must be one word of visible ASCII characters";
            return Err(wrong(&self.path.join(name), rule.to_owned()));
        }
        Ok(word.to_owned())
    }

    /// The file that is meant by a refusal of what is in it.
    fn refused(&self, error: &ConnectError) -> SecretsError {
        let name = match error {
            ConnectError::Certificate { what: "client", .. } => CERTIFICATE,
            ConnectError::PrivateKey { .. } => KEY,
            ConnectError::ServerName { .. } => SERVER_NAME,
            _ => CA,
        };
        wrong(&self.path.join(name), error.to_string())
    }
}

fn wrong(path: &Path, rule: String) -> SecretsError {
    SecretsError {
        path: path.to_owned(),
        rule,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    struct Pair {
        certificate: String,
        key: String,
    }

    fn pair() -> Pair {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["pod001".to_owned()]).unwrap();
        Pair {
            certificate: params.self_signed(&key).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }

    fn write(folder: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(folder).unwrap();
        for (name, text) in files {
            fs::write(folder.join(name), text).unwrap();
        }
    }

    fn endpoint(text: &str) -> ControllerEndpoint {
        text.parse().unwrap()
    }

    #[test]
    fn a_controller_has_its_own_folder_or_the_default_one_or_nothing() {
        let scratch = tempfile::tempdir().unwrap();
        assert_eq!(
            ControllerSecrets::read(scratch.path(), &endpoint("pod001")).unwrap(),
            ControllerSecrets::default()
        );
        let Pair { certificate, key } = pair();
        let all = [
            ("ca.crt", &*certificate),
            ("tls.crt", &certificate),
            ("tls.key", &key),
            ("server-name", "controller.pod001\n"),
            ("user-id", "alice\n"),
            ("access-key", "wonder_land"),
            ("..data", "of Kubernetes"),
        ];
        write(&scratch.path().join("pod001_8090"), &all);
        write(&scratch.path().join("default"), &[("ca.crt", &certificate)]);
        let own = ControllerSecrets::read(scratch.path(), &endpoint("pod001:8090:ipunode=a")).unwrap();
        assert_eq!(own.credentials, Some(Credentials::new("alice", "wonder_land")));
        let tls = own.tls.unwrap();
        assert_eq!(tls.server_name.as_deref(), Some("controller.pod001"));
        assert!(tls.identity.is_some());
        let other = ControllerSecrets::read(scratch.path(), &endpoint("pod001:8091")).unwrap();
        assert_eq!(other.tls, Some(TlsOptions::new(certificate)));
        assert_eq!(other.credentials, None);
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_file_and_rule_and_never_shown() {
        let (one, other) = (pair(), pair());
        let ca = ("ca.crt", &*one.certificate);
        for (files, name, rule) in [
            (vec![("ca.pem", "x")], "ca.pem", "none of ca.crt"),
            (vec![("ca.crt", "HUSH")], "ca.crt", "there is none"),
            (
                vec![ca, ("tls.crt", &one.certificate)],
                "tls.crt",
                "tls.key is missing",
            ),
            (
                vec![("tls.crt", &one.certificate), ("tls.key", &one.key)],
                "tls.crt",
                "ca.crt is missing",
            ),
            (
                vec![ca, ("tls.crt", "HUSH"), ("tls.key", &one.key)],
                "tls.crt",
                "there is none",
            ),
            (
                vec![ca, ("tls.crt", &one.certificate), ("tls.key", "HUSH")],
                "tls.key",
                "private key",
            ),
            (
                vec![ca, ("tls.crt", &one.certificate), ("tls.key", &other.key)],
                "tls.key",
                "private key",
            ),
            (vec![ca, ("server-name", "not a name")], "server-name", "one word"),
            (vec![ca, ("user-id", "alice")], "user-id", "access-key is missing"),
            (
                vec![("user-id", "alice"), ("access-key", "HUSH")],
                "access-key",
                "over TLS only",
            ),
            (
                vec![ca, ("user-id", "alice"), ("access-key", "HUSH HUSH")],
                "access-key",
                "one word",
            ),
        ] {
            let scratch = tempfile::tempdir().unwrap();
            write(&scratch.path().join("pod001_8090"), &files);
            let error = ControllerSecrets::read(scratch.path(), &endpoint("pod001")).unwrap_err();
            let text = error.to_string();
            assert!(
                error.path.ends_with(name) && text.contains(rule),
                "{name}: {text}"
            );
            assert!(!text.contains("HUSH"), "{text}");
        }
        let error = ControllerSecrets::read(Path::new("/nowhere/at/all"), &endpoint("pod001")).unwrap_err();
        assert!(error.path.ends_with("at/all"), "{error}");
    }
}
