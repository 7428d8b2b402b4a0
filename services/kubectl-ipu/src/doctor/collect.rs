//! Reads the snapshot from the API server and the proxy, and tries the connections, with the rights of the
//! caller.

use std::fmt::Debug;
use std::time::Duration;

use ipu_k8s::crd::IpuJob;
use ipu_proxy_client::ControllerStatus;
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhook;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::api::{Api, ApiResource, DynamicObject, ListParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::facts::{Fact, Facts, JobFacts, WebhookConfiguration, known};
use super::rights;
use crate::cli::Global;
use crate::context::{Context, JOB_NAME, job_resource};
use crate::exit_code::{Code, Failure, api_failure, api_text};
use crate::installation::{self, Installation, OPERATOR_SELECTOR, PROXY_SELECTOR, is_operator};
use crate::proxy::{self, Access};

/// Time for an answer of the webhooks and of the proxy.
const PROBE_TIMEOUT: Duration = Duration::from_secs(15);
/// Fields of the Events of a Pod whose network could not be set up.
const SANDBOX_SELECTOR: &str = "type=Warning,involvedObject.kind=Pod,reason=FailedCreatePodSandBox";

/// Reads all facts.
pub(super) async fn collect(context: &Context, global: &Global) -> Facts {
    let client = &context.client;
    let found = installation::find(client, global.operator_namespace.as_deref()).await;
    let installation = found.map_err(|failure| failure.chain());
    let own = installation.as_ref();
    let objects = InstallationObjects { client, own };
    let (operators, proxies, webhooks, lease, ledger, controller_list) = tokio::join!(
        list(Api::<Deployment>::all(client.clone()), labels(OPERATOR_SELECTOR)),
        list(Api::<Deployment>::all(client.clone()), labels(PROXY_SELECTOR)),
        webhooks(client),
        objects.read(|own| Ok(own.lease())),
        objects.read::<ConfigMap>(|own| own.ledger()),
        objects.read::<ConfigMap>(|own| own.controllers_config_map()),
    );
    let (webhook_service, webhook_error, proxy_service, proxy_error, controllers) = tokio::join!(
        objects.read::<Service>(|own| Ok(own.webhook_service())),
        try_webhooks(context, own),
        objects.read::<Service>(|own| Ok(own.proxy_service().1)),
        try_proxy(client, own),
        controllers(context, global, own),
    );
    let (jobs, pods, sandbox_events, nodes, namespaces) = tokio::join!(
        jobs(context),
        list(Api::<Pod>::all(client.clone()), labels(JOB_NAME)),
        list(
            Api::all(client.clone()),
            ListParams::default().fields(SANDBOX_SELECTOR)
        ),
        list(Api::all(client.clone()), ListParams::default()),
        list(Api::all(client.clone()), ListParams::default()),
    );
    let (now, crd, quotas, limit_ranges, missing_rights) = tokio::join!(
        time(client),
        get(Api::all(client.clone()), "ipujobs.graphcore.ai"),
        list(Api::all(client.clone()), ListParams::default()),
        list(Api::all(client.clone()), ListParams::default()),
        async { rights::missing(client, known(&installation)?).await },
    );
    Facts {
        now,
        operators: operators.map(|all| all.into_iter().filter(is_operator).collect()),
        proxies,
        crd,
        webhooks,
        webhook_service,
        webhook_error,
        proxy_service,
        proxy_error,
        lease,
        controller_list,
        controllers,
        ledger,
        jobs,
        pods,
        sandbox_events,
        nodes,
        namespaces,
        quotas,
        limit_ranges,
        missing_rights,
        installation,
    }
}

fn labels(selector: &str) -> ListParams {
    ListParams::default().labels(selector)
}

/// Reads an object; none if it does not exist.
async fn get<K>(api: Api<K>, name: &str) -> Fact<Option<K>>
where
    K: Clone + Debug + DeserializeOwned + Resource,
    K::DynamicType: Default,
{
    api.get_opt(name).await.map_err(|error| {
        let kind = K::kind(&K::DynamicType::default()).into_owned();
        format!("cannot read {kind} {name}: {}", api_text(&error))
    })
}

async fn list<K>(api: Api<K>, params: ListParams) -> Fact<Vec<K>>
where
    K: Clone + Debug + DeserializeOwned + Resource,
    K::DynamicType: Default,
{
    let listed = api.list(&params).await;
    listed.map(|list| list.items).map_err(|error| {
        let kind = K::plural(&K::DynamicType::default()).into_owned();
        format!("cannot list {kind}: {}", api_text(&error))
    })
}

/// Reads objects of the installation.
#[derive(Clone, Copy)]
struct InstallationObjects<'a> {
    client: &'a Client,
    own: Result<&'a Installation, &'a String>,
}

impl<'a> InstallationObjects<'a> {
    async fn read<K>(self, name: impl FnOnce(&'a Installation) -> Result<&'a str, String>) -> Fact<Option<K>>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        let own = self.own.map_err(Clone::clone)?;
        get(Api::namespaced(self.client.clone(), &own.namespace), name(own)?).await
    }
}

