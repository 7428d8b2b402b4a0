//! Writes of objects of a job.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::error::{ReconcileError, ignore_statuses, is_status};
use super::pod::JobPod;
use crate::crd::IpuJob;
use crate::resources::FIELD_MANAGER;

pub(super) fn post_params() -> PostParams {
    PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    }
}

pub(super) fn patch_params() -> PatchParams {
    PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

/// Returns delete parameters that only apply to the object of this uid.
pub(super) fn delete_params(uid: Option<String>) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions {
            uid,
            resource_version: None,
        }),
        ..DeleteParams::default()
    }
}

/// Creates an object of a job, or makes the existing object of the name match it. Fails with a refusal if
/// another owner has that object.
pub(super) async fn create_or_update<K>(client: &Client, object: K) -> Result<(), ReconcileError>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    K: Clone + Debug + DeserializeOwned + Serialize,
{
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let api: Api<K> = Api::namespaced(client.clone(), &namespace);
    // The object usually does not exist yet.
    match api.create(&post_params(), &object).await {
        Ok(_) => return Ok(()),
        Err(error) if is_status(&error, 409) => {}
        Err(error) => return Err(error.into()),
    }
    let existing = api.get(&name).await?;
    if !has_same_owner(existing.meta(), object.meta()) {
        let kind = K::kind(&());
        return Err(ReconcileError::refused(
            "NameTaken",
            format!(
                "{kind} {name} exists and is not owned by this job: delete it, or give the job another name"
            ),
        ));
    }
    // The object may belong to an earlier job of the same name, which the garbage collector has not removed
    // yet. A merge patch replaces its owners; server-side apply would add one.
    let mut object = object;
    object.meta_mut().resource_version = existing.resource_version();
    api.patch(&name, &patch_params(), &Patch::Merge(&object)).await?;
    Ok(())
}

/// Returns whether a job of the same name owns both objects.
fn has_same_owner(existing: &ObjectMeta, ours: &ObjectMeta) -> bool {
    let Some(job) = ours.owner_references.iter().flatten().next() else {
        return false;
    };
    let mut owners = existing.owner_references.iter().flatten();
    owners.any(|owner| {
        (&owner.api_version, &owner.kind, &owner.name) == (&job.api_version, &job.kind, &job.name)
    })
}

/// Replaces the finalizers of a version of an object. Does nothing if it no longer exists.
pub(super) async fn set_finalizers<K>(
    client: &Client,
    metadata: &ObjectMeta,
    finalizers: Vec<&String>,
) -> Result<(), ReconcileError>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    K: Clone + Debug + DeserializeOwned + Serialize,
{
    let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
    let api: Api<K> = Api::namespaced(client.clone(), namespace.unwrap_or_default());
    let patch = json!({"metadata": {
        "resourceVersion": metadata.resource_version,
        "finalizers": finalizers,
    }});
    let patched = api
        .patch_metadata(name.unwrap_or_default(), &patch_params(), &Patch::Merge(&patch))
        .await;
    ignore_statuses(patched, &[404])
}

/// Removes the operator's finalizer from a Pod. Does nothing if the Pod no longer exists.
pub(super) async fn untrack(api: &Api<Pod>, name: &str, uid: &str) -> Result<(), ReconcileError> {
    // Idempotent, and independent of concurrent updates of the kubelet. A Pod of another uid is a conflict.
    let patch = json!({"metadata": {
        "uid": uid,
        "$deleteFromPrimitiveList/finalizers": [IpuJob::POD_FINALIZER],
    }});
    let patched = api
        .patch_metadata(name, &patch_params(), &Patch::Strategic(&patch))
        .await;
    ignore_statuses(patched, &[404, 409])
}

/// Removes a Pod whose outcome is recorded or no longer matters: with its grace period, and then its
/// finalizer. In the reverse order it could be left without a mark that it is one of the job.
pub(super) async fn remove(api: &Api<Pod>, pod: &JobPod) -> Result<(), ReconcileError> {
    if !pod.terminating {
        match api.delete(&pod.name, &delete_params(Some(pod.uid.clone()))).await {
            Ok(_) => {}
            Err(error) if is_status(&error, 404) || is_status(&error, 409) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    if pod.tracked {
        untrack(api, &pod.name, &pod.uid).await?;
    }
    Ok(())
}
