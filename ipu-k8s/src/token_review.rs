//! Authentication of bearer tokens with the TokenReview API.
//!
//! A token is valid only if the API server reports that it is valid *for one of the configured audiences*: a
//! token that a Pod got for another service is refused. A list of service accounts authorizes callers.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Config};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::api_call::{bounded, connect};

/// Maximum time for which a positive result is cached: a revoked token may be accepted for that long.
const MAX_CACHE_TIME: Duration = Duration::from_secs(60);

/// Maximum number of cached results: more than there are callers in any installation.
const MAX_CACHED: usize = 1024;

/// Longer than any service account token.
const MAX_TOKEN_LEN: usize = 16 * 1024;

/// Maximum number of concurrent reviews, so that invalid tokens do not flood the API server.
const MAX_CONCURRENT_REVIEWS: usize = 16;

/// Prefix of the user name of a service account.
const ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// A service account: `namespace/name`, or `system:serviceaccount:namespace:name`.
///
/// ```
/// use ipu_k8s::token_review::ServiceAccount;
///
/// let user: ServiceAccount = "system:serviceaccount:ml:trainer".parse()?;
/// assert_eq!(user.to_string(), "ml/trainer");
/// let error = "trainer".parse::<ServiceAccount>().unwrap_err();
/// assert_eq!(error.to_string(), "\"trainer\" is not a service account: write `namespace/name`");
/// # Ok::<(), ipu_k8s::token_review::NoServiceAccount>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceAccount {
    /// Namespace of the account.
    pub namespace: String,
    /// Name of the account.
    pub name: String,
}

impl fmt::Display for ServiceAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Error of a text that is not a service account.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a service account: write `namespace/name`")]
pub struct NoServiceAccount(pub String);

impl FromStr for ServiceAccount {
    type Err = NoServiceAccount;

    fn from_str(text: &str) -> Result<Self, NoServiceAccount> {
        let parts = match text.strip_prefix(ACCOUNT_PREFIX) {
            Some(user) => user.split_once(':'),
            None => text.split_once('/'),
        };
        match parts {
            Some((namespace, name)) if is_name(namespace) && is_name(name) => Ok(Self {
                namespace: namespace.into(),
                name: name.into(),
            }),
            _ => Err(NoServiceAccount(text.into())),
        }
    }
}

fn is_name(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    !text.is_empty() && text.chars().all(is_allowed)
}

/// Authorized callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Callers {
    /// Every user that the API server authenticates.
    AnyAuthenticated,
    /// Only these service accounts.
    Accounts(BTreeSet<ServiceAccount>),
}

/// Options of token reviews.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TokenReviewOptions {
    /// Accepted audiences, of which a token must have one. If empty, the API server's own audience.
    pub audiences: Vec<String>,
    /// Authorized callers.
    pub callers: Callers,
    /// Time for which a positive result is cached: 30 s by default, 60 s at most. Refusals are never cached.
    pub cache: Duration,
    /// Timeout of one review; 5 s by default.
    pub timeout: Duration,
}

impl TokenReviewOptions {
    /// Creates options for tokens of `audience` and these callers.
    #[must_use]
    pub fn new(audience: impl Into<String>, callers: Callers) -> Self {
        Self {
            audiences: vec![audience.into()],
            callers,
            cache: Duration::from_secs(30),
            timeout: Duration::from_secs(5),
        }
    }
}

/// Identity of a caller, as the API server reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TokenIdentity {
    /// User name, such as `system:serviceaccount:default:operator`.
    pub user: String,
    /// Uid, which distinguishes it from another user of the same name.
    pub uid: Option<String>,
    /// Groups of the user.
    pub groups: Vec<String>,
    /// Service account, if the user is one.
    pub account: Option<ServiceAccount>,
}

/// Reason why a token is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// The token is invalid, or has another audience. Answer with status 401.
    #[error("the token is not valid for this service: {detail}")]
    Unauthenticated {
        /// Error of the API server.
        detail: String,
    },
    /// The token is valid, and its owner is not authorized. Answer with status 403.
    #[error("{user} is not an authorized caller")]
    NotAllowed {
        /// Name of the user.
        user: String,
    },
    /// The API server did not respond. Answer with status 503.
    #[error("the token could not be reviewed: {detail}")]
    Unavailable {
        /// Cause of the failure.
        detail: String,
    },
}

