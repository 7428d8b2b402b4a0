//! Who may read the metrics: whose the token is (TokenReview), and whether the cluster's rules let him get `/metrics`
//! (SubjectAccessReview).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ipu_k8s::token_review::{AuthError, Callers, TokenIdentity, TokenReviewOptions, TokenReviewer};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client, Config};
use tokio::time::Instant;

use crate::error::chain;

/// How long a permission is used again: short, so that one that is taken back ends soon; long enough for a scraper.
const CACHE: Duration = Duration::from_secs(15);
/// How many are remembered: more than there are scrapers.
const CACHED: usize = 256;
/// How long a review may take.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);

/// Why somebody is not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("send the header `Authorization: Bearer <token>` with a token of this cluster: {detail}")]
    Unknown { detail: String },
    #[error("{user} may not get /metrics: bind a ClusterRole with label component=metrics-reader to it")]
    Forbidden { user: String },
    #[error("it cannot be found out who asks: {detail}")]
    Unavailable { detail: String },
}

impl From<AuthError> for Refusal {
    fn from(error: AuthError) -> Self {
        match error {
            AuthError::NotAllowed { user } => Self::Forbidden { user },
            AuthError::Unavailable { detail } => Self::Unavailable { detail },
            error => Self::Unknown {
                detail: error.to_string(),
            },
        }
    }
}

pub(crate) struct Access {
    tokens: TokenReviewer,
    client: Client,
    /// By user and groups: until when the permission counts.
    allowed: Mutex<HashMap<(String, Vec<String>), Instant>>,
}

impl Access {
    pub(crate) fn new(config: Config, client: Client) -> Result<Self, AuthError> {
        let mut options = TokenReviewOptions::new("", Callers::Anybody);
        // The tokens that Prometheus has are for the API server.
        options.audiences.clear();
        options.cache = CACHE;
        options.timeout = REVIEW_TIMEOUT;
        Ok(Self {
            tokens: TokenReviewer::new(config, options)?,
            client,
            allowed: Mutex::default(),
        })
    }

    /// Lets whoever shows this header get `/metrics`, or says why not.
    pub(crate) async fn check(&self, authorization: Option<&str>) -> Result<(), Refusal> {
        let token = authorization
            .and_then(|text| text.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim());
        let Some(token) = token else {
            return Err(Refusal::Unknown {
                detail: "there is none".to_owned(),
            });
        };
        let identity = self.tokens.review(token).await?;
        let key = (identity.user.clone(), identity.groups.clone());
        let now = Instant::now();
        if self.allowed().get(&key).is_some_and(|until| now < *until) {
            return Ok(());
        }
        if !self.ask(identity).await? {
            return Err(Refusal::Forbidden { user: key.0 });
        }
        let mut allowed = self.allowed();
        allowed.retain(|_, until| now < *until);
        if allowed.len() < CACHED {
            allowed.insert(key, now + CACHE);
        }
        Ok(())
    }

    async fn ask(&self, identity: TokenIdentity) -> Result<bool, Refusal> {
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
        let unavailable = |detail: String| Refusal::Unavailable { detail };
        match answer {
            Ok(Ok(answer)) => Ok(answer.status.is_some_and(|status| status.allowed)),
            Ok(Err(error)) => Err(unavailable(chain(&error))),
            Err(_) => Err(unavailable("the API server did not answer in time".to_owned())),
        }
    }

    // Nothing panics while it is locked, so that what a poisoned lock holds is whole.
    fn allowed(&self) -> MutexGuard<'_, HashMap<(String, Vec<String>), Instant>> {
        self.allowed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
