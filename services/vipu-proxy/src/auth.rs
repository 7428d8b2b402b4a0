//! Authentication of clients and authorization for owners.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderMap, StatusCode, header};
use ipu_core::Owner;
use ipu_serve::{LocalProcess, Peer};
use parking_lot::RwLock;

use crate::problem::{Problem, RETRY_SOON_SECS};

/// Authenticated client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    name: String,
    namespaces: Option<BTreeSet<String>>,
    is_administrator: bool,
}

impl Identity {
    /// Creates an identity that may act for owners of every namespace.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            namespaces: None,
            is_administrator: false,
        }
    }

    /// Restricts the identity to cordons, repairs, releases and reading: it requests, renews and resets no
    /// partitions.
    #[must_use]
    pub fn into_administrator(mut self) -> Self {
        self.is_administrator = true;
        self
    }

    /// Restricts the identity to owners of these namespaces.
    #[must_use]
    pub fn within(mut self, namespaces: impl IntoIterator<Item = String>) -> Self {
        self.namespaces = Some(namespaces.into_iter().collect());
        self
    }

    /// Name of the client, for logs and as the owner of its cordons.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Namespaces of the owners that the client may act for. None allows every owner.
    pub(crate) fn namespaces(&self) -> Option<&BTreeSet<String>> {
        self.namespaces.as_ref()
    }

    /// Returns a problem if the client may not use partitions of `owner`.
    pub(crate) fn may_use_partitions_of(&self, owner: &Owner) -> Result<(), Problem> {
        self.may_use_partitions()?;
        self.may_act_for(owner)
    }

    /// Returns a problem if the client is an administrator, which releases partitions and does not use them.
    pub(crate) fn may_use_partitions(&self) -> Result<(), Problem> {
        if !self.is_administrator {
            return Ok(());
        }
        let detail = format!(
            "{} is an administrator, which may cordon hardware, repair, and release partitions only",
            self.name
        );
        Err(Problem::new(StatusCode::FORBIDDEN, "OutOfScope", detail)
            .with_fix("use a token of an account in --accounts"))
    }

    /// Returns a problem if the client may not act for `owner`.
    pub(crate) fn may_act_for(&self, owner: &Owner) -> Result<(), Problem> {
        let namespace = owner.job.namespace.as_str();
        match &self.namespaces {
            Some(namespaces) if !namespaces.contains(namespace) => Err(Problem::new(
                StatusCode::FORBIDDEN,
                "OutOfScope",
                format!("{} may not act for owners of namespace {namespace}", self.name),
            )),
            _ => Ok(()),
        }
    }

    /// Returns a problem if the client is restricted to some namespaces.
    pub(crate) fn may_act_for_all(&self) -> Result<(), Problem> {
        match &self.namespaces {
            Some(_) => Err(Problem::new(
                StatusCode::FORBIDDEN,
                "OutOfScope",
                format!("{} may act for owners of some namespaces only", self.name),
            )),
            None => Ok(()),
        }
    }
}

/// Credentials of a request.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Credentials<'a> {
    /// Token of the header `Authorization: Bearer …`.
    pub bearer: Option<&'a str>,
    /// Names in the verified client certificate of the connection.
    pub names: &'a [String],
    /// Addresses of the client and of the server end of the connection.
    pub connection: Option<(SocketAddr, SocketAddr)>,
    /// Process at the other end of a Unix socket.
    pub process: Option<LocalProcess>,
}

impl<'a> Credentials<'a> {
    /// Returns whether the request has a token or a certificate.
    pub(crate) fn are_present(&self) -> bool {
        self.bearer.is_some() || !self.names.is_empty()
    }

    pub(crate) fn of(headers: &'a HeaderMap, peer: Option<&'a Peer>) -> Self {
        let authorization = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        let bearer = authorization
            .and_then(|text| text.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim());
        Self {
            bearer,
            names: peer.map_or(&[], Peer::names),
            connection: peer.and_then(|peer| Some((peer.address(), peer.local_address()?))),
            process: peer.and_then(Peer::process),
        }
    }
}

/// Reason of a failed authentication.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// The request has no credentials.
    #[error("the request has no credentials")]
    Missing,
    /// The credentials are invalid.
    #[error("invalid credentials: {detail}")]
    Unknown {
        /// Cause.
        detail: String,
    },
    /// The client is authenticated and not allowed.
    #[error("{name} is not allowed to do this")]
    Forbidden {
        /// Name of the client.
        name: String,
    },
    /// The authentication backend is unavailable.
    #[error("authentication is unavailable: {detail}")]
    Unavailable {
        /// Cause.
        detail: String,
    },
}

impl From<AuthError> for Problem {
    fn from(error: AuthError) -> Self {
        let detail = error.to_string();
        match error {
            AuthError::Missing | AuthError::Unknown { .. } => {
                Self::new(StatusCode::UNAUTHORIZED, "Unauthenticated", detail)
                    .with_fix("send the header `Authorization: Bearer <token>`, or a client certificate")
            }
            AuthError::Forbidden { .. } => Self::new(StatusCode::FORBIDDEN, "Forbidden", detail)
                .with_fix("use a token of an account in --accounts or --administrators of the proxy"),
            AuthError::Unavailable { .. } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "AuthUnavailable", detail)
                    .with_retry_after(RETRY_SOON_SECS)
            }
        }
    }
}

