//! Authorization of metric scrapes: a TokenReview authenticates the caller, a SubjectAccessReview checks
//! that it may get `/metrics`.

use std::time::Duration;

use http::StatusCode;
use ipu_core::ErrorChain;
use ipu_k8s::token_review::{AuthError, Callers, TokenIdentity, TokenReviewOptions, TokenReviewer};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client, Config};

/// Time for which a valid token is cached: short enough for a revocation to apply soon.
const TOKEN_CACHE_TIME: Duration = Duration::from_secs(15);
/// Timeout of one review.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct MetricsAuthorizer {
    tokens: TokenReviewer,
    client: Client,
}

impl MetricsAuthorizer {
    pub(crate) fn new(config: Config, client: Client) -> Result<Self, AuthError> {
        let mut options = TokenReviewOptions::new("", Callers::AnyAuthenticated);
        // Tokens of Prometheus have the API server as their audience.
        options.audiences.clear();
        options.cache = TOKEN_CACHE_TIME;
        options.timeout = REVIEW_TIMEOUT;
        Ok(Self {
            tokens: TokenReviewer::new(config, options)?,
            client,
        })
    }

    /// Checks that the caller with this `Authorization` header may get `/metrics`. Otherwise returns the
    /// status and the text of the response.
    pub(crate) async fn check(&self, authorization: Option<&str>) -> Result<(), (StatusCode, String)> {
        let token = authorization
            .and_then(|text| text.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim());
        let Some(token) = token else {
            return Err(unauthenticated("the header is missing"));
        };
        let permitted = match self.tokens.review(token).await {
            Ok(identity) => self.review_access(identity).await,
            Err(error) => Err(error),
        };
        permitted.map_err(|error| match error {
            AuthError::NotAllowed { user } => (
                StatusCode::FORBIDDEN,
                format!(
                    "{user} may not get /metrics: bind a ClusterRole with label component=metrics-reader \
                     to it"
                ),
            ),
            AuthError::Unavailable { detail } => (
                StatusCode::SERVICE_UNAVAILABLE,
                format!("the caller cannot be authenticated now: {detail}"),
            ),
            error => unauthenticated(&error.to_string()),
        })
    }

    /// Checks that a user may get `/metrics`.
    async fn review_access(&self, identity: TokenIdentity) -> Result<(), AuthError> {
        let user = identity.user.clone();
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
        let unavailable = |detail: String| AuthError::Unavailable { detail };
        match answer {
            Ok(Ok(answer)) if answer.status.as_ref().is_some_and(|status| status.allowed) => Ok(()),
            Ok(Ok(_)) => Err(AuthError::NotAllowed { user }),
            Ok(Err(error)) => Err(unavailable(ErrorChain(&error).to_string())),
            Err(_) => Err(unavailable("the request to the API server timed out".to_owned())),
        }
    }
}

fn unauthenticated(detail: &str) -> (StatusCode, String) {
    let text =
        format!("send the header `Authorization: Bearer <token>` with a token of this cluster: {detail}");
    (StatusCode::UNAUTHORIZED, text)
}
