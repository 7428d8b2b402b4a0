//! Secret that stores the rotation state, and helpers shared by the rotation loops.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::rotation::{RotationState, StateError};

/// Key of the state in the Secret.
const STATE_KEY: &str = "certificates.json";
/// Timeout of one check of the certificates.
pub(super) const CHECK_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay after a failed check, or after a conflict with another operator.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Error of a check; the next one may succeed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RotationError {
    #[error("{0}")]
    State(#[from] StateError),
    #[error("cannot create certificates")]
    CreateCertificate(#[from] rcgen::Error),
    #[error("cannot serve the certificate")]
    Serve(#[from] ipu_serve::TlsError),
    #[error("cannot write {path}")]
    Write { path: String, source: std::io::Error },
    #[error("cannot {action}")]
    Call {
        action: &'static str,
        source: Box<kube::Error>,
    },
}

pub(super) fn call(action: &'static str) -> impl Fn(kube::Error) -> RotationError {
    move |source| RotationError::Call {
        action,
        source: Box::new(source),
    }
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

/// Labels of the objects that the operator creates.
pub(super) fn labels(component: &str) -> Value {
    json!({"app.kubernetes.io/component": component, "app.kubernetes.io/part-of": "ipu-operator"})
}

/// Secret with a rotation state.
pub(super) struct StateSecret<'a> {
    pub(super) api: Api<Secret>,
    pub(super) name: &'a str,
    /// The value of its label `app.kubernetes.io/component`.
    pub(super) component: &'static str,
}

/// The content of the Secret.
pub(super) struct Stored {
    pub(super) version: String,
    pub(super) state: Option<RotationState>,
    /// Contents of the other keys.
    pub(super) files: BTreeMap<String, Vec<u8>>,
}

impl StateSecret<'_> {
    /// Reads the Secret, if it exists.
    pub(super) async fn load(&self) -> Result<Option<Stored>, RotationError> {
        let secret = self.api.get_opt(self.name).await;
        let Some(secret) = secret.map_err(call("read the Secret"))? else {
            return Ok(None);
        };
        let mut files: BTreeMap<String, Vec<u8>> = secret
            .data
            .into_iter()
            .flatten()
            .map(|(key, bytes)| (key, bytes.0))
            .collect();
        let state = files
            .remove(STATE_KEY)
            .map(|bytes| RotationState::read(&bytes))
            .transpose()?;
        Ok(Some(Stored {
            version: secret.metadata.resource_version.unwrap_or_default(),
            state,
            files,
        }))
    }

    /// Writes the state and `files` as one, unless another operator has written since `version`; returns
    /// whether it wrote.
    pub(super) async fn store(
        &self,
        state: &RotationState,
        version: Option<&str>,
        files: &BTreeMap<&str, &str>,
    ) -> Result<bool, RotationError> {
        let mut data = BTreeMap::from([(
            STATE_KEY,
            bytes(serde_json::to_vec(state).map_err(StateError::Invalid)?),
        )]);
        data.extend(
            files
                .iter()
                .map(|(key, text)| (*key, bytes(text.as_bytes().to_vec()))),
        );
        let written = match version {
            Some(version) => {
                let patch = json!({"metadata": {"resourceVersion": version}, "data": data});
                let params = PatchParams::default();
                self.api.patch(self.name, &params, &Patch::Merge(patch)).await
            }
            None => {
                let secret = serde_json::from_value(json!({
                    "metadata": {
                        "name": self.name,
                        "labels": labels(self.component),
                    },
                    "type": "Opaque",
                    "data": data,
                }));
                let secret: Secret = secret.map_err(StateError::Invalid)?;
                self.api.create(&PostParams::default(), &secret).await
            }
        };
        match written {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(call("write the Secret")(error)),
        }
    }
}

fn bytes(bytes: Vec<u8>) -> Value {
    json!(ByteString(bytes))
}