/// Authentication of requests.
#[async_trait]
pub trait Authenticator: Send + Sync {
    /// Returns the identity of the client with these credentials.
    ///
    /// # Errors
    ///
    /// [`AuthError`], even if the backend gives no definite answer.
    async fn authenticate(&self, credentials: Credentials<'_>) -> Result<Identity, AuthError>;
}

/// Accepts every client as anonymous, for a proxy without authentication.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoAuth;

#[async_trait]
impl Authenticator for NoAuth {
    async fn authenticate(&self, _: Credentials<'_>) -> Result<Identity, AuthError> {
        Ok(Identity::new("anonymous"))
    }
}

/// Authenticates a verified client certificate by its first name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Certificates;

#[async_trait]
impl Authenticator for Certificates {
    async fn authenticate(&self, credentials: Credentials<'_>) -> Result<Identity, AuthError> {
        credentials
            .names
            .first()
            .map(Identity::new)
            .ok_or(AuthError::Missing)
    }
}

/// Tokens with their identities, from a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tokens(Arc<RwLock<HashMap<String, Identity>>>);

/// Minimum length of a token in bytes: shorter ones can be guessed.
const MIN_TOKEN_LEN: usize = 16;

impl Tokens {
    /// Loads the content of the file: a line `TOKEN NAME [NAMESPACE,…]` for each token, with comments after
    /// `#`. Errors name the line and never the token.
    pub(crate) fn load(&self, text: &str) -> Result<(), String> {
        let mut tokens = HashMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            let (token, identity) = match words.as_slice() {
                [] => continue,
                [token, name] => (token, Identity::new(*name)),
                [token, name, namespaces] => {
                    let namespaces = namespaces.split(',').map(str::to_owned);
                    (token, Identity::new(*name).within(namespaces))
                }
                _ => return Err(format!("line {number}: write TOKEN NAME [NAMESPACE,...]")),
            };
            if token.len() < MIN_TOKEN_LEN {
                return Err(format!(
                    "line {number}: a token must have at least {MIN_TOKEN_LEN} characters"
                ));
            }
            if tokens.insert((*token).to_owned(), identity).is_some() {
                return Err(format!("line {number}: duplicate token"));
            }
        }
        if tokens.is_empty() {
            return Err("the file has no token".to_owned());
        }
        *self.0.write() = tokens;
        Ok(())
    }
}

#[async_trait]
impl Authenticator for Tokens {
    async fn authenticate(&self, credentials: Credentials<'_>) -> Result<Identity, AuthError> {
        let token = credentials.bearer.ok_or(AuthError::Missing)?;
        // The lookup by a keyed hash takes a time that reveals nothing about the tokens.
        let tokens = self.0.read();
        tokens.get(token).cloned().ok_or_else(|| AuthError::Unknown {
            detail: "unknown token".to_owned(),
        })
    }
}

/// First success of several authenticators; otherwise the last error other than [`AuthError::Missing`].
pub(crate) struct AnyOf(pub(crate) Vec<Arc<dyn Authenticator>>);

#[async_trait]
impl Authenticator for AnyOf {
    async fn authenticate(&self, credentials: Credentials<'_>) -> Result<Identity, AuthError> {
        let mut last_error = AuthError::Missing;
        for authenticator in &self.0 {
            match authenticator.authenticate(credentials).await {
                Ok(identity) => return Ok(identity),
                Err(AuthError::Missing) => {}
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
# client    namespaces
0123456789abcdef  scheduler
fedcba9876543210  team-a   a,a-test   # two namespaces
";

    async fn authenticate(tokens: &Tokens, bearer: Option<&str>) -> Result<Identity, AuthError> {
        let (names, connection): (&[String], _) = (&[], None);
        let credentials = Credentials {
            bearer,
            names,
            connection,
            process: None,
        };
        tokens.authenticate(credentials).await
    }

    #[tokio::test]
    async fn a_token_identifies_its_client_within_its_namespaces() {
        let tokens = Tokens::default();
        tokens.load(FILE).unwrap();
        let scheduler = authenticate(&tokens, Some("0123456789abcdef")).await.unwrap();
        assert_eq!(scheduler, Identity::new("scheduler"));
        let team = authenticate(&tokens, Some("fedcba9876543210")).await.unwrap();
        let owner = |namespace| Owner {
            kind: "Job".into(),
            job: ipu_core::JobKey::new(namespace, "n", "u").unwrap(),
        };
        assert!(team.may_act_for(&owner("a-test")).is_ok());
        assert_eq!(team.may_act_for(&owner("b")).unwrap_err().code(), "OutOfScope");
        assert!(scheduler.may_act_for(&owner("b")).is_ok());
        assert_eq!(authenticate(&tokens, None).await, Err(AuthError::Missing));
        assert!(matches!(
            authenticate(&tokens, Some("0123")).await,
            Err(AuthError::Unknown { .. })
        ));
    }

    #[tokio::test]
    async fn an_invalid_token_file_changes_nothing_and_errors_omit_tokens() {
        let tokens = Tokens::default();
        tokens.load(FILE).unwrap();
        for broken in ["", "short name", "0123456789abcdef", "0123456789abcdef a b c d"] {
            let error = tokens.load(broken).unwrap_err();
            assert!(!error.contains("0123456789abcdef"), "{error}");
        }
        assert!(authenticate(&tokens, Some("0123456789abcdef")).await.is_ok());
    }
}
