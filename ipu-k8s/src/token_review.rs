//! Who calls: bearer tokens, asked about at the API server (TokenReview).
//!
//! A token counts only if the API server says that it is valid *for one of our audiences*: a token that a Kubernetes Pod was
//! given for another service does not open this one. Who may then do what is a list of service accounts.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Config};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::api_call::{bounded, connect};

/// The longest that a positive answer may be used again: so long may a token live on that was taken back.
const MAX_CACHE_TIME: Duration = Duration::from_secs(60);

/// How many positive answers are remembered: more than there are callers in any installation.
const CACHED: usize = 1024;

/// Longer than any service-account token.
const MAX_TOKEN_LEN: usize = 16 * 1024;

/// How many reviews are under way at a time, so that callers with bad tokens do not flood the API server.
const MAX_CONCURRENT_REVIEWS: usize = 16;

/// How a service account's user is called.
const ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// A service account: `namespace/name`, or `system:serviceaccount:namespace:name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceAccount {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for ServiceAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A text is no service account.
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
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    !text.is_empty() && text.chars().all(plain)
}

/// Who may call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Callers {
    /// Whoever the API server knows.
    Anybody,
    /// These service accounts and nobody else.
    Accounts(BTreeSet<ServiceAccount>),
}

/// How tokens are reviewed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TokenReviewOptions {
    /// The audiences that a token may be for, one of which it has to be for. Empty means the API server's own.
    pub audiences: Vec<String>,
    /// Who may call.
    pub callers: Callers,
    /// How long a positive answer is used again: 30 s unless set, 60 s at most. Refusals are never remembered.
    pub cache: Duration,
    /// How long one review may take: 5 s unless set.
    pub timeout: Duration,
}

impl TokenReviewOptions {
    /// Tokens for `audience`, of these callers.
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

/// Who the API server says that the caller is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TokenIdentity {
    /// The user's name, such as `system:serviceaccount:default:operator`.
    pub user: String,
    /// What tells it from another one of that name.
    pub uid: Option<String>,
    /// The groups that it is in.
    pub groups: Vec<String>,
    /// The service account, if it is one.
    pub account: Option<ServiceAccount>,
}

/// Why a token does not do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// It is no valid token, or one for somebody else. To be answered as 401.
    #[error("the token is not valid here: {detail}")]
    Unauthenticated {
        /// What the API server says.
        detail: String,
    },
    /// It is valid, and its owner may not call. To be answered as 403.
    #[error("{user} is not among those who may call")]
    NotAllowed {
        /// Whose it is.
        user: String,
    },
    /// The API server could not be asked. To be answered as 503.
    #[error("the token could not be reviewed: {detail}")]
    Unavailable {
        /// Why.
        detail: String,
    },
}

/// Asks the API server about tokens. Whoever uses it may `create` `tokenreviews.authentication.k8s.io` (the cluster role
/// `system:auth-delegator` allows that).
pub struct TokenReviewer {
    client: Client,
    options: TokenReviewOptions,
    /// By token; whom it is and until when that counts. Never shown.
    cached: Mutex<HashMap<String, (TokenIdentity, Instant)>>,
    at_a_time: Semaphore,
}