/// Reviews tokens with the API server. The service account needs `create` on
/// `tokenreviews.authentication.k8s.io`, which the cluster role `system:auth-delegator` grants.
pub struct TokenReviewer {
    client: Client,
    options: TokenReviewOptions,
    /// Identities with their expiry by token. Never shown.
    cached: Mutex<HashMap<String, (TokenIdentity, Instant)>>,
    concurrent_reviews: Semaphore,
}

impl fmt::Debug for TokenReviewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenReviewer")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl TokenReviewer {
    /// Creates a reviewer for the API server of `config`. Sends no request yet.
    ///
    /// # Errors
    ///
    /// [`AuthError::Unavailable`] if `config` is not valid for a client.
    pub fn new(config: Config, options: TokenReviewOptions) -> Result<Self, AuthError> {
        let client = connect(config).map_err(|error| unavailable(&error))?;
        Ok(Self {
            client,
            options,
            cached: Mutex::default(),
            concurrent_reviews: Semaphore::new(MAX_CONCURRENT_REVIEWS),
        })
    }

    /// Returns the identity of the owner of `token`, if it is an authorized caller.
    ///
    /// # Errors
    ///
    /// [`AuthError`]; no variant contains the token.
    pub async fn review(&self, token: &str) -> Result<TokenIdentity, AuthError> {
        let plausible =
            !token.is_empty() && token.len() <= MAX_TOKEN_LEN && token.bytes().all(|b| b.is_ascii_graphic());
        if !plausible {
            return Err(unauthenticated("it does not have the form of a token"));
        }
        if let Some(identity) = self.cached_identity(token) {
            return Ok(identity);
        }
        let started = Instant::now();
        let review = TokenReview {
            metadata: ObjectMeta::default(),
            spec: TokenReviewSpec {
                audiences: Some(self.options.audiences.clone()).filter(|all| !all.is_empty()),
                token: token.into(),
            },
            status: None,
        };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let params = PostParams::default();
        let request = async {
            // The semaphore is never closed.
            let _permit = self.concurrent_reviews.acquire().await;
            api.create(&params, &review).await
        };
        let response = bounded(self.options.timeout, request)
            .await
            .map_err(|failure| unavailable(&failure))?;
        let identity = evaluate(response.status.unwrap_or_default(), &self.options)?;
        self.cache_identity(token, &identity, started);
        Ok(identity)
    }

    fn cached_identity(&self, token: &str) -> Option<TokenIdentity> {
        let now = Instant::now();
        self.cached
            .lock()
            .get(token)
            .filter(|(_, until)| now < *until)
            .map(|(identity, _)| identity.clone())
    }

    fn cache_identity(&self, token: &str, identity: &TokenIdentity, requested_at: Instant) {
        let until = requested_at + self.options.cache.min(MAX_CACHE_TIME);
        let mut cached = self.cached.lock();
        if cached.len() >= MAX_CACHED {
            let now = Instant::now();
            cached.retain(|_, (_, until)| now < *until);
        }
        // With more callers than that, later ones are reviewed each time.
        if cached.len() < MAX_CACHED {
            cached.insert(token.into(), (identity.clone(), until));
        }
    }
}

