//! Pods whose job no longer exists: their finalizer was removed from the job by hand, or another operator
//! created them late. No status waits for their outcome.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::runtime::reflector::ObjectRef;
use kube::{Resource as _, ResourceExt as _};

use super::StoredJob;
use super::context::Context;
use super::error::ReconcileError;
use super::objects::untrack;
use super::pod::{has_ended, is_tracked};
use crate::crd::IpuJob;
use crate::resources::{JOB_NAME, JOB_UID};

/// Interval of the search. Such a Pod only keeps its name for longer.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Removes the finalizer of deleted Pods without a job, forever.
pub(super) async fn release(context: &Context) {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let now = (context.now)();
        let is_deleted =
            |pod: &Pod| pod.metadata.deletion_timestamp.is_some() && is_tracked(pod) && has_ended(pod, now);
        for pod in context.pods.state_filter(is_deleted) {
            if let Err(error) = release_one(context, &pod).await {
                tracing::debug!(pod = pod.name_any(), %error, "the finalizer of a Pod could not be removed");
            }
        }
    }
}

async fn release_one(context: &Context, pod: &Pod) -> Result<(), ReconcileError> {
    let (namespace, labels) = (pod.namespace().unwrap_or_default(), pod.labels());
    let (Some(name), Some(uid)) = (labels.get(JOB_NAME), labels.get(JOB_UID)) else {
        return Ok(());
    };
    let is_owner = |job: &StoredJob| job.meta().uid.as_ref() == Some(uid);
    let stored = context.jobs.get(&ObjectRef::new(name).within(&namespace));
    if stored.is_some_and(|job| is_owner(&job)) {
        return Ok(());
    }
    let jobs: Api<IpuJob> = Api::namespaced(context.client.clone(), &namespace);
    // The store may be late.
    let named = ListParams::default().fields(&format!("metadata.name={name}"));
    if jobs
        .list_metadata(&named)
        .await?
        .iter()
        .any(|job| job.metadata.uid.as_ref() == Some(uid))
    {
        return Ok(());
    }
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    untrack(&pods, &pod.name_any(), &pod.uid().unwrap_or_default()).await
}
