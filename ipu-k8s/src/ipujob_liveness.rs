//! Whether the IPUJobs that hold partitions are there, and what they were granted.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::{Claim, ControllerName, JobKey, Limits, Owner, OwnerLiveness, Request};
use ipu_ledger::{Entry, Liveness};
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::api_call::{Failure, bounded, connect};
use crate::crd::{Document, IpuJob, read_manifests};

/// The kind of owner that this asks about.
const KIND: &str = "IPUJob";

/// How long one question may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How old a list of all IPUJobs may be for an owner to be taken for live by it. It saves a question for each of the owners
/// that a repair looks at; whoever is not in it is asked about by name.
const LIST_AGE: Duration = Duration::from_secs(5);

/// How many IPUJobs are listed; of more the others are asked about one by one.
const LIST_LIMIT: u32 = 10_000;

/// Asks the API server about the IPUJobs that own entries, by name and uid. Whoever uses it may `get` and `list` `ipujobs` of
/// group `graphcore.ai`, and `list` `pods`.
///
/// [`Life::Dead`] is said only if the API server answers that there is no IPUJob of that name, or that it is another one, and
/// that no Kubernetes Pod of the job is left that has not ended. The finalizer of an IPUJob keeps it until its workers have
/// ended; but people take finalizers off by hand, and one that is put on while somebody deletes the object comes too late.
/// Everything else is [`Life::Unknown`]: an API server that does not answer or does not let us look, a cluster without
/// IPUJobs, owners of other kinds.
///
/// What IPUJobs were granted follows from their status: where `iPUPartitionCreated` is true, every instance has its partition,
/// for the attempt that `instances` says, or `restartCount` where it says none. So whoever writes the status sets
/// `iPUPartitionCreated` to false in the same write that raises either, and to true when the partitions were granted for that
/// attempt. A lost ledger is rebuilt from this.
pub struct IpuJobLiveness {
    client: Client,
    resource: ApiResource,
    listed: Mutex<Option<Listed>>,
}

/// The uids of IPUJobs that were there lately.
struct Listed {
    uids: BTreeSet<String>,
    at: Instant,
}

impl std::fmt::Debug for IpuJobLiveness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IpuJobLiveness").finish_non_exhaustive()
    }
}

impl IpuJobLiveness {
    /// Asks the API server of `config`. Calls nobody yet.
    ///
    /// # Errors
    ///
    /// If `config` makes no client.
    pub fn new(config: Config) -> Result<Self, kube::Error> {
        let client = connect(config)?;
        let kind = GroupVersionKind::gvk("graphcore.ai", "v1alpha1", KIND);
        Ok(Self {
            client,
            resource: ApiResource::from_gvk_with_plural(&kind, "ipujobs"),
            listed: Mutex::new(None),
        })
    }

    /// Whether this judges the owner: it is an IPUJob.
    #[must_use]
    pub fn judges(owner: &Owner) -> bool {
        owner.kind == KIND
    }

    /// Whether an IPUJob with this uid was there some seconds ago. Not knowing is no.
    async fn was_listed(&self, uid: &str) -> bool {
        let mut listed = self.listed.lock().await;
        match &*listed {
            Some(listed) if listed.at.elapsed() < LIST_AGE => {}
            _ => {
                let at = Instant::now();
                let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &self.resource);
                // From the API server's memory: somewhat old will do.
                let params = ListParams::default().limit(LIST_LIMIT).match_any();
                let found = bounded(TIMEOUT, api.list_metadata(&params)).await;
                let jobs = found.map(|found| found.items).unwrap_or_default();
                let uids = jobs.into_iter().filter_map(|job| job.metadata.uid).collect();
                *listed = Some(Listed { uids, at });
            }
        }
        listed.as_ref().is_some_and(|listed| listed.uids.contains(uid))
    }

    /// All IPUJobs, whole. None if the API server does not say.
    async fn jobs(&self) -> Vec<DynamicObject> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &self.resource);
        // Not from the API server's memory: a partition would be adopted for an attempt that is over.
        let params = ListParams::default().limit(LIST_LIMIT);
        match bounded(TIMEOUT, api.list(&params)).await {
            Ok(found) => found.items,
            Err(failure) => {
                tracing::debug!(%failure, "what IPUJobs were granted is not known");
                Vec::new()
            }
        }
    }

    async fn life(&self, job: &JobKey) -> OwnerLiveness {
        let (namespace, name) = (job.namespace.as_str(), job.name.as_str());
        if !is_object_name(namespace) || !is_object_name(name) {
            // No IPUJob can be called so: the entry came from elsewhere, and nothing of it is to be asked here.
            return OwnerLiveness::Unknown;
        }
        if self.was_listed(job.uid.as_str()).await {
            return OwnerLiveness::Live;
        }
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &self.resource);
        match bounded(TIMEOUT, api.get_metadata(name)).await {
            Ok(found) => match found.metadata.uid {
                Some(uid) if uid == job.uid.as_str() => OwnerLiveness::Live,
                Some(_) => self.life_after(job).await,
                None => OwnerLiveness::Unknown,
            },
            Err(failure) if is_absent(&failure, name) => self.life_after(job).await,
            Err(failure) => {
                tracing::debug!(%job, %failure, "whether an IPUJob lives is not known");
                OwnerLiveness::Unknown
            }
        }
    }
}