impl fmt::Debug for TokenReviewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenReviewer")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl TokenReviewer {
    /// Reviews at the API server of `config`. Calls nobody yet.
    ///
    /// # Errors
    ///
    /// [`AuthError::Unavailable`] if `config` makes no client.
    pub fn new(config: Config, options: TokenReviewOptions) -> Result<Self, AuthError> {
        let client = connect(config).map_err(|error| unavailable(&error))?;
        Ok(Self {
            client,
            options,
            cached: Mutex::default(),
            at_a_time: Semaphore::new(MAX_CONCURRENT_REVIEWS),
        })
    }

    /// Whose `token` is, if its owner may call.
    ///
    /// # Errors
    ///
    /// [`AuthError`]; none of them tells the token.
    pub async fn review(&self, token: &str) -> Result<TokenIdentity, AuthError> {
        let plausible =
            !token.is_empty() && token.len() <= MAX_TOKEN_LEN && token.bytes().all(|b| b.is_ascii_graphic());
        if !plausible {
            return Err(unauthenticated("it has no form of a token"));
        }
        if let Some(identity) = self.remembered(token) {
            return Ok(identity);
        }
        let begun = Instant::now();
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
        let ask = async {
            // Never closed.
            let _turn = self.at_a_time.acquire().await;
            api.create(&params, &review).await
        };
        let answer = bounded(self.options.timeout, ask)
            .await
            .map_err(|failure| unavailable(&failure))?;
        let identity = judge(answer.status.unwrap_or_default(), &self.options)?;
        self.remember(token, &identity, begun);
        Ok(identity)
    }

    fn remembered(&self, token: &str) -> Option<TokenIdentity> {
        let now = Instant::now();
        self.cached()
            .get(token)
            .filter(|(_, until)| now < *until)
            .map(|(identity, _)| identity.clone())
    }

    fn remember(&self, token: &str, identity: &TokenIdentity, asked: Instant) {
        let until = asked + self.options.cache.min(MAX_CACHE_TIME);
        let mut cached = self.cached();
        if cached.len() >= CACHED {
            let now = Instant::now();
            cached.retain(|_, (_, until)| now < *until);
        }
        // Of more callers than that the later ones are asked about each time.
        if cached.len() < CACHED {
            cached.insert(token.into(), (identity.clone(), until));
        }
    }

    // Nothing panics while it is locked, so that what a poisoned lock holds is whole.
    fn cached(&self) -> MutexGuard<'_, HashMap<String, (TokenIdentity, Instant)>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the API server's answer means.
fn judge(status: TokenReviewStatus, options: &TokenReviewOptions) -> Result<TokenIdentity, AuthError> {
    if status.authenticated != Some(true) {
        let detail = status.error.filter(|error| !error.is_empty());
        return Err(unauthenticated(
            detail.as_deref().unwrap_or("the API server does not know it"),
        ));
    }
    // An authenticator that knows nothing of audiences answers without any: such a token is for the API server alone.
    let ours = |audience: &String| options.audiences.contains(audience);
    if !options.audiences.is_empty() && !status.audiences.unwrap_or_default().iter().any(ours) {
        return Err(unauthenticated("it is for another audience"));
    }
    let user = status.user.unwrap_or_default();
    let name = user.username.unwrap_or_default();
    let account = name.strip_prefix(ACCOUNT_PREFIX).and(name.parse().ok());
    let allowed = match &options.callers {
        Callers::Anybody => !name.is_empty(),
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
    fn the_operator_with_a_token_for_us_is_let_in() {
        let identity = judge(
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
    fn a_token_for_nobody_in_particular_or_for_others_is_not_for_us() {
        for audiences in [&[][..], &["other"], &["vipu-proxy-2"]] {
            let error = judge(
                status("system:serviceaccount:graphcore:operator", audiences),
                &options(),
            )
            .unwrap_err();
            assert!(matches!(error, AuthError::Unauthenticated { .. }), "{error}");
        }
        let error = judge(TokenReviewStatus::default(), &options()).unwrap_err();
        assert!(matches!(error, AuthError::Unauthenticated { .. }), "{error}");
    }

    #[test]
    fn a_user_who_only_looks_like_an_account_is_not_allowed() {
        for user in [
            "graphcore/operator",
            "system:serviceaccount:graphcore:operator:x",
            "system:serviceaccount:graphcore",
            "system:serviceaccount:default:operator",
            "",
        ] {
            let error = judge(status(user, &["vipu-proxy"]), &options()).unwrap_err();
            assert!(matches!(error, AuthError::NotAllowed { .. }), "{user}: {error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_used_again_for_a_minute_at_most_and_only_so_many_are_kept() {
        let mut options = options();
        options.cache = Duration::from_secs(3600);
        let reviewer = TokenReviewer::new(Config::new("http://localhost".parse().unwrap()), options).unwrap();
        let identity = judge(
            status("system:serviceaccount:graphcore:operator", &["vipu-proxy"]),
            &reviewer.options,
        )
        .unwrap();
        let known = |token: usize| reviewer.remembered(&token.to_string()).is_some();
        let remember = |token: usize| reviewer.remember(&token.to_string(), &identity, Instant::now());
        (0..CACHED + 10).for_each(remember);
        assert!(known(0) && known(CACHED - 1) && !known(CACHED));
        tokio::time::advance(MAX_CACHE_TIME - Duration::from_millis(1)).await;
        assert!(known(0));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!known(0));
        remember(CACHED);
        assert!(known(CACHED), "what has lapsed makes room");
    }
}
