//! Implementation of [`ApiServer`] for a real API server.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::HeaderValue;
use http::header::{ACCEPT, CONTENT_TYPE};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, DynamicObject, LogParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::request::{Error, Request};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config, Resource as _};
use serde_json::{Value, json};

use super::event_series::{EventRecorder, EventWrite};
use super::ports::{ApiServer, JobEvent, PortError};
use crate::api_call::{Failure, METADATA_ONLY, bounded, connect};
use crate::crd::IpuJob;
use crate::resources::FIELD_MANAGER;

/// Timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout of a log request: the outcome of an attempt waits for the log, and is decided without it.
const LOG_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of log lines that are read. The final message of `mpirun` has about ten lines, and other processes
/// may write after it.
const MAX_LOG_LINES: i64 = 64;

/// Maximum size of those lines: a line has no length limit. A longer excerpt lacks its end, and yields no
/// evidence.
const MAX_LOG_BYTES: i64 = 1 << 20;

/// The media type of a JSON Patch (RFC 6902).
const JSON_PATCH: &str = "application/json-patch+json";

/// The API server of a `kube` configuration.
#[derive(Clone)]
pub struct KubeApi {
    client: Client,
    events: Arc<EventRecorder>,
}

impl std::fmt::Debug for KubeApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubeApi").finish_non_exhaustive()
    }
}

impl KubeApi {
    /// Creates a client of the API server of `config`. `instance` is the reporter that its Events name. No
    /// request is sent yet, and no request is ever repeated: the next reconcile does that.
    ///
    /// # Errors
    ///
    /// If `config` is not valid for a client.
    pub fn new(config: Config, instance: &str) -> Result<Self, kube::Error> {
        Ok(Self {
            client: connect(config)?,
            events: Arc::new(EventRecorder::new(instance)),
        })
    }

    /// Returns the underlying client.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    fn api(&self, namespace: &str, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, resource)
    }

    /// Sends an object, and returns only the metadata of the response: the caller knows the rest, and
    /// serializing and parsing it is most of the cost of a response.
    async fn send(&self, request: Result<http::Request<Vec<u8>>, Error>) -> Result<Value, PortError> {
        let mut request = request.map_err(|error| bad_object(&error.to_string()))?;
        let metadata_only = HeaderValue::from_static(METADATA_ONLY);
        request.headers_mut().insert(ACCEPT, metadata_only);
        let mut response: Value = call(self.client.request(request)).await?;
        Ok(response["metadata"].take())
    }

    /// Creates an object. Returns its metadata, or [`PortError::Conflict`] if it exists.
    async fn create(&self, resource: &ApiResource, object: &Value) -> Result<Value, PortError> {
        let url = DynamicObject::url_path(resource, object["metadata"]["namespace"].as_str());
        let request = Request::new(url).create(&post_params(), object.to_string().into_bytes());
        self.send(request).await
    }

    /// Returns the part of a log that `params` select.
    async fn log(
        &self,
        namespace: &str,
        name: &str,
        container: Option<&str>,
        mut params: LogParams,
    ) -> Result<String, PortError> {
        params.container = container.map(str::to_owned);
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let log = bounded(LOG_TIMEOUT, pods.logs(name, &params)).await;
        log.map_err(|failure| port_error(&failure))
    }
}

/// The resource of pods.
pub(super) fn pods() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "Pod"), "pods")
}

/// The resource of IPUJobs.
pub(super) fn jobs() -> ApiResource {
    let kind = GroupVersionKind::gvk("graphcore.ai", "v1alpha1", IpuJob::KIND);
    ApiResource::from_gvk_with_plural(&kind, "ipujobs")
}

/// The resource of Roles.
fn roles() -> ApiResource {
    let kind = GroupVersionKind::gvk("rbac.authorization.k8s.io", "v1", "Role");
    ApiResource::from_gvk_with_plural(&kind, "roles")
}

/// The resource of an object that the operator applies.
fn resource_of(object: &Value) -> Result<ApiResource, PortError> {
    let plural = match object["kind"].as_str() {
        Some("ConfigMap") => "configmaps",
        Some("ServiceAccount") => "serviceaccounts",
        Some("Role") => "roles",
        Some("RoleBinding") => "rolebindings",
        other => {
            return Err(bad_object(&format!(
                "objects of kind {other:?} cannot be applied"
            )));
        }
    };
    let (group, version) = object["apiVersion"]
        .as_str()
        .map(|text| text.split_once('/').unwrap_or(("", text)))
        .ok_or_else(|| bad_object("the object has no apiVersion"))?;
    let kind = object["kind"].as_str().unwrap_or_default();
    Ok(ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk(group, version, kind),
        plural,
    ))
}