/// Reads the clock of the API server, by which its objects are dated.
async fn time(client: &Client) -> Fact<Timestamp> {
    let hidden = |reason: String| format!("cannot read the time of the API server: {reason}");
    let request = http::Request::get("/version").body(kube::client::Body::empty());
    let request = request.map_err(|error| hidden(error.to_string()))?;
    let response = client
        .send(request)
        .await
        .map_err(|error| hidden(api_text(&error)))?;
    let date = response.headers().get(http::header::DATE);
    let date = date.and_then(|date| jiff::fmt::rfc2822::parse(date.to_str().ok()?).ok());
    date.map(|date| date.timestamp())
        .ok_or_else(|| hidden("its answer has no date".into()))
}

/// Lists the configurations with webhooks for IPUJobs.
async fn webhooks(client: &Client) -> Fact<Vec<WebhookConfiguration>> {
    let mut found = Vec::new();
    for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
        let resource = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&resource));
        let listed = api.list(&ListParams::default()).await;
        for mut object in listed.map_err(|error| format!("cannot list {kind}s: {}", api_text(&error)))? {
            let all: Vec<ValidatingWebhook> =
                serde_json::from_value(object.data["webhooks"].take()).unwrap_or_default();
            let is_for_jobs = |(_, webhook): &(usize, ValidatingWebhook)| {
                let rules = webhook.rules.iter().flatten();
                let mut groups = rules.filter_map(|rule| rule.api_groups.as_ref()).flatten();
                groups.any(|group| group == "graphcore.ai")
            };
            let (webhooks, others): (Vec<_>, Vec<_>) = all.into_iter().enumerate().partition(is_for_jobs);
            if !webhooks.is_empty() {
                found.push(WebhookConfiguration {
                    kind,
                    metadata: object.metadata,
                    webhooks,
                    has_others: !others.is_empty(),
                });
            }
        }
    }
    Ok(found)
}

/// Lets the API server call the webhooks for a job that it does not store.
async fn try_webhooks(context: &Context, own: Result<&Installation, &String>) -> Fact<Option<String>> {
    let watched = own.map_err(Clone::clone)?.watch_namespaces();
    let namespace = watched.first().copied().unwrap_or("default");
    let api: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), namespace, &job_resource());
    let job = json!({
        "apiVersion": IpuJob::API_VERSION, "kind": IpuJob::KIND, "metadata": {"generateName": "doctor-"},
        "spec": {
            "jobInstances": 1, "ipusPerJobInstance": "1",
            "workers": {"template": {"spec": {"containers": [{"name": "main", "image": "doctor"}]}}},
        },
    });
    let job = serde_json::from_value(job).map_err(|error| error.to_string())?;
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    match tokio::time::timeout(PROBE_TIMEOUT, api.create(&params, &job)).await {
        Err(_) => Ok(Some(format!("no answer within {} s", PROBE_TIMEOUT.as_secs()))),
        Ok(Ok(_)) => Ok(None),
        Ok(Err(error)) => {
            let text = api_text(&error);
            if text.contains("failed calling webhook") {
                return Ok(Some(text));
            }
            match api_failure(format!("try the webhooks in namespace {namespace}"), error) {
                // The webhooks answered: the job breaks a rule of the installation.
                Failure { code: Code::Data, .. } => Ok(None),
                failure => Err(failure.chain()),
            }
        }
    }
}

/// Lets the API server call the proxy by the Service and the port that the operator uses.
async fn try_proxy(client: &Client, own: Result<&Installation, &String>) -> Fact<Option<String>> {
    let own = own.map_err(Clone::clone)?;
    let (namespace, (scheme, name, port)) = (&own.namespace, own.proxy_service());
    let path = format!("/api/v1/namespaces/{namespace}/services/{scheme}:{name}:{port}/proxy/readyz");
    let request = http::Request::get(path)
        .body(Vec::new())
        .map_err(|error| error.to_string())?;
    match tokio::time::timeout(PROBE_TIMEOUT, client.request_text(request)).await {
        Err(_) => Ok(Some(format!("no answer within {} s", PROBE_TIMEOUT.as_secs()))),
        Ok(Ok(_)) => Ok(None),
        Ok(Err(error)) => match api_failure(format!("reach Service {namespace}/{name}"), error) {
            failure if failure.code == Code::Denied => Err(failure.chain()),
            failure => Ok(Some(failure.chain())),
        },
    }
}

/// Reads the jobs of all namespaces.
async fn jobs(context: &Context) -> Fact<Vec<JobFacts>> {
    let listed = match context.all_jobs().list(&ListParams::default()).await {
        Ok(listed) => listed.items,
        // Without the CRD there are no jobs.
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        Err(error) => return Err(format!("cannot list IPUJobs: {}", api_text(&error))),
    };
    let job = |object: DynamicObject| {
        let host_network = object.data.pointer("/spec/workers/hostNetwork");
        let failure = object.data.pointer("/status/firstFailure").cloned();
        JobFacts {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
            declines_host_network: host_network == Some(&Value::Bool(false)),
            first_failure: failure.and_then(|failure| serde_json::from_value(failure).ok()),
        }
    };
    Ok(listed.into_iter().map(job).collect())
}

/// Asks the proxy for the state of its controllers.
async fn controllers(
    context: &Context,
    global: &Global,
    own: Result<&Installation, &String>,
) -> Fact<Vec<ControllerStatus>> {
    let own = own.map_err(Clone::clone)?;
    let proxy = proxy::connect_to(context, global, own, Access::Read).await;
    let proxy = proxy.map_err(|failure| failure.chain())?;
    let list = proxy.client.controllers().await;
    list.map(|list| list.controllers)
        .map_err(|error| Failure::from(error).chain())
}
