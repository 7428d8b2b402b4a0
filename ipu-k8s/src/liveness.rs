//! Liveness of the IPUJobs and IPUPartitions that own partitions, and the partitions that they were granted.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use ipu_allocator::Liveness;
use ipu_core::allocator::{Claim, Entry, OwnerLiveness, Request};
use ipu_core::hardware::PartitionSpec;
use ipu_core::job::Limits;
use ipu_core::{AllocationId, ControllerName, IpuCount, Owner};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::api_call::{Failure, bounded, connect};
use crate::crd::{IpuJob, IpuPartition, MAX_LABEL_LEN};
use crate::partition_users::{UNFINISHED, users};

/// Timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum age of the list of all objects of a kind that shows an owner alive. It saves a request for each of
/// the owners that a repair checks; an owner missing from it is read by name.
const MAX_LIST_AGE: Duration = Duration::from_secs(5);

/// Maximum number of objects in the list; further ones are read one by one.
const MAX_LISTED: u32 = 10_000;

/// Checks with the API server whether the IPUJobs and IPUPartitions that own entries exist, by name and uid.
/// The service account needs `get` and `list` on `ipujobs` and `ipupartitions` of group `graphcore.ai`, and
/// `list` on `pods`.
///
/// [`OwnerLiveness::Dead`] requires that the API server reports no object of that name, or another uid, and
/// no unfinished Pod of the job, or Pod with the ConfigMap of the IPUPartition. Finalizers keep both until
/// their Pods have ended; but users remove finalizers by hand, and a finalizer that is added during the
/// deletion comes too late. Every other case is [`OwnerLiveness::Unknown`]: an API server that does not
/// respond or refuses access, a cluster without the custom resources, owners of other kinds.
///
/// The granted partitions follow from the status. Where `iPUPartitionCreated` of an IPUJob is true, every
/// instance has its partition, for the attempt in `instances`, or for `restartCount` without one. A status
/// writer therefore sets `iPUPartitionCreated` to false in the same write that raises either, and to true
/// when the partitions were granted for that attempt. An IPUPartition has its own in the phases Active,
/// Failed and Terminating. A lost ledger is rebuilt from this.
pub struct KubernetesLiveness {
    client: Client,
    jobs: Kind,
    partitions: Kind,
}

/// A kind of owners.
struct Kind {
    resource: ApiResource,
    listed: Mutex<Option<Listing>>,
}

/// Uids of objects that existed recently; none if the API server did not respond.
struct Listing {
    uids: Option<BTreeSet<String>>,
    at: Instant,
}

impl std::fmt::Debug for KubernetesLiveness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubernetesLiveness").finish_non_exhaustive()
    }
}

impl KubernetesLiveness {
    /// Creates a client for the API server of `config`. Sends no request yet.
    ///
    /// # Errors
    ///
    /// If `config` is not valid for a client.
    pub fn new(config: Config) -> Result<Self, kube::Error> {
        let kind = |kind: &str, plural: &str| Kind {
            resource: ApiResource::from_gvk_with_plural(
                &GroupVersionKind::gvk("graphcore.ai", "v1alpha1", kind),
                plural,
            ),
            listed: Mutex::new(None),
        };
        Ok(Self {
            client: connect(config)?,
            jobs: kind(IpuJob::KIND, "ipujobs"),
            partitions: kind(IpuPartition::KIND, "ipupartitions"),
        })
    }

    /// Returns whether this checks the owner: it is an IPUJob or an IPUPartition.
    #[must_use]
    pub fn supports(owner: &Owner) -> bool {
        [IpuJob::KIND, IpuPartition::KIND].contains(&owner.kind.as_str())
    }

