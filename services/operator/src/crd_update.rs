//! Update of the CRDs at startup: the operator applies those that it was built with, unless a newer one is
//! installed. It never deletes a CRD.

use std::time::Duration;

use ipu_core::ErrorChain;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt as _};
use semver::Version;
use serde_json::Value;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::health::HealthRegistry;

/// Copies of the CRDs in `deploy/crd` in the package.
const MANIFESTS: [&str; 2] = [
    include_str!("ipujobs.graphcore.ai.yaml"),
    include_str!("ipupartitions.graphcore.ai.yaml"),
];
/// Annotation with the version of the build that the CRD belongs to.
const VERSION_ANNOTATION: &str = "graphcore.ai/crd-version";
/// Readiness condition.
const READINESS_CONDITION: &str = "the CRD";
const FIELD_MANAGER: &str = "ipu-operator";
const CHECK_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay between two checks. The API server needs seconds until it serves a new CRD.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Error of a check; the next one may succeed.
#[derive(Debug, thiserror::Error)]
enum CrdError {
    #[error("a CRD of this build is invalid: {detail}")]
    Manifest { detail: String },
    #[error("cannot {action} the CRD")]
    Call {
        action: &'static str,
        source: Box<kube::Error>,
    },
}

fn call(action: &'static str) -> impl Fn(kube::Error) -> CrdError {
    move |source| CrdError::Call {
        action,
        source: Box::new(source),
    }
}

/// Action for the installed CRD.
#[derive(Debug, PartialEq, Eq)]
enum CrdAction {
    Create,
    Apply,
    /// Belongs to a newer build.
    KeepNewer(Version),
    /// The CRD is being deleted. Jobs with finalizers need the operator until the deletion is finished.
    KeepDeleted,
}

/// Returns the action for the installed CRD. A version that cannot be parsed counts as older.
fn action(installed: Option<&DynamicObject>, own: &Version) -> CrdAction {
    let Some(installed) = installed else {
        return CrdAction::Create;
    };
    if installed.metadata.deletion_timestamp.is_some() {
        return CrdAction::KeepDeleted;
    }
    let version = installed.annotations().get(VERSION_ANNOTATION);
    match version.and_then(|version| version.parse().ok()) {
        Some(version) if version > *own => CrdAction::KeepNewer(version),
        _ => CrdAction::Apply,
    }
}

/// Updates the CRDs until the API server serves them.
pub(crate) struct CrdUpdater {
    pub(crate) client: Client,
    pub(crate) health: HealthRegistry,
    /// Becomes true once the CRDs are served.
    pub(crate) served: watch::Sender<bool>,
}

impl CrdUpdater {
    /// Makes the readiness wait for [`Self::run`].
    pub(crate) fn require(&self) {
        self.health.require(READINESS_CONDITION);
    }

