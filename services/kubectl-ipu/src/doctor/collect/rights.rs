//! Rights that the accounts of an installation need, as reviews of the API server.

use futures::StreamExt as _;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};

use super::super::facts::{Fact, MissingPermission};
use crate::exit_code::api_text;
use crate::installation::Installation;

/// Number of reviews at once.
const MAX_CONCURRENT: usize = 8;

/// A resource with its subresource, and the verbs that an account needs.
type Needed = (&'static str, &'static str, &'static [&'static str]);

/// Rights of the operator on objects of jobs. RoleBindings of watched namespaces grant them too.
const OPERATOR: &[Needed] = &[
    ("graphcore.ai", "ipujobs", &["list", "watch", "patch", "delete"]),
    ("graphcore.ai", "ipujobs/status", &["update"]),
    ("graphcore.ai", "ipujobs/finalizers", &["update"]),
    ("", "pods", &["get", "list", "watch", "create", "patch", "delete"]),
    ("", "pods/log", &["get"]),
    ("", "pods/exec", &["create", "get"]),
    ("", "configmaps", &["get", "create", "patch"]),
    ("", "serviceaccounts", &["get", "create", "patch"]),
    ("rbac.authorization.k8s.io", "roles", &["get", "create", "patch"]),
    (
        "rbac.authorization.k8s.io",
        "rolebindings",
        &["get", "create", "patch"],
    ),
    ("events.k8s.io", "events", &["create", "patch"]),
];

/// Rights of the proxy on objects of jobs.
const PROXY: &[Needed] = &[
    ("graphcore.ai", "ipujobs", &["get", "list"]),
    ("", "pods", &["list"]),
];

/// CRD that the operator maintains.
const CRD: &str = "ipujobs.graphcore.ai";
/// Number of ConfigMaps with usage records, as in the shipped role.
const USAGE_MAPS: usize = 16;

const MAPS: (&str, &str) = ("", "configmaps");
const LEASES: (&str, &str) = ("coordination.k8s.io", "leases");

/// One right of one account.
struct Review {
    account: String,
    namespace: Option<String>,
    group: &'static str,
    resource: &'static str,
    name: Option<String>,
    verb: &'static str,
}

/// Returns the rights that operator and proxy lack.
pub(super) async fn missing(
    client: &Client,
    installation: &Fact<Installation>,
) -> Fact<Vec<MissingPermission>> {
    let installation = match installation {
        Fact::Read(installation) => installation,
        Fact::Hidden(reason) => return Fact::Hidden(reason.clone()),
    };
    let api: Api<SubjectAccessReview> = Api::all(client.clone());
    let reviews = needed(installation).into_iter().map(|review| {
        let api = &api;
        async move {
            let answer = api.create(&PostParams::default(), &request(&review)).await;
            (review, answer)
        }
    });
    let mut answers = futures::stream::iter(reviews).buffered(MAX_CONCURRENT);
    let mut missing = Vec::new();
    while let Some((review, answer)) = answers.next().await {
        match answer {
            Ok(answer) if answer.status.as_ref().is_some_and(|status| status.allowed) => {}
            Ok(_) => missing.push(lacking(review)),
            Err(error) => return Fact::Hidden(format!("cannot review rights: {}", api_text(&error))),
        }
    }
    if missing.is_empty() && installation.proxy_account.is_none() {
        return Fact::Hidden(format!(
            "the Deployment {}/{} was not found, so the account of the proxy is not known",
            installation.namespace, installation.proxy
        ));
    }
    Fact::Read(missing)
}

/// Returns all rights that the programs need.
fn needed(installation: &Installation) -> Vec<Review> {
    let account = |name: &str| format!("system:serviceaccount:{}:{name}", installation.namespace);
    let operator = account(&installation.operator_account);
    let proxy = installation.proxy_account.as_deref().map(account);
    let mut namespaces: Vec<Option<String>> =
        installation.watch_namespaces.iter().cloned().map(Some).collect();
    if namespaces.is_empty() {
        namespaces.push(None);
    }
    let mut reviews = Vec::new();
    for namespace in namespaces {
        let accounts = [(Some(&operator), OPERATOR), (proxy.as_ref(), PROXY)];
        for (account, needed) in accounts {
            let Some(account) = account else {
                continue;
            };
            for (group, resource, verbs) in needed {
                reviews.extend(verbs.iter().map(|verb| Review {
                    account: account.clone(),
                    namespace: namespace.clone(),
                    group,
                    resource,
                    name: None,
                    verb,
                }));
            }
        }
    }
    reviews.extend(of_operator(installation, &operator));
    reviews.extend(proxy.iter().flat_map(|proxy| of_proxy(installation, proxy)));
    reviews
}

/// Returns reviews of `verbs` on one resource, in the namespace of the installation.
fn own(
    installation: &Installation,
    account: &str,
    (group, resource): (&'static str, &'static str),
    name: Option<&str>,
    verbs: &[&'static str],
) -> Vec<Review> {
    let review = |verb: &&'static str| Review {
        account: account.to_owned(),
        namespace: Some(installation.namespace.clone()),
        group,
        resource,
        name: name.map(str::to_owned),
        verb,
    };
    verbs.iter().map(review).collect()
}

