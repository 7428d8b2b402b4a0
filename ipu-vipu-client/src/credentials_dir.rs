//! Certificates and keys of controllers, from a directory with one folder per controller, as Kubernetes
//! mounts Secrets.

use std::io;
use std::path::{Path, PathBuf};

use crate::endpoint::ControllerEndpoint;
use crate::options::{ConnectError, ConnectOptions, Credentials, TlsOptions};

/// The folder for controllers without their own.
const DEFAULT_FOLDER: &str = "default";

/// File names; those of TLS are the keys of a Kubernetes Secret of type `kubernetes.io/tls`.
const CA: &str = "ca.crt";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const SERVER_NAME: &str = "server-name";
const USER_ID: &str = "user-id";
const ACCESS_KEY: &str = "access-key";

const FILES: [&str; 6] = [CA, CERTIFICATE, KEY, SERVER_NAME, USER_ID, ACCESS_KEY];

/// Maximum file size in bytes: many times a long certificate chain.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// TLS options and credentials for a controller. The default has none, and connects without TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControllerSecrets {
    /// The TLS options of the connection.
    pub tls: Option<TlsOptions>,
    /// The user of the connection.
    pub credentials: Option<Credentials>,
}

/// The error for an unusable secret file. The message never contains file contents.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {rule}", path.display())]
#[non_exhaustive]
pub struct SecretsError {
    /// The file or folder.
    pub path: PathBuf,
    /// The violated rule, and its fix.
    pub rule: String,
}

impl ControllerSecrets {
    /// Reads the folder of `endpoint` in `directory`: `HOST_PORT`, such as `pod001_8090`, or else `default`.
    /// Returns the default if neither exists.
    ///
    /// Files: `ca.crt` (enables TLS; one of these certificates must have issued the controller's), `tls.crt`
    /// and `tls.key` (the client certificate), `server-name` (the name in the controller's certificate, if it
    /// differs from the host), `user-id` and `access-key`. Names that start with a dot are skipped, because
    /// Kubernetes creates such entries.
    ///
    /// # Errors
    ///
    /// [`SecretsError`] names the file and the rule. Examples are a folder without `ca.crt`, an unknown file,
    /// a file without its counterpart, invalid content, and an access key without TLS.
    pub fn read(directory: &Path, endpoint: &ControllerEndpoint) -> Result<Self, SecretsError> {
        let own_name = format!("{}_{}", endpoint.host(), endpoint.port());
        for name in [own_name.as_str(), DEFAULT_FOLDER] {
            let folder = directory.join(name);
            match std::fs::read_dir(&folder) {
                Ok(entries) => return CredentialsDir::open(folder, entries)?.secrets(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(invalid(&folder, error.to_string())),
            }
        }
        // A missing folder is valid only in an existing directory.
        match std::fs::read_dir(directory) {
            Ok(_) => Ok(Self::default()),
            Err(error) => Err(invalid(directory, error.to_string())),
        }
    }

    /// Returns `options` with these secrets.
    #[must_use]
    pub fn apply(self, options: ConnectOptions) -> ConnectOptions {
        ConnectOptions {
            tls: self.tls,
            credentials: self.credentials,
            ..options
        }
    }
}

/// Directory with the credentials of one controller.
struct CredentialsDir {
    path: PathBuf,
    found: Vec<&'static str>,
}

impl CredentialsDir {
    fn open(path: PathBuf, entries: std::fs::ReadDir) -> Result<Self, SecretsError> {
        let mut found = Vec::new();
        for entry in entries {
            let name = entry
                .map_err(|error| invalid(&path, error.to_string()))?
                .file_name();
            let file = FILES.iter().find(|file| name == **file);
            match file {
                Some(file) => found.push(*file),
                None if name.to_string_lossy().starts_with('.') => {}
                None => {
                    let rule = format!("is none of {}; remove or rename it", FILES.join(", "));
                    return Err(invalid(&path.join(name), rule));
                }
            }
        }
        Ok(Self { path, found })
    }