    /// Retries until the CRDs are as new as this build and served. Never ends.
    pub(crate) async fn run(self) {
        let mut last_error = String::new();
        loop {
            match tokio::time::timeout(CHECK_TIMEOUT, self.check()).await {
                Ok(Ok(true)) => break,
                Ok(Ok(false)) => {}
                failed => {
                    let error = match failed {
                        Ok(Err(error)) => ErrorChain(&error).to_string(),
                        _ => format!("it timed out after {} s", CHECK_TIMEOUT.as_secs()),
                    };
                    if error != last_error {
                        warn!(
                            error,
                            "cannot update the CRD; no job is reconciled before it is updated"
                        );
                        last_error = error;
                    }
                }
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
        self.health.mark_ready(READINESS_CONDITION);
        self.served.send_replace(true);
        // The receivers read an error from a dropped sender.
        std::future::pending::<()>().await;
    }

    /// Takes the next step; returns whether all CRDs are up to date and served.
    async fn check(&self) -> Result<bool, CrdError> {
        let mut are_served = true;
        for manifest in MANIFESTS {
            are_served &= self.check_one(manifest).await?;
        }
        Ok(are_served)
    }

    async fn check_one(&self, manifest: &str) -> Result<bool, CrdError> {
        let (mut own, version) = own(manifest)?;
        let api = self.api();
        let installed = api.get_opt(&own.name_any()).await.map_err(call("read"))?;
        match (action(installed.as_ref(), &version), installed) {
            (CrdAction::KeepNewer(newer), Some(installed)) => {
                info!(crd = own.name_any(), %newer, own = %version, "kept the CRD of a newer build");
                Ok(is_served(&installed))
            }
            (CrdAction::KeepDeleted, _) => {
                warn!(
                    crd = own.name_any(),
                    "the CRD is being deleted, and was not updated"
                );
                Ok(true)
            }
            (CrdAction::Apply, Some(installed)) => {
                // Another operator may write at the same time, also a newer one.
                own.metadata.resource_version = installed.resource_version();
                let params = PatchParams::apply(FIELD_MANAGER).force();
                let applied = api.patch(&own.name_any(), &params, &Patch::Apply(&own)).await;
                match applied {
                    Ok(applied) => {
                        if applied.resource_version() != installed.resource_version() {
                            info!(crd = own.name_any(), %version, "updated the CRD");
                        }
                        Ok(is_served(&applied))
                    }
                    Err(error) if is_conflict(&error) => Ok(false),
                    Err(error) => Err(call("update")(error)),
                }
            }
            _ => {
                let params = PostParams {
                    field_manager: Some(FIELD_MANAGER.to_owned()),
                    ..PostParams::default()
                };
                match api.create(&params, &own).await {
                    Ok(_) => info!(crd = own.name_any(), %version, "created the CRD"),
                    Err(error) if is_conflict(&error) => {}
                    Err(error) => return Err(call("create")(error)),
                }
                Ok(false)
            }
        }
    }

    fn api(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
        Api::all_with(self.client.clone(), &ApiResource::from_gvk(&kind))
    }
}

/// Parses a CRD of this build, and its version.
fn own(manifest: &str) -> Result<(DynamicObject, Version), CrdError> {
    let invalid = |error: &dyn std::error::Error| CrdError::Manifest {
        detail: error.to_string(),
    };
    let own: DynamicObject = serde_saphyr::from_str(manifest).map_err(|error| invalid(&error))?;
    let version = own.annotations().get(VERSION_ANNOTATION);
    let version = version.map_or("", String::as_str).parse();
    Ok((own, version.map_err(|error| invalid(&error))?))
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// Returns whether the condition `Established` is true.
fn is_served(definition: &DynamicObject) -> bool {
    let conditions = definition
        .data
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    conditions.is_some_and(|conditions| {
        conditions
            .iter()
            .any(|condition| condition["type"] == "Established" && condition["status"] == "True")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn installed(metadata: Value) -> DynamicObject {
        let object = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn the_crds_of_this_build_have_the_version_of_the_package() {
        for (manifest, name) in MANIFESTS.into_iter().zip(["ipujobs", "ipupartitions"]) {
            let (own, version) = own(manifest).unwrap();
            assert_eq!(own.name_any(), format!("{name}.graphcore.ai"));
            assert_eq!(version.to_string(), env!("CARGO_PKG_VERSION"));
        }
    }

    #[test]
    fn only_a_newer_crd_or_one_that_is_being_deleted_is_kept() {
        let own: Version = "0.10.0".parse().unwrap();
        assert_eq!(action(None, &own), CrdAction::Create);
        for older in ["0.9.3", "0.10.0-rc.1", "0.10.0", "", "v0.11.0", "latest"] {
            let installed = installed(json!({"annotations": {VERSION_ANNOTATION: older}}));
            assert_eq!(action(Some(&installed), &own), CrdAction::Apply, "{older}");
        }
        assert_eq!(action(Some(&installed(json!({}))), &own), CrdAction::Apply);
        for newer in ["0.10.1-rc.1", "0.10.1", "1.0.0"] {
            let installed = installed(json!({"annotations": {VERSION_ANNOTATION: newer}}));
            let expected = CrdAction::KeepNewer(newer.parse().unwrap());
            assert_eq!(action(Some(&installed), &own), expected);
        }
        let deleted = installed(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}));
        assert_eq!(action(Some(&deleted), &own), CrdAction::KeepDeleted);
    }
}
