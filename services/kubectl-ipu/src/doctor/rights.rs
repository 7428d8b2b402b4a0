//! Rights that the accounts of an installation need: at least one of each shipped role, because a role or a
//! binding is absent as a whole.

use futures::StreamExt as _;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};

use super::facts::{Fact, MissingRight};
use crate::exit_code::api_text;
use crate::installation::Installation;

/// Number of reviews at once.
const MAX_CONCURRENT: usize = 8;

const CONFIG_MAPS: (&str, &str) = ("", "configmaps");
const JOBS: (&str, &str) = ("graphcore.ai", "ipujobs");
const LEASES: (&str, &str) = ("coordination.k8s.io", "leases");
const PODS: (&str, &str) = ("", "pods");
const SECRETS: (&str, &str) = ("", "secrets");
const TOKEN_REVIEWS: (&str, &str) = ("authentication.k8s.io", "tokenreviews");
const WEBHOOKS: (&str, &str) = ("admissionregistration.k8s.io", "validatingwebhookconfigurations");

/// A right of one account.
struct NeededRight<'a> {
    account: &'a str,
    namespace: Option<&'a str>,
    verb: &'static str,
    /// Group and name.
    resource: (&'static str, &'static str),
    name: Option<&'a str>,
}

/// Returns the rights that operator and proxy lack.
pub(super) async fn missing(client: &Client, installation: &Installation) -> Fact<Vec<MissingRight>> {
    let api: Api<SubjectAccessReview> = Api::all(client.clone());
    let reviews = needed(installation)?.into_iter().map(|needed| {
        let api = &api;
        async move {
            let answer = api
                .create(&PostParams::default(), &review(&needed, installation))
                .await;
            (needed, answer)
        }
    });
    let mut answers = futures::stream::iter(reviews).buffered(MAX_CONCURRENT);
    let mut missing = Vec::new();
    while let Some((needed, answer)) = answers.next().await {
        let answer = answer.map_err(|error| format!("cannot review rights: {}", api_text(&error)))?;
        if !answer.status.is_some_and(|status| status.allowed) {
            let name = needed.name.map(|name| format!("/{name}"));
            missing.push(MissingRight {
                account: needed.account.to_owned(),
                namespace: needed.namespace.map(str::to_owned),
                text: format!(
                    "{} {}{}",
                    needed.verb,
                    needed.resource.1,
                    name.unwrap_or_default()
                ),
            });
        }
    }
    Ok(missing)
}

fn needed(installation: &Installation) -> Fact<Vec<NeededRight<'_>>> {
    let (operator, ledger) = (installation.operator_account(), installation.ledger()?);
    let proxy = installation.proxy_account().unwrap_or_default();
    let own = Some(installation.namespace.as_str());
    let mut all = vec![
        (operator, own, "update", LEASES, Some(installation.lease())),
        (operator, None, "create", TOKEN_REVIEWS, None),
        (proxy, own, "patch", CONFIG_MAPS, Some(ledger)),
        (proxy, own, "update", LEASES, Some(ledger)),
        (proxy, None, "create", TOKEN_REVIEWS, None),
    ];
    if let Ok(list) = installation.controllers_config_map() {
        all.push((proxy, own, "watch", CONFIG_MAPS, Some(list)));
    }
    if let Some(secret) = installation.webhook_secret() {
        all.push((operator, own, "patch", SECRETS, Some(secret)));
    }
    if let Some(name) = installation.webhook_configuration() {
        all.push((operator, None, "patch", WEBHOOKS, Some(name)));
    }
    let mut namespaces: Vec<_> = installation.watch_namespaces().into_iter().map(Some).collect();
    if namespaces.is_empty() {
        namespaces.push(None);
    }
    for namespace in namespaces {
        all.extend([
            (operator, namespace, "watch", JOBS, None),
            (operator, namespace, "create", PODS, None),
            (proxy, namespace, "list", JOBS, None),
            (proxy, namespace, "list", PODS, None),
        ]);
    }
    let needed = |(account, namespace, verb, resource, name)| NeededRight {
        account,
        namespace,
        verb,
        resource,
        name,
    };
    Ok(all.into_iter().map(needed).collect())
}

fn review(needed: &NeededRight<'_>, installation: &Installation) -> SubjectAccessReview {
    let namespace = &installation.namespace;
    // The groups of every ServiceAccount, which roles may name.
    let groups = vec![
        "system:serviceaccounts".to_owned(),
        format!("system:serviceaccounts:{namespace}"),
        "system:authenticated".to_owned(),
    ];
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(format!("system:serviceaccount:{namespace}:{}", needed.account)),
            groups: Some(groups),
            resource_attributes: Some(ResourceAttributes {
                group: Some(needed.resource.0.to_owned()),
                resource: Some(needed.resource.1.to_owned()),
                verb: Some(needed.verb.to_owned()),
                namespace: needed.namespace.map(str::to_owned),
                name: needed.name.map(str::to_owned),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}