    fn secrets(&self) -> Result<ControllerSecrets, SecretsError> {
        for (file, counterpart, rule) in [
            (CERTIFICATE, KEY, "a certificate needs its key"),
            (KEY, CERTIFICATE, "a key needs its certificate"),
            (USER_ID, ACCESS_KEY, "a user needs an access key"),
            (ACCESS_KEY, USER_ID, "an access key needs a user"),
            (CERTIFICATE, CA, "a certificate is sent over TLS only"),
            (SERVER_NAME, CA, "a server name is checked over TLS only"),
            (ACCESS_KEY, CA, "an access key is sent over TLS only"),
        ] {
            if self.has(file) && !self.has(counterpart) {
                return Err(invalid(
                    &self.path.join(file),
                    format!("{rule}: {counterpart} is missing in the folder"),
                ));
            }
        }
        // An empty folder, such as that of an empty Kubernetes Secret, must not turn TLS off.
        if !self.has(CA) {
            let rule = format!("{CA} is missing; add it, or remove the folder to connect without TLS");
            return Err(invalid(&self.path, rule));
        }
        let mut tls = TlsOptions::new(self.read(CA)?);
        if self.has(CERTIFICATE) {
            tls = tls.with_identity(self.read(CERTIFICATE)?, self.read(KEY)?);
        }
        if self.has(SERVER_NAME) {
            tls = tls.with_server_name(self.read_word(SERVER_NAME)?);
        }
        crate::tls::client_config(&tls).map_err(|error| self.refused(&error))?;
        let mut secrets = ControllerSecrets {
            tls: Some(tls),
            credentials: None,
        };
        if self.has(USER_ID) {
            secrets.credentials = Some(Credentials::new(
                self.read_word(USER_ID)?,
                self.read_word(ACCESS_KEY)?,
            ));
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
            if size > MAX_FILE_BYTES {
                Ok(None)
            } else {
                std::fs::read(&path).map(Some)
            }
        }) {
            Ok(Some(content)) => Ok(content),
            Ok(None) => Err(invalid(&path, format!("has more than {MAX_FILE_BYTES} bytes"))),
            Err(error) => Err(invalid(&path, error.to_string())),
        }
    }

    /// Reads a file of one word, with or without a trailing newline.
    fn read_word(&self, name: &str) -> Result<String, SecretsError> {
        let content = String::from_utf8(self.read(name)?).unwrap_or_default();
        let word = content.trim_end_matches(['\r', '\n']);
        if word.is_empty() || !word.bytes().all(|byte| byte.is_ascii_graphic()) {
            let rule = "must be one word of visible ASCII characters";
            return Err(invalid(&self.path.join(name), rule.to_owned()));
        }
        Ok(word.to_owned())
    }

    /// Returns the error with the file whose content was refused.
    fn refused(&self, error: &ConnectError) -> SecretsError {
        let name = match error {
            ConnectError::Certificate { what: "client", .. } => CERTIFICATE,
            ConnectError::PrivateKey { .. } => KEY,
            ConnectError::ServerName { .. } => SERVER_NAME,
            _ => CA,
        };
        invalid(&self.path.join(name), error.to_string())
    }
}

fn invalid(path: &Path, rule: String) -> SecretsError {
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
    fn a_controller_uses_its_folder_or_the_default_folder_or_no_secrets() {
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
        let secrets = ControllerSecrets::read(scratch.path(), &endpoint("pod001:8090:ipunode=a")).unwrap();
        assert_eq!(
            secrets.credentials,
            Some(Credentials::new("alice", "wonder_land"))
        );
        let tls = secrets.tls.unwrap();
        assert_eq!(tls.server_name.as_deref(), Some("controller.pod001"));
        assert!(tls.identity.is_some());
        let other = ControllerSecrets::read(scratch.path(), &endpoint("pod001:8091")).unwrap();
        assert_eq!(other.tls, Some(TlsOptions::new(certificate)));
        assert_eq!(other.credentials, None);
    }

    #[test]
    fn invalid_secrets_are_refused_with_file_and_rule_and_without_contents() {
        let (one, other) = (pair(), pair());
        let ca = ("ca.crt", &*one.certificate);
        for (files, name, rule) in [
            (vec![], "pod001_8090", "ca.crt is missing"),
            (
                vec![("..data", "of an empty Secret")],
                "pod001_8090",
                "ca.crt is missing",
            ),
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