/// Returns `reviews` for the whole cluster.
fn cluster_wide(reviews: Vec<Review>) -> impl Iterator<Item = Review> {
    reviews.into_iter().map(|review| Review {
        namespace: None,
        ..review
    })
}

/// Returns the rights of the operator on objects of the installation, by the flags that use them.
fn of_operator(installation: &Installation, account: &str) -> Vec<Review> {
    const SECRETS: (&str, &str) = ("", "secrets");
    const CRDS: (&str, &str) = ("apiextensions.k8s.io", "customresourcedefinitions");
    const CONFIGURATIONS: [(&str, &str); 2] = [
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
    ];
    const METRICS: [(&str, &str); 2] = [
        ("authentication.k8s.io", "tokenreviews"),
        ("authorization.k8s.io", "subjectaccessreviews"),
    ];
    let own = |resource, name: Option<&str>, verbs| own(installation, account, resource, name, verbs);
    let mut reviews = own(LEASES, None, &["create"]);
    reviews.extend(own(
        LEASES,
        Some(&installation.lease),
        &["get", "watch", "update"],
    ));
    let secrets = [&installation.webhook_secret, &installation.own_proxy_secret];
    for secret in secrets.into_iter().flatten() {
        reviews.extend(own(SECRETS, Some(secret), &["get", "watch", "patch"]));
    }
    if secrets.into_iter().any(Option::is_some) {
        reviews.extend(own(SECRETS, None, &["create"]));
    }
    // The CA certificates of that Secret, for clients of the metrics.
    if let Some(name) = &installation.webhook_secret {
        reviews.extend(own(MAPS, None, &["create"]));
        reviews.extend(own(MAPS, Some(name), &["get", "watch", "patch"]));
    }
    if let Some(name) = &installation.webhook_configuration {
        for kind in CONFIGURATIONS {
            reviews.extend(cluster_wide(own(kind, Some(name), &["get", "watch", "patch"])));
        }
    }
    if installation.maintains_crd {
        reviews.extend(cluster_wide(own(CRDS, None, &["create"])));
        reviews.extend(cluster_wide(own(CRDS, Some(CRD), &["get", "patch"])));
    }
    for kind in METRICS {
        reviews.extend(cluster_wide(own(kind, None, &["create"])));
    }
    reviews
}

/// Returns the rights of the proxy on objects of the installation.
fn of_proxy(installation: &Installation, account: &str) -> Vec<Review> {
    let own = |resource, name: Option<&str>, verbs| own(installation, account, resource, name, verbs);
    let tracker = &installation.tracker;
    let mut reviews = own(MAPS, None, &["create"]);
    let usage = (0..USAGE_MAPS).map(|index| format!("{tracker}-usage-{index:02}"));
    for name in std::iter::once(tracker.clone()).chain(usage) {
        reviews.extend(own(MAPS, Some(&name), &["get", "patch"]));
    }
    reviews.extend(own(LEASES, None, &["create"]));
    reviews.extend(own(LEASES, Some(tracker), &["get", "update"]));
    if let Some(list) = &installation.controllers_configmap {
        reviews.extend(own(MAPS, Some(list), &["get", "watch"]));
    }
    let token_reviews = own(("authentication.k8s.io", "tokenreviews"), None, &["create"]);
    reviews.extend(cluster_wide(token_reviews));
    reviews
}

fn request(review: &Review) -> SubjectAccessReview {
    let (resource, subresource) = match review.resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
        None => (review.resource, None),
    };
    // The groups of every ServiceAccount, which roles may name.
    let namespace = review.account.split(':').nth(2).unwrap_or_default();
    let groups = vec![
        "system:serviceaccounts".to_owned(),
        format!("system:serviceaccounts:{namespace}"),
        "system:authenticated".to_owned(),
    ];
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(review.account.clone()),
            groups: Some(groups),
            resource_attributes: Some(ResourceAttributes {
                group: Some(review.group.to_owned()),
                resource: Some(resource.to_owned()),
                subresource,
                verb: Some(review.verb.to_owned()),
                namespace: review.namespace.clone(),
                name: review.name.clone(),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

fn lacking(review: Review) -> MissingPermission {
    let mut resource = review.resource.to_owned();
    if !review.group.is_empty() {
        let (name, subresource) = resource.split_once('/').unwrap_or((&resource, ""));
        let subresource = if subresource.is_empty() {
            String::new()
        } else {
            format!("/{subresource}")
        };
        resource = format!("{name}.{}{subresource}", review.group);
    }
    if let Some(name) = &review.name {
        resource = format!("{resource}/{name}");
    }
    MissingPermission {
        account: review.account,
        namespace: review.namespace,
        verb: review.verb,
        resource,
    }
}

#[cfg(test)]
mod tests;