/// Returns whether the existing object is owned by a job of the same name as the owner of `object`.
fn has_same_owner(existing: &DynamicObject, object: &Value) -> bool {
    let ours = &object["metadata"]["ownerReferences"][0];
    let mut owners = existing.metadata.owner_references.iter().flatten();
    owners.any(|owner| {
        ours["apiVersion"] == owner.api_version.as_str()
            && ours["kind"] == owner.kind.as_str()
            && ours["name"] == owner.name.as_str()
    })
}

fn bad_object(message: &str) -> PortError {
    PortError::Refused {
        code: "BadObject".to_owned(),
        message: message.to_owned(),
    }
}

fn untyped(object: &DynamicObject) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

fn post_params() -> PostParams {
    PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    }
}

async fn call<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, PortError> {
    bounded(REQUEST_TIMEOUT, call)
        .await
        .map_err(|failure| port_error(&failure))
}

fn port_error(failure: &Failure) -> PortError {
    let message = failure.to_string();
    let status = match failure {
        Failure::Call(error) => match &**error {
            kube::Error::Api(status) => Some(status),
            _ => None,
        },
        Failure::Timeout(_) => None,
    };
    match status {
        Some(status) => match status.code {
            404 => PortError::NotFound(message),
            409 => PortError::Conflict(message),
            400..=499 if status.code != 429 && status.code != 408 => PortError::Refused {
                code: if status.reason.is_empty() {
                    "Refused".to_owned()
                } else {
                    status.reason.clone()
                },
                message,
            },
            429 => PortError::NotDone(message),
            _ => PortError::Unavailable(message),
        },
        None if failure.was_not_sent() => PortError::NotDone(message),
        None => PortError::Unavailable(message),
    }
}

/// Parses a timestamp of a log line: `2026-03-22T10:10:31.123456789Z`.
fn since_epoch(time: &str) -> Option<Duration> {
    let time: jiff::Timestamp = time.parse().ok()?;
    Duration::try_from(time.as_duration()).ok()
}

#[async_trait]
impl ApiServer for KubeApi {
    async fn pod(&self, namespace: &str, name: &str) -> Result<Option<Value>, PortError> {
        let api = self.api(namespace, &pods());
        Ok(call(api.get_opt(name)).await?.map(|pod| untyped(&pod)))
    }

    async fn create_pod(&self, pod: &Value) -> Result<Value, PortError> {
        let mut created = pod.clone();
        created["metadata"] = self.create(&pods(), pod).await?;
        Ok(created)
    }