    fn all(&self, kind: &Kind) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &kind.resource)
    }

    /// Returns whether an object with this uid existed some seconds ago; none if that is unknown.
    async fn was_listed(&self, kind: &Kind, uid: &str) -> Option<bool> {
        let mut listed = kind.listed.lock().await;
        match &*listed {
            Some(listed) if listed.at.elapsed() < MAX_LIST_AGE => {}
            _ => {
                // From the API server's watch cache: a slightly outdated list suffices.
                let params = ListParams::default().limit(MAX_LISTED).match_any();
                let found = bounded(REQUEST_TIMEOUT, self.all(kind).list_metadata(&params)).await;
                let uids = match found {
                    Ok(found) => Some(
                        found
                            .items
                            .into_iter()
                            .filter_map(|object| object.metadata.uid)
                            .collect(),
                    ),
                    // A refusal, for example without the CRD: each object is asked for.
                    Err(failure) if failure.code().is_some() => Some(BTreeSet::new()),
                    Err(_) => None,
                };
                // The time of the reply: a list that times out is not requested again for each owner.
                let at = Instant::now();
                *listed = Some(Listing { uids, at });
            }
        }
        let uids = listed.as_ref()?.uids.as_ref()?;
        Some(uids.contains(uid))
    }

    /// Returns all objects of a kind with their status; none if the API server does not respond.
    async fn objects(&self, kind: &Kind) -> Vec<DynamicObject> {
        // Not from the watch cache: a partition would be adopted for a finished attempt.
        let params = ListParams::default().limit(MAX_LISTED);
        match bounded(REQUEST_TIMEOUT, self.all(kind).list(&params)).await {
            Ok(found) => found.items,
            Err(failure) => {
                tracing::debug!(%failure, "the claims of {} are unknown", kind.resource.plural);
                Vec::new()
            }
        }
    }

    async fn liveness(&self, owner: &Owner) -> OwnerLiveness {
        let key = &owner.job;
        let (namespace, name) = (key.namespace.as_str(), key.name.as_str());
        if !is_object_name(namespace) || !is_object_name(name) {
            // No object can have this name: the entry has another origin, and its liveness cannot be checked
            // here.
            return OwnerLiveness::Unknown;
        }
        let kind = if owner.kind == IpuPartition::KIND {
            &self.partitions
        } else {
            &self.jobs
        };
        match self.was_listed(kind, key.uid.as_str()).await {
            Some(true) => return OwnerLiveness::Live,
            Some(false) => {}
            None => return OwnerLiveness::Unknown,
        }
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &kind.resource);
        match bounded(REQUEST_TIMEOUT, api.get_metadata(name)).await {
            Ok(found) => match found.metadata.uid {
                Some(uid) if uid == key.uid.as_str() => OwnerLiveness::Live,
                Some(_) => self.remaining_pods(owner).await,
                None => OwnerLiveness::Unknown,
            },
            Err(failure) if is_absent(&failure, kind, name) => self.remaining_pods(owner).await,
            Err(failure) => {
                tracing::debug!(%owner, %failure, "the liveness of an owner is unknown");
                OwnerLiveness::Unknown
            }
        }
    }

    /// Checks for remains of a deleted owner: Pods may still terminate and use the partition.
    async fn remaining_pods(&self, owner: &Owner) -> OwnerLiveness {
        let (namespace, uid) = (owner.job.namespace.as_str(), owner.job.uid.as_str());
        let found = if owner.kind == IpuPartition::KIND {
            let config_map = IpuPartition::config_map(owner.job.name.as_str());
            let users = bounded(REQUEST_TIMEOUT, users(&self.client, namespace, &config_map, true)).await;
            users.map(|users| users.is_empty())
        } else if !is_label_value(uid) {
            // No Pod can have this label.
            return OwnerLiveness::Dead;
        } else {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
            let params = ListParams::default()
                .labels(&format!("{}={uid}", IpuJob::UID_LABEL))
                .fields(UNFINISHED)
                .limit(1);
            let found = bounded(REQUEST_TIMEOUT, pods.list_metadata(&params)).await;
            found.map(|found| found.items.is_empty())
        };
        match found {
            Ok(true) => OwnerLiveness::Dead,
            Ok(false) => {
                tracing::info!(%owner, "an owner was deleted, and its pods still exist");
                OwnerLiveness::Unknown
            }
            Err(failure) => {
                tracing::warn!(%owner, %failure, "an owner was deleted, and the state of its pods is unknown");
                OwnerLiveness::Unknown
            }
        }
    }
}

#[async_trait]
impl Liveness for KubernetesLiveness {
    async fn liveness_of(&self, entry: &Entry) -> OwnerLiveness {
        match &entry.owner {
            Some(owner) if Self::supports(owner) => self.liveness(owner).await,
            _ => OwnerLiveness::Unknown,
        }
    }

    async fn claims(&self) -> Vec<Claim> {
        let jobs = self.objects(&self.jobs).await;
        let partitions = self.objects(&self.partitions).await;
        let partitions = partitions.into_iter().filter_map(active);
        jobs.into_iter().flat_map(granted).chain(partitions).collect()
    }
}

