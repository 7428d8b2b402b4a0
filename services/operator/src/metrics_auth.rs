//! Authorization of metric scrapes: a TokenReview authenticates the caller, a SubjectAccessReview checks
//! that it may get `/metrics`.

use std::collections::HashMap;
use std::time::Duration;

use ipu_core::ErrorChain;
use ipu_k8s::token_review::{AuthError, Callers, TokenIdentity, TokenReviewOptions, TokenReviewer};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client, Config};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Lifetime of a cached permission: short enough for a revocation to apply soon, long enough for a scraper.
const CACHE_TTL: Duration = Duration::from_secs(15);
/// Maximum number of cached permissions; more than there are scrapers.
const MAX_CACHED: usize = 256;
/// Timeout of one review.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);

/// Reason for rejecting a scrape.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AuthRejection {
    #[error("send the header `Authorization: Bearer <token>` with a token of this cluster: {detail}")]
    Unauthenticated { detail: String },
    #[error("{user} may not get /metrics: bind a ClusterRole with label component=metrics-reader to it")]
    Forbidden { user: String },
    #[error("the caller cannot be authenticated now: {detail}")]
    Unavailable { detail: String },
}

impl From<AuthError> for AuthRejection {
    fn from(error: AuthError) -> Self {
        match error {
            AuthError::NotAllowed { user } => Self::Forbidden { user },
            AuthError::Unavailable { detail } => Self::Unavailable { detail },
            error => Self::Unauthenticated {
                detail: error.to_string(),
            },
        }
    }
}

pub(crate) struct MetricsAuthorizer {
    tokens: TokenReviewer,
    client: Client,
    /// Expiry of each permission, by user and groups.
    allowed: Mutex<HashMap<(String, Vec<String>), Instant>>,
}

impl MetricsAuthorizer {
    pub(crate) fn new(config: Config, client: Client) -> Result<Self, AuthError> {
        let mut options = TokenReviewOptions::new("", Callers::AnyAuthenticated);
        // Tokens of Prometheus have the API server as their audience.
        options.audiences.clear();
        options.cache = CACHE_TTL;
        options.timeout = REVIEW_TIMEOUT;
        Ok(Self {
            tokens: TokenReviewer::new(config, options)?,
            client,
            allowed: Mutex::default(),
        })
    }

    /// Checks that the caller with this `Authorization` header may get `/metrics`.
    pub(crate) async fn check(&self, authorization: Option<&str>) -> Result<(), AuthRejection> {
        let token = authorization
            .and_then(|text| text.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim());
        let Some(token) = token else {
            return Err(AuthRejection::Unauthenticated {
                detail: "the header is missing".to_owned(),
            });
        };
        let identity = self.tokens.review(token).await?;
        let key = (identity.user.clone(), identity.groups.clone());
        let now = Instant::now();
        if self.allowed.lock().get(&key).is_some_and(|expiry| now < *expiry) {
            return Ok(());
        }
        if !self.review_access(identity).await? {
            return Err(AuthRejection::Forbidden { user: key.0 });
        }
        let mut allowed = self.allowed.lock();
        allowed.retain(|_, expiry| now < *expiry);
        if allowed.len() < MAX_CACHED {
            allowed.insert(key, now + CACHE_TTL);
        }
        Ok(())
    }

    async fn review_access(&self, identity: TokenIdentity) -> Result<bool, AuthRejection> {
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(identity.user),
                uid: identity.uid,
                groups: Some(identity.groups),
                non_resource_attributes: Some(NonResourceAttributes {
                    path: Some("/metrics".to_owned()),
                    verb: Some("get".to_owned()),
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let params = PostParams::default();
        let answer = tokio::time::timeout(REVIEW_TIMEOUT, api.create(&params, &review)).await;
        let unavailable = |detail: String| AuthRejection::Unavailable { detail };
        match answer {
            Ok(Ok(answer)) => Ok(answer.status.is_some_and(|status| status.allowed)),
            Ok(Err(error)) => Err(unavailable(ErrorChain(&error).to_string())),
            Err(_) => Err(unavailable("the request to the API server timed out".to_owned())),
        }
    }
}
