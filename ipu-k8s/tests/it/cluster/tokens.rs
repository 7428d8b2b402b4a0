//! Real tokens of service accounts, reviewed by the API server that gave them.

use std::time::Duration;

use ipu_k8s::token_review::{AuthError, Callers, TokenReviewOptions, TokenReviewer};
use ipu_test_cluster::{Cluster, shared};

use super::{config, config_of};

const AUDIENCE: &str = "vipu-proxy";

/// Makes the service account `name`, and answers a token of it for `audience`.
fn account(cluster: &Cluster, name: &str, audience: &str) -> String {
    cluster.kubectl(&["create", "serviceaccount", name]).unwrap();
    token(cluster, name, &["--audience", audience])
}

fn token(cluster: &Cluster, name: &str, options: &[&str]) -> String {
    let words = [&["create", "token", name], options].concat();
    cluster.kubectl(&words).unwrap().trim().to_owned()
}

/// What lets in the service account `name` of namespace `default`.
fn only(name: &str) -> TokenReviewOptions {
    let account = format!("default/{name}").parse().unwrap();
    TokenReviewOptions::new(AUDIENCE, Callers::Accounts([account].into()))
}

#[tokio::test]
async fn a_token_for_us_of_an_account_that_may_call_tells_whose_it_is() {
    let Some(cluster) = shared("a_token_for_us_of_an_account_that_may_call_tells_whose_it_is") else {
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
    // Neither shows the token.
    assert!(!format!("{reviewer:?}{identity:?}").contains(&token));
}

#[tokio::test]
async fn a_token_for_another_audience_or_for_the_api_server_itself_is_refused() {
    let Some(cluster) = shared("a_token_for_another_audience_or_for_the_api_server_itself_is_refused") else {
        return;
    };
    let elsewhere = account(cluster, "elsewhere", "another-service");
    let general = token(cluster, "elsewhere", &[]);
    let reviewer = TokenReviewer::new(config(cluster).await, only("elsewhere")).unwrap();
    for token in [elsewhere, general] {
        let error = reviewer.review(&token).await.unwrap_err();
        assert!(matches!(error, AuthError::Unauthenticated { .. }), "{error}");
    }
}

#[tokio::test]
async fn what_is_no_token_is_refused() {
    let Some(cluster) = shared("what_is_no_token_is_refused") else {
        return;
    };
    let good = account(cluster, "forged", AUDIENCE);
    let reviewer = TokenReviewer::new(config(cluster).await, only("forged")).unwrap();
    // Signed for, and then changed.
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
async fn an_account_that_may_not_call_is_refused_by_its_name() {
    let Some(cluster) = shared("an_account_that_may_not_call_is_refused_by_its_name") else {
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
async fn the_token_of_a_deleted_account_is_refused_once_nothing_is_remembered_of_it() {
    let name = "the_token_of_a_deleted_account_is_refused_once_nothing_is_remembered_of_it";
    let Some(cluster) = shared(name) else {
        return;
    };
    let token = account(cluster, "deleted", AUDIENCE);
    let mut options = only("deleted");
    options.cache = Duration::ZERO;
    let reviewer = TokenReviewer::new(config(cluster).await, options).unwrap();
    reviewer.review(&token).await.unwrap();
    cluster.kubectl(&["delete", "serviceaccount", "deleted"]).unwrap();
    // The API server itself remembers for some seconds what it accepted.
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
async fn whoever_may_not_review_tokens_lets_nobody_in() {
    let Some(cluster) = shared("whoever_may_not_review_tokens_lets_nobody_in") else {
        return;
    };
    let token = account(cluster, "unreviewed", AUDIENCE);
    let powerless = config_of(&cluster.user("powerless", &[]).unwrap()).await;
    let reviewer = TokenReviewer::new(powerless, only("unreviewed")).unwrap();
    let error = reviewer.review(&token).await.unwrap_err();
    assert!(matches!(error, AuthError::Unavailable { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("cannot create resource \"tokenreviews\""),
        "{error}"
    );
}