    async fn delete_pod(&self, namespace: &str, name: &str, uid: &str) -> Result<(), PortError> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let api = self.api(namespace, &pods());
        call(api.delete(name, &params)).await.map(drop)
    }

    async fn last_log_time(
        &self,
        namespace: &str,
        name: &str,
        container: Option<&str>,
    ) -> Result<Option<Duration>, PortError> {
        let params = LogParams {
            tail_lines: Some(1),
            timestamps: true,
            ..LogParams::default()
        };
        let line = self.log(namespace, name, container, params).await?;
        Ok(line.split_whitespace().next().and_then(since_epoch))
    }

    async fn last_lines(
        &self,
        namespace: &str,
        name: &str,
        container: Option<&str>,
    ) -> Result<Option<String>, PortError> {
        let params = LogParams {
            tail_lines: Some(MAX_LOG_LINES),
            limit_bytes: Some(MAX_LOG_BYTES),
            ..LogParams::default()
        };
        let lines = self.log(namespace, name, container, params).await?;
        Ok((!lines.is_empty()).then_some(lines))
    }

    async fn apply(&self, object: &Value) -> Result<(), PortError> {
        let resource = resource_of(object)?;
        let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
        // The object usually does not exist yet.
        match self.create(&resource, object).await {
            Err(PortError::Conflict(_)) => {}
            result => return result.map(drop),
        }
        let api = self.api(text("namespace"), &resource);
        let existing = call(api.get(text("name"))).await?;
        if !has_same_owner(&existing, object) {
            return Err(PortError::Refused {
                code: "NameTaken".to_owned(),
                message: format!(
                    "{} {} exists and is not owned by this job: delete it, or give the job another name",
                    resource.kind,
                    text("name")
                ),
            });
        }
        // The object may belong to an earlier job of the same name, which the garbage collector has not
        // removed yet. A merge patch replaces its owners; server-side apply would add one.
        let mut patch = object.clone();
        patch["metadata"]["resourceVersion"] = existing.metadata.resource_version.into();
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        call(api.patch(text("name"), &params, &Patch::Merge(patch)))
            .await
            .map(drop)
    }

    async fn revoke(&self, namespace: &str, role: &str, uid: &str) -> Result<(), PortError> {
        let patch = json!([
            {"op": "test", "path": "/metadata/ownerReferences/0/uid", "value": uid},
            {"op": "add", "path": "/rules", "value": []},
        ]);
        let url = DynamicObject::url_path(&roles(), Some(namespace));
        let request = http::Request::patch(format!("{url}/{role}?fieldManager={FIELD_MANAGER}"))
            .header(CONTENT_TYPE, JSON_PATCH)
            .body(patch.to_string().into_bytes());
        match self.send(request.map_err(Error::BuildRequest)).await {
            // The test failed: the Role has another owner.
            Err(PortError::Refused { code, .. }) if code == "Invalid" => Ok(()),
            Ok(_) | Err(PortError::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn patch_job(&self, namespace: &str, name: &str, patch: &Value) -> Result<Value, PortError> {
        let api = self.api(namespace, &jobs());
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let job = call(api.patch(name, &params, &Patch::Merge(patch))).await?;
        Ok(untyped(&job))
    }

    async fn delete_job(&self, job: &Value) -> Result<(), PortError> {
        let text = |name: &str| job["metadata"][name].as_str().map(ToOwned::to_owned);
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: text("uid"),
                resource_version: text("resourceVersion"),
            }),
            ..DeleteParams::default()
        };
        let api = self.api(&text("namespace").unwrap_or_default(), &jobs());
        call(api.delete(&text("name").unwrap_or_default(), &params))
            .await
            .map(drop)
    }

    async fn write_status(&self, job: &Value, status: &Value) -> Result<Value, PortError> {
        let text = |name: &str| job["metadata"][name].as_str().unwrap_or_default();
        // The API server ignores all fields but the status and the version. A patch costs it more: it
        // serializes the stored object, patches the text, and parses it again.
        let object = json!({
            "apiVersion": job["apiVersion"],
            "kind": job["kind"],
            "metadata": {
                "namespace": text("namespace"),
                "name": text("name"),
                "resourceVersion": text("resourceVersion"),
            },
            "status": status,
        });
        let request = Request::new(DynamicObject::url_path(&jobs(), Some(text("namespace"))));
        let object = object.to_string().into_bytes();
        let request = request.replace_subresource("status", text("name"), &post_params(), object);
        let mut written = job.clone();
        written["metadata"] = self.send(request).await?;
        written["status"] = status.clone();
        Ok(written)
    }

    async fn publish(&self, job: &Value, event: &JobEvent) -> Result<(), PortError> {
        let namespace = job["metadata"]["namespace"].as_str().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let (name, result) = match self.events.write(job, event) {
            EventWrite::Create(event) => {
                let name = event.metadata.name.clone().unwrap_or_default();
                (name, call(api.create(&post_params(), &event)).await)
            }
            EventWrite::Count(name, patch) => {
                let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
                let result = call(api.patch(&name, &params, &patch)).await;
                (name, result)
            }
            EventWrite::Nothing => return Ok(()),
        };
        if result.is_err() {
            // No repetition counts in an Event that may not exist.
            self.events.forget(job, &name);
        }
        result.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_timestamps_have_nanosecond_precision() {
        let time = since_epoch("1970-01-01T00:00:31.123456789Z");
        assert_eq!(time, Some(Duration::new(31, 123_456_789)));
        assert_eq!(
            since_epoch("1970-01-01T02:00:01.5+02:00"),
            Some(Duration::from_millis(1500))
        );
        assert_eq!(since_epoch("unable"), None);
        assert_eq!(since_epoch("1969-12-31T23:59:59Z"), None);
    }

    /// Returns the error of a pod creation at this address.
    async fn create_at(address: std::net::SocketAddr) -> PortError {
        let uri = format!("http://{address}").parse().expect("an address");
        let api = KubeApi::new(Config::new(uri), "test").expect("a client");
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "n"}});
        api.create_pod(&pod).await.expect_err("the creation fails")
    }

    /// Serves one request with this status.
    fn serve_once(status: u16) -> std::net::SocketAddr {
        use std::io::{Read as _, Write as _};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a call");
            let read = stream.read(&mut [0; 4096]).expect("a request");
            assert!(read > 0);
            let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status})
                .to_string();
            let length = body.len();
            write!(
                stream,
                "HTTP/1.1 {status} No\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
            )
            .expect("an answer");
        });
        address
    }

    #[tokio::test]
    async fn rejected_and_unsent_requests_were_not_done_and_server_errors_are_inconclusive() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let unreachable = listener.local_addr().expect("an address");
        drop(listener);
        let refused = create_at(unreachable).await;
        assert!(matches!(refused, PortError::NotDone(_)), "{refused:?}");
        let busy = create_at(serve_once(429)).await;
        assert!(matches!(busy, PortError::NotDone(_)), "{busy:?}");
        let broken = create_at(serve_once(503)).await;
        assert!(matches!(broken, PortError::Unavailable(_)), "{broken:?}");
    }
}
