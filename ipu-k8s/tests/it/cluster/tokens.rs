//! Reviews of real service account tokens by the API server that issued them.

use std::time::Duration;

use ipu_k8s::token_review::{AuthError, Callers, TokenReviewOptions, TokenReviewer};
use ipu_test_cluster::{Cluster, shared};

use super::{config, config_of};

const AUDIENCE: &str = "vipu-proxy";

/// Creates the service account `name`, and returns a token for `audience`.
fn account(cluster: &Cluster, name: &str, audience: &str) -> String {
    cluster.kubectl(&["create", "serviceaccount", name]).unwrap();
    token(cluster, name, &["--audience", audience])
}

fn token(cluster: &Cluster, name: &str, options: &[&str]) -> String {
    let arguments = [&["create", "token", name], options].concat();
    cluster.kubectl(&arguments).unwrap().trim().to_owned()
}

/// Returns options that permit only the service account `name` of namespace `default`.
fn only(name: &str) -> TokenReviewOptions {
    let account = format!("default/{name}").parse().unwrap();
    TokenReviewOptions::new(AUDIENCE, Callers::Accounts([account].into()))
}

#[tokio::test]
async fn a_token_for_our_audience_of_a_permitted_account_yields_its_identity() {
    let Some(cluster) = shared("a_token_for_our_audience_of_a_permitted_account_yields_its_identity") else {
        return;
    };
    let token = account(cluster, "caller", AUDIENCE);
    let reviewer = TokenReviewer::new(config(cluster).await, only("caller")).unwrap();
    let identity = reviewer.review(&token).await.unwrap();
    assert_eq!(identity.user, "system:serviceaccount:default:caller");
    assert_eq!(identity.account, Some("default/caller".parse().unwrap()));
    assert!(
        identity.groups.contains(&"system:serviceaccounts".to_owned()),
        "{identity:?}"
    );
    assert!(identity.uid.is_some());
    // Debug output never contains the token.
    assert!(!format!("{reviewer:?}{identity:?}").contains(&token));
}

#[tokio::test]
async fn a_token_for_another_audience_or_for_the_api_server_is_rejected() {
    let Some(cluster) = shared("a_token_for_another_audience_or_for_the_api_server_is_rejected") else {
        return;
    };
    let other_audience = account(cluster, "elsewhere", "another-service");
    let default_audience = token(cluster, "elsewhere", &[]);
    let reviewer = TokenReviewer::new(config(cluster).await, only("elsewhere")).unwrap();
    for token in [other_audience, default_audience] {
        let error = reviewer.review(&token).await.unwrap_err();
        assert!(matches!(error, AuthError::Unauthenticated { .. }), "{error}");
    }
}

#[tokio::test]
async fn an_invalid_token_is_rejected() {
    let Some(cluster) = shared("an_invalid_token_is_rejected") else {
        return;
    };
    let good = account(cluster, "forged", AUDIENCE);
    let reviewer = TokenReviewer::new(config(cluster).await, only("forged")).unwrap();
    // A signed token with a changed payload.
    let (head, signature) = good.rsplit_once('.').unwrap();
    let forged = format!("{head}x.{signature}");
    for token in [
        "",
        "a",
        "not a token",
        "a.b.c",
        &forged,
        &"x".repeat(100_000),
        "with\nline",
    ] {
        let error = reviewer.review(token).await.unwrap_err();
        assert!(
            matches!(error, AuthError::Unauthenticated { .. }),
            "{token}: {error}"
        );
    }
    reviewer.review(&good).await.unwrap();
}

#[tokio::test]
async fn an_account_that_is_not_permitted_is_rejected_by_its_name() {
    let Some(cluster) = shared("an_account_that_is_not_permitted_is_rejected_by_its_name") else {
        return;
    };
    let token = account(cluster, "stranger", AUDIENCE);
    let reviewer = TokenReviewer::new(config(cluster).await, only("caller-of-mine")).unwrap();
    let error = reviewer.review(&token).await.unwrap_err();
    assert!(
        matches!(&error, AuthError::NotAllowed { user } if user == "system:serviceaccount:default:stranger"),
        "{error}"
    );
}

#[tokio::test]
async fn the_token_of_a_deleted_account_is_rejected_once_it_is_no_longer_cached() {
    let name = "the_token_of_a_deleted_account_is_rejected_once_it_is_no_longer_cached";
    let Some(cluster) = shared(name) else {
        return;
    };
    let token = account(cluster, "deleted", AUDIENCE);
    let mut options = only("deleted");
    options.cache = Duration::ZERO;
    let reviewer = TokenReviewer::new(config(cluster).await, options).unwrap();
    reviewer.review(&token).await.unwrap();
    cluster.kubectl(&["delete", "serviceaccount", "deleted"]).unwrap();
    // The API server itself caches accepted tokens for some seconds.
    let refused = async {
        loop {
            match reviewer.review(&token).await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                Err(error) => break error,
            }
        }
    };
    let error = tokio::time::timeout(Duration::from_secs(120), refused)
        .await
        .unwrap();
    assert!(matches!(error, AuthError::Unauthenticated { .. }), "{error}");
}

#[tokio::test]
async fn a_reviewer_without_permission_rejects_every_token() {
    let Some(cluster) = shared("a_reviewer_without_permission_rejects_every_token") else {
        return;
    };
    let token = account(cluster, "unreviewed", AUDIENCE);
    let unprivileged = config_of(&cluster.user("powerless", &[]).unwrap()).await;
    let reviewer = TokenReviewer::new(unprivileged, only("unreviewed")).unwrap();
    let error = reviewer.review(&token).await.unwrap_err();
    assert!(matches!(error, AuthError::Unavailable { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("cannot create resource \"tokenreviews\""),
        "{error}"
    );
}