/// Returns the partition that the status of an IPUPartition claims.
fn active(object: DynamicObject) -> Option<Claim> {
    let partition: IpuPartition = object.try_parse().ok()?;
    let (spec, status) = (&partition.spec, partition.status.as_ref()?);
    if !matches!(status.phase.as_str(), "Active" | "Failed" | "Terminating") {
        return None;
    }
    let owner = Owner {
        kind: IpuPartition::KIND.into(),
        job: IpuPartition::key_of(&partition.metadata)?,
    };
    let mut wanted = PartitionSpec::of_size(IpuCount::try_from(spec.size).ok()?);
    wanted.gcds = spec.gcds.unwrap_or(1);
    wanted.replicas = wanted.gcds;
    wanted.reconfigurable = spec.reconfigurable == Some(true);
    wanted.allocation = spec
        .allocation
        .as_deref()
        .and_then(|name| AllocationId::new(name).ok());
    let mut request = Request::of_instance(owner, 0, wanted);
    request.attempt = status.attempt;
    request.priority = spec.priority.unwrap_or(0);
    request.preemptible = spec.preemptible == Some(true);
    request.account.clone_from(&spec.account);
    request.max_runtime = spec
        .ttl_seconds
        .map(|seconds| Duration::from_secs(seconds.into()));
    let mut claim = Claim::from(request);
    claim.controller = status
        .controller
        .as_deref()
        .and_then(|name| ControllerName::new(name).ok());
    Some(claim)
}

/// Returns the partitions that the status of an IPUJob claims.
fn granted(job: DynamicObject) -> Vec<Claim> {
    let status = &job.data["status"];
    if status["iPUPartitionCreated"] != true {
        return Vec::new();
    }
    let attempt = status["restartCount"].as_u64().unwrap_or(0);
    let Ok(attempt) = u32::try_from(attempt) else {
        return Vec::new();
    };
    // Objects of a list have no `apiVersion` and `kind`.
    let mut object = serde_json::to_value(&job).unwrap_or_default();
    object["apiVersion"] = IpuJob::API_VERSION.into();
    object["kind"] = IpuJob::KIND.into();
    let spec = match IpuJob::from_value(object)
        .0
        .parse(&Limits::default().for_stored())
    {
        Ok(parsed) => parsed.spec,
        Err(violations) => {
            let name = job.metadata.name.unwrap_or_default();
            tracing::debug!(name, ?violations, "the claims of an invalid IPUJob are unknown");
            return Vec::new();
        }
    };
    let owner = Owner {
        kind: IpuJob::KIND.into(),
        job: spec.key().clone(),
    };
    let report_of = |instance: u32| {
        let mut reports = status["instances"].as_array().into_iter().flatten();
        reports
            .find(|report| report["index"] == instance)
            .unwrap_or(&Value::Null)
    };
    let claim = |instance| {
        let report = report_of(instance);
        let job_attempt = report["attempt"].as_u64();
        let mut request = Request::of_instance(owner.clone(), instance, spec.partition().clone());
        request.attempt = job_attempt
            .and_then(|job_attempt| u32::try_from(job_attempt).ok())
            .unwrap_or(attempt);
        request.priority = spec.priority();
        request.preemptible = spec.preemptible();
        request.account = spec.account().map(str::to_owned);
        request.max_runtime = spec.max_runtime();
        let mut claim = Claim::from(request);
        claim.controller = report["controller"]
            .as_str()
            .and_then(|name| ControllerName::new(name).ok());
        claim
    };
    (0..spec.instances()).map(claim).collect()
}

/// Returns whether the API server serves this kind and has no object of this name. Without the CRD, its
/// response has no such details.
fn is_absent(failure: &Failure, kind: &Kind, name: &str) -> bool {
    let Failure::Call(error) = failure else {
        return false;
    };
    let kube::Error::Api(status) = &**error else {
        return false;
    };
    let named = status.details.as_ref().is_some_and(|details| {
        details.name == name && details.kind == kind.resource.plural && details.group == "graphcore.ai"
    });
    status.code == 404 && status.reason == "NotFound" && named
}

/// Returns whether the text is a valid label value. Another one would change the selector.
fn is_label_value(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric();
    text.len() <= MAX_LABEL_LEN
        && text.starts_with(plain)
        && text.ends_with(plain)
        && text.chars().all(|c| plain(c) || matches!(c, '-' | '_' | '.'))
}

/// Returns whether the text is a valid object name. Another one would change the request path.
fn is_object_name(text: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.len() <= 253
        && text.starts_with(alphanumeric)
        && text.ends_with(alphanumeric)
        && text.chars().all(|c| alphanumeric(c) || matches!(c, '-' | '.'))
}
