//! Reads the snapshot from the API server and the proxy, with the rights of the caller.

mod objects;
mod rights;

use ipu_k8s::crd::IpuJobStatus;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Event, LimitRange, Namespace, Node, Pod, ResourceQuota, Secret, Service,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt as _};

use super::facts::{Certificates, Fact, Facts, JobFacts};
use super::trust;
use crate::cli::Global;
use crate::context::{Context, JOB_NAME};
use crate::exit_code::api_text;
use crate::installation::{Installation, OPERATORS, PROXIES, find_operators};
use crate::{installation, proxy};

/// Reads all facts. A fact that cannot be read is hidden, with the reason.
pub(crate) async fn collect(context: &Context, global: &Global) -> Facts {
    let client = &context.client;
    let (now, api_time) = objects::clock(client).await;
    let operators = objects::list(Api::<Deployment>::all(client.clone()), OPERATORS).await;
    let operators = map(operators, find_operators);
    let proxies = objects::list(Api::<Deployment>::all(client.clone()), PROXIES).await;
    let own = match global.operator_namespace.as_deref() {
        None => operators.clone(),
        Some(namespace) => {
            let own = objects::list(
                Api::<Deployment>::namespaced(client.clone(), namespace),
                OPERATORS,
            );
            map(own.await, find_operators)
        }
    };
    let (mutating, validating) = tokio::join!(objects::mutating(client), objects::validating(client));
    let namespaces = objects::list(Api::<Namespace>::all(client.clone()), "").await;
    let own = map(own, |mut own| {
        if global.operator_namespace.is_none() {
            let trusted = trust::namespaces([&mutating, &validating], &namespaces);
            trust::retain(&mut own, &trusted);
        }
        own
    });
    let installation = match own {
        Fact::Read(own) => match installation::examine(client, &own).await {
            Ok(installation) => Fact::Read(installation),
            Err(reason) => Fact::Hidden(reason),
        },
        Fact::Hidden(reason) => Fact::Hidden(reason),
    };
    let of_operator = Named {
        client,
        installation: &installation,
    };
    let proxy_name = |installation: &Installation| Some(installation.proxy.clone());
    let (proxy, webhook_service, webhook_secret, lease) = tokio::join!(
        of_operator.read::<Deployment>(proxy_name),
        of_operator.read::<Service>(|found| Some(found.webhook_service.clone())),
        of_operator.read::<Secret>(|found| found.webhook_secret.clone().or(found.mounted_secret.clone())),
        of_operator.read::<Lease>(|found| Some(found.lease.clone())),
    );
    let (controller_list, tracker) = tokio::join!(
        of_operator.read::<ConfigMap>(|found| found.controllers_configmap.clone()),
        of_operator.read::<ConfigMap>(|found| Some(found.tracker.clone())),
    );
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let (crd, jobs) = tokio::join!(objects::get(crds, "ipujobs.graphcore.ai"), jobs(context));
    let (pods, events, nodes, node_leases) = tokio::join!(
        objects::list(Api::<Pod>::all(client.clone()), JOB_NAME),
        objects::warnings(Api::<Event>::all(client.clone())),
        objects::list(Api::<Node>::all(client.clone()), ""),
        objects::list(Api::<Lease>::namespaced(client.clone(), "kube-node-lease"), ""),
    );
    let (quotas, limit_ranges, attachments) = tokio::join!(
        objects::list(Api::<ResourceQuota>::all(client.clone()), ""),
        objects::list(Api::<LimitRange>::all(client.clone()), ""),
        attachments(client),
    );
    let others = others(client, &operators, &installation).await;
    let missing_permissions = rights::missing(client, &installation).await;
    Facts {
        now,
        api_time,
        controllers: controllers(context, global, &installation).await,
        webhook_certificates: map(webhook_secret, |secret| {
            let mut data = secret.and_then(|secret| secret.data).unwrap_or_default();
            let mut take = |key| data.remove(key).map(|bytes| bytes.0).unwrap_or_default();
            Certificates {
                ca: take("ca.crt"),
                server: take("tls.crt"),
            }
        }),
        operators,
        others,
        proxies: map(proxies, installation::find_proxies),
        installation,
        proxy,
        crd,
        mutating,
        validating,
        webhook_service,
        lease,
        controller_list,
        tracker,
        jobs,
        pods,
        events,
        nodes,
        node_leases,
        namespaces,
        quotas,
        limit_ranges,
        attachments,
        missing_permissions,
    }
}