/// Evaluates the status of a review.
fn evaluate(status: TokenReviewStatus, options: &TokenReviewOptions) -> Result<TokenIdentity, AuthError> {
    if status.authenticated != Some(true) {
        let detail = status.error.filter(|error| !error.is_empty());
        return Err(unauthenticated(
            detail.as_deref().unwrap_or("the API server does not accept it"),
        ));
    }
    // An authenticator without support for audiences returns none: such a token is for the API server alone.
    let is_accepted = |audience: &String| options.audiences.contains(audience);
    if !options.audiences.is_empty() && !status.audiences.unwrap_or_default().iter().any(is_accepted) {
        return Err(unauthenticated("it is for another audience"));
    }
    let user = status.user.unwrap_or_default();
    let name = user.username.unwrap_or_default();
    let account = name.strip_prefix(ACCOUNT_PREFIX).and(name.parse().ok());
    let allowed = match &options.callers {
        Callers::AnyAuthenticated => !name.is_empty(),
        Callers::Accounts(accounts) => account.as_ref().is_some_and(|account| accounts.contains(account)),
    };
    if !allowed {
        return Err(AuthError::NotAllowed { user: name });
    }
    Ok(TokenIdentity {
        user: name,
        uid: user.uid,
        groups: user.groups.unwrap_or_default(),
        account,
    })
}

fn unauthenticated(detail: &str) -> AuthError {
    AuthError::Unauthenticated {
        detail: detail.into(),
    }
}

fn unavailable(error: &dyn fmt::Display) -> AuthError {
    AuthError::Unavailable {
        detail: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::authentication::v1::UserInfo;

    use super::*;

    fn options() -> TokenReviewOptions {
        let accounts = ["graphcore/operator".parse().unwrap()];
        TokenReviewOptions::new("vipu-proxy", Callers::Accounts(accounts.into()))
    }

    fn status(user: &str, audiences: &[&str]) -> TokenReviewStatus {
        TokenReviewStatus {
            authenticated: Some(true),
            audiences: Some(audiences.iter().map(|&audience| audience.into()).collect()),
            user: Some(UserInfo {
                username: Some(user.into()),
                ..UserInfo::default()
            }),
            error: None,
        }
    }

    #[test]
    fn a_token_of_the_operator_with_an_accepted_audience_is_valid() {
        let identity = evaluate(
            status(
                "system:serviceaccount:graphcore:operator",
                &["other", "vipu-proxy"],
            ),
            &options(),
        )
        .unwrap();
        assert_eq!(identity.account, Some("graphcore/operator".parse().unwrap()));
    }

    #[test]
    fn a_token_without_or_with_another_audience_is_refused() {
        for audiences in [&[][..], &["other"], &["vipu-proxy-2"]] {
            let error = evaluate(
                status("system:serviceaccount:graphcore:operator", audiences),
                &options(),
            )
            .unwrap_err();
            assert!(matches!(error, AuthError::Unauthenticated { .. }), "{error}");
        }
        let error = evaluate(TokenReviewStatus::default(), &options()).unwrap_err();
        assert!(matches!(error, AuthError::Unauthenticated { .. }), "{error}");
    }

    #[test]
    fn a_user_name_that_resembles_an_account_is_not_authorized() {
        for user in [
            "graphcore/operator",
            "system:serviceaccount:graphcore:operator:x",
            "system:serviceaccount:graphcore",
            "system:serviceaccount:default:operator",
            "",
        ] {
            let error = evaluate(status(user, &["vipu-proxy"]), &options()).unwrap_err();
            assert!(matches!(error, AuthError::NotAllowed { .. }), "{user}: {error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn results_are_cached_for_a_minute_at_most_and_in_limited_number() {
        let mut options = options();
        options.cache = Duration::from_secs(3600);
        let reviewer = TokenReviewer::new(Config::new("http://localhost".parse().unwrap()), options).unwrap();
        let identity = evaluate(
            status("system:serviceaccount:graphcore:operator", &["vipu-proxy"]),
            &reviewer.options,
        )
        .unwrap();
        let is_cached = |token: usize| reviewer.cached_identity(&token.to_string()).is_some();
        let cache_identity =
            |token: usize| reviewer.cache_identity(&token.to_string(), &identity, Instant::now());
        (0..MAX_CACHED + 10).for_each(cache_identity);
        assert!(is_cached(0) && is_cached(MAX_CACHED - 1) && !is_cached(MAX_CACHED));
        tokio::time::advance(MAX_CACHE_TIME - Duration::from_millis(1)).await;
        assert!(is_cached(0));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!is_cached(0));
        cache_identity(MAX_CACHED);
        assert!(is_cached(MAX_CACHED), "expired results free capacity");
    }
}
