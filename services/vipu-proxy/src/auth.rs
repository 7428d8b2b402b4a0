//! Who asks: what proves it, and what is refused.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use http::{HeaderMap, StatusCode, header};
use ipu_core::Owner;
use ipu_serve::Peer;

use crate::problem::{Problem, RETRY_SOON_SECS};

/// Somebody who proved to be who he is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    name: String,
    namespaces: Option<BTreeSet<String>>,
}

impl Identity {
    /// Somebody who may act for owners of every namespace.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            namespaces: None,
        }
    }

    /// The same, who may act for owners of these namespaces only.
    #[must_use]
    pub fn within(mut self, namespaces: impl IntoIterator<Item = String>) -> Self {
        self.namespaces = Some(namespaces.into_iter().collect());
        self
    }

    /// His name, for logs and as the owner of what he cordons.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The namespaces whose owners the client may act for. None for a client that may act for every owner.
    pub(crate) fn namespaces(&self) -> Option<&BTreeSet<String>> {
        self.namespaces.as_ref()
    }

    /// Refuses to act for an owner of a namespace that is not his.
    pub(crate) fn may_act_for(&self, owner: &Owner) -> Result<(), Problem> {
        let namespace = owner.job.namespace.as_str();
        match &self.namespaces {
            Some(own) if !own.contains(namespace) => Err(Problem::new(
                StatusCode::FORBIDDEN,
                "OutOfScope",
                format!("{} may not act for owners of namespace {namespace}", self.name),
            )),
            _ => Ok(()),
        }
    }

    /// Refuses what concerns everybody to who is bound to namespaces.
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

/// What a request shows to prove who asks.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Credentials<'a> {
    /// The token of the header `Authorization: Bearer …`.
    pub bearer: Option<&'a str>,
    /// The names in the certificate that the connection was made with; it was checked already.
    pub names: &'a [String],
    /// The addresses of both ends of the connection, the client's first.
    pub connection: Option<(SocketAddr, SocketAddr)>,
}

impl<'a> Credentials<'a> {
    /// Whether the request shows any.
    pub(crate) fn are_shown(&self) -> bool {
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
        }
    }
}

/// Why nobody was recognised.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// The request shows nothing that could prove it.
    #[error("nothing proves who asks")]
    Missing,
    /// What it shows proves nothing.
    #[error("what is shown proves nothing: {detail}")]
    Unknown {
        /// Why.
        detail: String,
    },
    /// He is known and may not.
    #[error("{name} may not do this")]
    Forbidden {
        /// Who.
        name: String,
    },
    /// Who would know does not answer.
    #[error("it cannot be found out who asks: {detail}")]
    Unavailable {
        /// Why.
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
            AuthError::Forbidden { .. } => Self::new(StatusCode::FORBIDDEN, "Forbidden", detail),
            AuthError::Unavailable { .. } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "AuthUnavailable", detail)
                    .with_retry_after(RETRY_SOON_SECS)
            }
        }
    }
}

/// Finds out who asks.
#[async_trait]
pub trait Authenticator: Send + Sync {
    /// Who shows these credentials.
    ///
    /// # Errors
    ///
    /// [`AuthError`]; every doubt is one.
    async fn authenticate(&self, credentials: Credentials<'_>) -> Result<Identity, AuthError>;
}

/// Nobody is asked: for a proxy that only this host reaches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoAuth;

#[async_trait]
impl Authenticator for NoAuth {
    async fn authenticate(&self, _: Credentials<'_>) -> Result<Identity, AuthError> {
        Ok(Identity::new("anonymous"))
    }
}

/// Whoever has a certificate of an issuer that the server trusts, by the first name in it.
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

/// Tokens and whose they are, from a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tokens(Arc<RwLock<HashMap<String, Identity>>>);

/// The shortest token: shorter ones can be guessed.
const TOKEN_MIN: usize = 16;

impl Tokens {
    /// Takes over the content of the file: a line for each token, `TOKEN NAME [NAMESPACE,…]`; what follows `#` is a
    /// comment. Errors name the line and never the token.
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
            if token.len() < TOKEN_MIN {
                return Err(format!(
                    "line {number}: a token has at least {TOKEN_MIN} characters"
                ));
            }
            if tokens.insert((*token).to_owned(), identity).is_some() {
                return Err(format!("line {number}: the token is there already"));
            }
        }
        if tokens.is_empty() {
            return Err("there is no token in it".to_owned());
        }
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = tokens;
        Ok(())
    }
}

#[async_trait]
impl Authenticator for Tokens {
    async fn authenticate(&self, credentials: Credentials<'_>) -> Result<Identity, AuthError> {
        let token = credentials.bearer.ok_or(AuthError::Missing)?;
        // Found by a hash with a secret key: the time that it takes tells nothing of the tokens.
        let tokens = self.0.read().unwrap_or_else(PoisonError::into_inner);
        tokens.get(token).cloned().ok_or_else(|| AuthError::Unknown {
            detail: "the token is not known".to_owned(),
        })
    }
}

/// The first of several that recognises who asks; what the last one that was shown something says, if none does.
pub(crate) struct AnyOf(pub(crate) Vec<Arc<dyn Authenticator>>);

#[async_trait]
impl Authenticator for AnyOf {
    async fn authenticate(&self, credentials: Credentials<'_>) -> Result<Identity, AuthError> {
        let mut why = AuthError::Missing;
        for authenticator in &self.0 {
            match authenticator.authenticate(credentials).await {
                Ok(identity) => return Ok(identity),
                Err(AuthError::Missing) => {}
                Err(error) => why = error,
            }
        }
        Err(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
# who       may
0123456789abcdef  scheduler
fedcba9876543210  team-a   a,a-test   # two namespaces
";

    async fn ask(tokens: &Tokens, bearer: Option<&str>) -> Result<Identity, AuthError> {
        let (names, connection): (&[String], _) = (&[], None);
        let credentials = Credentials {
            bearer,
            names,
            connection,
        };
        tokens.authenticate(credentials).await
    }

    #[tokio::test]
    async fn a_token_is_its_owner_s_within_his_namespaces() {
        let tokens = Tokens::default();
        tokens.load(FILE).unwrap();
        let scheduler = ask(&tokens, Some("0123456789abcdef")).await.unwrap();
        assert_eq!(scheduler, Identity::new("scheduler"));
        let team = ask(&tokens, Some("fedcba9876543210")).await.unwrap();
        let owner = |namespace| Owner {
            kind: "Job".into(),
            job: ipu_core::JobKey::new(namespace, "n", "u").unwrap(),
        };
        assert!(team.may_act_for(&owner("a-test")).is_ok());
        assert_eq!(team.may_act_for(&owner("b")).unwrap_err().code(), "OutOfScope");
        assert!(scheduler.may_act_for(&owner("b")).is_ok());
        assert_eq!(ask(&tokens, None).await, Err(AuthError::Missing));
        assert!(matches!(
            ask(&tokens, Some("0123")).await,
            Err(AuthError::Unknown { .. })
        ));
    }

    #[tokio::test]
    async fn a_file_that_is_wrong_changes_nothing_and_its_tokens_are_not_told() {
        let tokens = Tokens::default();
        tokens.load(FILE).unwrap();
        for broken in ["", "short name", "0123456789abcdef", "0123456789abcdef a b c d"] {
            let error = tokens.load(broken).unwrap_err();
            assert!(!error.contains("0123456789abcdef"), "{error}");
        }
        assert!(ask(&tokens, Some("0123456789abcdef")).await.is_ok());
    }
}