fn map<T, U>(fact: Fact<T>, change: impl FnOnce(T) -> U) -> Fact<U> {
    match fact {
        Fact::Read(value) => Fact::Read(change(value)),
        Fact::Hidden(reason) => Fact::Hidden(reason),
    }
}

/// Reads objects of the examined installation.
struct Named<'a> {
    client: &'a Client,
    installation: &'a Fact<Installation>,
}

impl Named<'_> {
    async fn read<K>(&self, name: impl FnOnce(&Installation) -> Option<String>) -> Fact<Option<K>>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned,
        K::DynamicType: Default,
    {
        match self.installation {
            Fact::Hidden(reason) => Fact::Hidden(reason.clone()),
            Fact::Read(installation) => match name(installation) {
                Some(name) => {
                    let api: Api<K> = Api::namespaced(self.client.clone(), &installation.namespace);
                    objects::get(api, &name).await
                }
                None => Fact::Read(None),
            },
        }
    }
}

/// Reads the installations of the other operators, and their ledgers.
async fn others(
    client: &Client,
    operators: &Fact<Vec<Deployment>>,
    examined: &Fact<Installation>,
) -> Fact<Vec<(Installation, Fact<Option<ConfigMap>>)>> {
    let (operators, examined) = match (operators, examined) {
        (Fact::Read(operators), Fact::Read(examined)) => (operators, examined),
        (Fact::Hidden(reason), _) | (_, Fact::Hidden(reason)) => return Fact::Hidden(reason.clone()),
    };
    let mut others = Vec::new();
    for operator in operators {
        let other = match installation::examine(client, std::slice::from_ref(operator)).await {
            Ok(other) => other,
            Err(reason) => return Fact::Hidden(reason),
        };
        if !other.is_same(examined) {
            let api: Api<ConfigMap> = Api::namespaced(client.clone(), &other.namespace);
            let ledger = objects::get(api, &other.tracker).await;
            others.push((other, ledger));
        }
    }
    Fact::Read(others)
}

/// Reads the jobs of all namespaces.
async fn jobs(context: &Context) -> Fact<Vec<JobFacts>> {
    let listed = match context.all_jobs().list(&ListParams::default()).await {
        Ok(listed) => listed.items,
        // Without the CRD there are no jobs.
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        Err(error) => return Fact::Hidden(format!("cannot list IPUJobs: {}", api_text(&error))),
    };
    let job = |object: DynamicObject| {
        let status = object.data.get("status").cloned().unwrap_or_default();
        let status: Result<IpuJobStatus, _> = if status.is_null() {
            Ok(IpuJobStatus::default())
        } else {
            serde_json::from_value(status)
        };
        let declines = object
            .data
            .pointer("/spec/workers/hostNetwork")
            .and_then(serde_json::Value::as_bool);
        JobFacts {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
            declines_host_network: declines == Some(false),
            first_failure: status
                .map(|status| status.first_failure)
                .map_err(|error| error.to_string()),
        }
    };
    Fact::Read(listed.into_iter().map(job).collect())
}

/// Reads the names of the NetworkAttachmentDefinitions; none if the cluster has no such kind.
async fn attachments(client: &Client) -> Fact<Option<Vec<String>>> {
    let kind = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition");
    let resource = ApiResource::from_gvk_with_plural(&kind, "network-attachment-definitions");
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    match api.list_metadata(&ListParams::default()).await {
        Ok(list) => {
            let name = |object: &kube::core::PartialObjectMeta<DynamicObject>| {
                format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
            };
            Fact::Read(Some(list.items.iter().map(name).collect()))
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Fact::Read(None),
        Err(error) => Fact::Hidden(format!(
            "cannot list NetworkAttachmentDefinitions: {}",
            api_text(&error)
        )),
    }
}

/// Asks the proxy for the state of its controllers.
async fn controllers(
    context: &Context,
    global: &Global,
    installation: &Fact<Installation>,
) -> Fact<Vec<ipu_proxy_client::ControllerStatus>> {
    let installation = match installation {
        Fact::Read(installation) => installation,
        Fact::Hidden(reason) => return Fact::Hidden(reason.clone()),
    };
    let proxy = match proxy::connect_reader(context, global, installation).await {
        Ok(proxy) => proxy,
        Err(failure) => return Fact::Hidden(failure.chain()),
    };
    match proxy.client.controllers().await {
        Ok(list) => Fact::Read(list.controllers),
        Err(error) => Fact::Hidden(proxy::failure(error).chain()),
    }
}