impl IpuJobLiveness {
    /// What is left of an IPUJob that is gone: its Kubernetes Pods may still be on their way out, and use the partition.
    async fn life_after(&self, job: &JobKey) -> OwnerLiveness {
        let uid = job.uid.as_str();
        if !is_label_value(uid) {
            // No Kubernetes Pod can bear it.
            return OwnerLiveness::Dead;
        }
        let pods = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "Pod"), "pods");
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), job.namespace.as_str(), &pods);
        let left = ListParams::default()
            .labels(&format!("{}={uid}", IpuJob::UID_LABEL))
            .fields("status.phase!=Succeeded,status.phase!=Failed")
            .limit(1);
        match bounded(TIMEOUT, api.list_metadata(&left)).await {
            Ok(found) if found.items.is_empty() => OwnerLiveness::Dead,
            Ok(_) => {
                tracing::info!(%job, "an IPUJob is gone, and its Kubernetes Pods are not yet");
                OwnerLiveness::Unknown
            }
            Err(failure) => {
                tracing::warn!(%job, %failure, "an IPUJob is gone, and whether its Kubernetes Pods are is not known");
                OwnerLiveness::Unknown
            }
        }
    }
}

#[async_trait]
impl Liveness for IpuJobLiveness {
    async fn life_of(&self, entry: &Entry) -> OwnerLiveness {
        match &entry.owner {
            Some(owner) if Self::judges(owner) => self.life(&owner.job).await,
            _ => OwnerLiveness::Unknown,
        }
    }

    async fn claims(&self) -> Vec<Claim> {
        self.jobs().await.into_iter().flat_map(granted).collect()
    }
}

/// What the status of an IPUJob says that it was granted.
fn granted(job: DynamicObject) -> Vec<Claim> {
    let status = &job.data["status"];
    if status["iPUPartitionCreated"] != true {
        return Vec::new();
    }
    let attempt = status["restartCount"].as_u64().unwrap_or(0);
    let Ok(attempt) = u32::try_from(attempt) else {
        return Vec::new();
    };
    // Those in a list do not say what they are.
    let mut whole = serde_json::to_value(&job).unwrap_or_default();
    whole["apiVersion"] = IpuJob::API_VERSION.into();
    whole["kind"] = KIND.into();
    let read = read_manifests(&whole.to_string(), &[]).unwrap_or_default();
    let Some(Document::IpuJob(manifest)) = read.into_iter().next() else {
        return Vec::new();
    };
    let spec = match manifest.job.to_raw().parse(&Limits::default().for_stored()) {
        Ok(parsed) => parsed.spec,
        Err(violations) => {
            let name = job.metadata.name.unwrap_or_default();
            tracing::debug!(name, ?violations, "what an IPUJob was granted cannot be told");
            return Vec::new();
        }
    };
    let owner = Owner {
        kind: KIND.into(),
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
        let own = report["attempt"].as_u64();
        let mut request = Request::of_instance(owner.clone(), instance, spec.partition().clone());
        request.attempt = own.and_then(|own| u32::try_from(own).ok()).unwrap_or(attempt);
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

/// Whether the API server says that it knows IPUJobs and that none is called so. Where it does not know IPUJobs at all, its
/// answer names none.
fn is_absent(failure: &Failure, name: &str) -> bool {
    let Failure::Call(error) = failure else {
        return false;
    };
    let kube::Error::Api(status) = &**error else {
        return false;
    };
    let named = status.details.as_ref().is_some_and(|details| {
        details.name == name && details.kind == "ipujobs" && details.group == "graphcore.ai"
    });
    status.code == 404 && status.reason == "NotFound" && named
}

/// Whether this may be the value of a label. Anything else would ask something else.
fn is_label_value(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric();
    text.len() <= 63
        && text.starts_with(plain)
        && text.ends_with(plain)
        && text.chars().all(|c| plain(c) || matches!(c, '-' | '_' | '.'))
}

/// Whether an object of Kubernetes may be called so. Anything else would make another address of it.
fn is_object_name(text: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.len() <= 253
        && text.starts_with(alphanumeric)
        && text.ends_with(alphanumeric)
        && text.chars().all(|c| alphanumeric(c) || matches!(c, '-' | '.'))
}
