//! Rights of launchers: to read the workers of their instance and to exec into them.
//!
//! RBAC identifies Pods by name alone, and any Pod of the namespace may take a free name. The finalizer of
//! the operator keeps a worker, and so its name. A launcher gets its rights while all workers of its instance
//! exist with that finalizer, and loses them before the finalizer of the first one is removed. So no Pod of
//! another owner is ever within its rights.

use ipu_core::JobKey;
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation, TestOperation};
use k8s_openapi::api::rbac::v1::Role;
use kube::Client;
use kube::api::{Api, Patch};
use serde_json::json;

use super::error::{ReconcileError, ignore_statuses};
use super::objects::{create_or_update, patch_params};
use super::pod::JobPod;
use crate::resources::{ResourceBuilder, launcher_role};

/// Grants the launcher of an instance its rights over `workers`, the Pods of all workers of its attempt.
pub(super) async fn grant(
    client: &Client,
    builder: &ResourceBuilder<'_>,
    instance: u32,
    workers: impl Iterator<Item = &JobPod>,
) -> Result<(), ReconcileError> {
    let mut free = workers.filter(|pod| !pod.tracked || pod.terminating);
    if let Some(pod) = free.next() {
        return Err(ReconcileError::Changed(format!(
            "worker {} is being deleted",
            pod.name
        )));
    }
    create_or_update(client, builder.role(instance)).await?;
    create_or_update(client, builder.role_binding(instance)).await
}

/// Empties the Role of the launcher of an instance, if it exists and belongs to the job.
pub(super) async fn revoke(client: &Client, job: &JobKey, instance: u32) -> Result<(), ReconcileError> {
    let path = |path: &str| PointerBuf::parse(path).unwrap_or_default();
    let patch = json_patch::Patch(vec![
        PatchOperation::Test(TestOperation {
            path: path("/metadata/ownerReferences/0/uid"),
            value: job.uid.as_str().into(),
        }),
        PatchOperation::Add(AddOperation {
            path: path("/rules"),
            value: json!([]),
        }),
    ]);
    let api: Api<Role> = Api::namespaced(client.clone(), job.namespace.as_str());
    let role = launcher_role(job.name.as_str(), instance);
    let patched = api
        .patch_metadata(&role, &patch_params(), &Patch::Json::<()>(patch))
        .await;
    // It does not exist, or the test failed because it has another owner.
    ignore_statuses(patched, &[404, 422])
}
