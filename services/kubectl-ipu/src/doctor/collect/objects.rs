//! Reads of objects as facts.

use std::fmt::Debug;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ListParams};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;

use super::super::facts::{Fact, Webhook, WebhookConfiguration};
use crate::exit_code::api_text;
use crate::installation::Origin;

/// Reads an object; none if it does not exist.
pub(super) async fn get<K>(api: Api<K>, name: &str) -> Fact<Option<K>>
where
    K: Clone + Debug + DeserializeOwned + Resource,
    K::DynamicType: Default,
{
    match api.get_opt(name).await {
        Ok(object) => Fact::Read(object),
        Err(error) => {
            let kind = K::kind(&K::DynamicType::default()).into_owned();
            Fact::Hidden(format!("cannot read {kind} {name}: {}", api_text(&error)))
        }
    }
}

/// Lists the objects with these labels.
pub(super) async fn list<K>(api: Api<K>, labels: &str) -> Fact<Vec<K>>
where
    K: Clone + Debug + DeserializeOwned + Resource,
    K::DynamicType: Default,
{
    let params = ListParams::default();
    let params = if labels.is_empty() {
        params
    } else {
        params.labels(labels)
    };
    listed(api, &params).await
}

/// Lists warnings about Pods.
pub(super) async fn warnings(api: Api<Event>) -> Fact<Vec<Event>> {
    let fields = "type=Warning,involvedObject.kind=Pod,reason=FailedCreatePodSandBox";
    listed(api, &ListParams::default().fields(fields)).await
}

async fn listed<K>(api: Api<K>, params: &ListParams) -> Fact<Vec<K>>
where
    K: Clone + Debug + DeserializeOwned + Resource,
    K::DynamicType: Default,
{
    match api.list(params).await {
        Ok(list) => Fact::Read(list.items),
        Err(error) => {
            let kind = K::plural(&K::DynamicType::default()).into_owned();
            Fact::Hidden(format!("cannot list {kind}: {}", api_text(&error)))
        }
    }
}

/// Reads the clock of the API server, and that of this host in the middle of the request.
pub(super) async fn clock(client: &Client) -> (Timestamp, Fact<Timestamp>) {
    let before = Timestamp::now();
    let hidden = |reason: String| Fact::Hidden(format!("cannot read the time of the API server: {reason}"));
    let request = http::Request::get("/version").body(kube::client::Body::empty());
    let request = match request {
        Ok(request) => request,
        Err(error) => return (before, hidden(error.to_string())),
    };
    let response = match client.send(request).await {
        Ok(response) => response,
        Err(error) => return (before, hidden(api_text(&error))),
    };
    let now = Timestamp::now();
    let middle = before + now.duration_since(before) / 2;
    let date = response
        .headers()
        .get(http::header::DATE)
        .and_then(|date| date.to_str().ok());
    let parsed = date.and_then(|date| jiff::fmt::rfc2822::parse(date).ok());
    match parsed {
        Some(time) => (middle, Fact::Read(time.timestamp())),
        None => (middle, hidden("its answer has no date".into())),
    }
}

/// Lists the mutating configurations.
pub(super) async fn mutating(client: &Client) -> Fact<Vec<WebhookConfiguration>> {
    let found = list(Api::<MutatingWebhookConfiguration>::all(client.clone()), "").await;
    super::map(found, |all| {
        let convert = |found: MutatingWebhookConfiguration| {
            let webhooks = found.webhooks.into_iter().flatten();
            let webhooks = webhooks.map(|hook| (hook.name, hook.rules, hook.client_config));
            configuration("MutatingWebhookConfiguration", found.metadata, webhooks)
        };
        all.into_iter().map(convert).collect()
    })
}

/// Lists the validating configurations.
pub(super) async fn validating(client: &Client) -> Fact<Vec<WebhookConfiguration>> {
    let found = list(Api::<ValidatingWebhookConfiguration>::all(client.clone()), "").await;
    super::map(found, |all| {
        let convert = |found: ValidatingWebhookConfiguration| {
            let webhooks = found.webhooks.into_iter().flatten();
            let webhooks = webhooks.map(|hook| (hook.name, hook.rules, hook.client_config));
            configuration("ValidatingWebhookConfiguration", found.metadata, webhooks)
        };
        all.into_iter().map(convert).collect()
    })
}

/// Returns a configuration with its webhooks for IPUJobs.
fn configuration(
    kind: &'static str,
    metadata: ObjectMeta,
    webhooks: impl Iterator<Item = (String, Option<Vec<RuleWithOperations>>, WebhookClientConfig)>,
) -> WebhookConfiguration {
    let all: Vec<Option<Webhook>> = webhooks
        .enumerate()
        .map(|(index, (name, rules, client))| webhook(index, name, rules, client))
        .collect();
    let has_others = all.iter().any(Option::is_none);
    let webhooks: Vec<Webhook> = all.into_iter().flatten().collect();
    let origin = Origin::of(&metadata);
    let mut labels = metadata.labels.unwrap_or_default();
    let mut annotations = metadata.annotations.unwrap_or_default();
    WebhookConfiguration {
        kind,
        name: metadata.name.unwrap_or_default(),
        instance: labels.remove("app.kubernetes.io/instance"),
        origin,
        release_namespace: annotations.remove("meta.helm.sh/release-namespace"),
        certificate: annotations.remove("cert-manager.io/inject-ca-from"),
        webhooks,
        has_others,
    }
}

/// Returns a webhook, if it is for IPUJobs.
fn webhook(
    index: usize,
    name: String,
    rules: Option<Vec<RuleWithOperations>>,
    client: WebhookClientConfig,
) -> Option<Webhook> {
    let is_for_jobs = rules.into_iter().flatten().any(|rule| {
        let groups = rule.api_groups.unwrap_or_default();
        groups.iter().any(|group| group == "graphcore.ai")
    });
    let service = client
        .service
        .map(|service| (service.namespace, service.name, service.path.unwrap_or_default()));
    is_for_jobs.then(|| Webhook {
        name,
        index,
        service,
        ca_bundle: client.ca_bundle.map(|bytes| bytes.0).unwrap_or_default(),
    })
}
