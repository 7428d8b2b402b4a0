//! A real API server.

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

use super::event_series::{EventWrite, Events};
use super::ports::{ApiServer, JobEvent, PortError};
use crate::api_call::{Failure, METADATA_ONLY, bounded, connect};
use crate::crd::IpuJob;
use crate::resources::FIELD_MANAGER;

/// How long one call may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a log may take: a verdict waits for it, and is made without it.
const LOG_TIMEOUT: Duration = Duration::from_secs(5);

/// The closing words of `mpirun` are ten lines or so, and others may have said something after them.
const LAST_LINES: i64 = 64;

/// What is read of them at most, because a line may be as long as it likes. What is longer lacks its end, and tells nothing.
const LAST_BYTES: i64 = 1 << 20;

/// The media type of a JSON Patch (RFC 6902).
const JSON_PATCH: &str = "application/json-patch+json";

/// The API server of a `kube` configuration.
#[derive(Clone)]
pub struct KubeApi {
    client: Client,
    events: Arc<Events>,
}

impl std::fmt::Debug for KubeApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubeApi").finish_non_exhaustive()
    }
}

impl KubeApi {
    /// The API server of `config`; `instance` is what its events name as their reporter. Calls nobody yet, and never
    /// repeats a call: the next pass does.
    ///
    /// # Errors
    ///
    /// If `config` makes no client.
    pub fn new(config: Config, instance: &str) -> Result<Self, kube::Error> {
        Ok(Self {
            client: connect(config)?,
            events: Arc::new(Events::of(instance)),
        })
    }

    /// The client that it calls with.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    fn api(&self, namespace: &str, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, resource)
    }

    /// Sends an object, and answers its metadata as they are then: the rest is known, and to make text of it, and read that, is most of
    /// an answer.
    async fn send(&self, request: Result<http::Request<Vec<u8>>, Error>) -> Result<Value, PortError> {
        let mut request = request.map_err(|error| bad(&error.to_string()))?;
        let metadata_only = HeaderValue::from_static(METADATA_ONLY);
        request.headers_mut().insert(ACCEPT, metadata_only);
        let mut answer: Value = call(self.client.request(request)).await?;
        Ok(answer["metadata"].take())
    }

    /// Creates an object that is not there yet; its metadata.
    async fn create(&self, resource: &ApiResource, object: &Value) -> Result<Value, PortError> {
        let url = DynamicObject::url_path(resource, object["metadata"]["namespace"].as_str());
        let request = Request::new(url).create(&by_us(), object.to_string().into_bytes());
        self.send(request).await
    }

    /// What `params` say of a log.
    async fn log(
        &self,
        namespace: &str,
        name: &str,
        container: Option<&str>,
        mut params: LogParams,
    ) -> Result<String, PortError> {
        params.container = container.map(str::to_owned);
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let asked = bounded(LOG_TIMEOUT, pods.logs(name, &params)).await;
        asked.map_err(|failure| port_error(&failure))
    }
}

/// Kubernetes Pods.
pub(super) fn pods() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "Pod"), "pods")
}

/// IPUJobs.
pub(super) fn jobs() -> ApiResource {
    let kind = GroupVersionKind::gvk("graphcore.ai", "v1alpha1", IpuJob::KIND);
    ApiResource::from_gvk_with_plural(&kind, "ipujobs")
}

/// Roles.
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
        other => return Err(bad(&format!("objects of kind {other:?} are not applied"))),
    };
    let (group, version) = object["apiVersion"]
        .as_str()
        .map(|text| text.split_once('/').unwrap_or(("", text)))
        .ok_or_else(|| bad("an object without apiVersion"))?;
    let kind = object["kind"].as_str().unwrap_or_default();
    Ok(ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk(group, version, kind),
        plural,
    ))
}

/// Whether what is there is of a job of the name of the one that `object` is of.
fn has_owner_of(there: &DynamicObject, object: &Value) -> bool {
    let ours = &object["metadata"]["ownerReferences"][0];
    let mut owners = there.metadata.owner_references.iter().flatten();
    owners.any(|owner| {
        ours["apiVersion"] == owner.api_version.as_str()
            && ours["kind"] == owner.kind.as_str()
            && ours["name"] == owner.name.as_str()
    })
}

fn bad(message: &str) -> PortError {
    PortError::Refused {
        code: "BadObject".to_owned(),
        message: message.to_owned(),
    }
}

fn untyped(object: &DynamicObject) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

fn by_us() -> PostParams {
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

/// A time as logs have it: `2026-03-22T10:10:31.123456789Z`.
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
            tail_lines: Some(LAST_LINES),
            limit_bytes: Some(LAST_BYTES),
            ..LogParams::default()
        };
        let lines = self.log(namespace, name, container, params).await?;
        Ok((!lines.is_empty()).then_some(lines))
    }

    async fn apply(&self, object: &Value) -> Result<(), PortError> {
        let resource = resource_of(object)?;
        let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
        // Mostly it is not there yet.
        match self.create(&resource, object).await {
            Err(PortError::Conflict(_)) => {}
            done => return done.map(drop),
        }
        let api = self.api(text("namespace"), &resource);
        let there = call(api.get(text("name"))).await?;
        if !has_owner_of(&there, object) {
            return Err(PortError::Refused {
                code: "NameTaken".to_owned(),
                message: format!(
                    "a {} that is not of this job is called {}: delete it, or give the job another name",
                    resource.kind,
                    text("name")
                ),
            });
        }
        // It may be of an earlier job of the name, which Kubernetes has not removed yet: a merge patch replaces its owners, where
        // to apply would add one.
        let mut patch = object.clone();
        patch["metadata"]["resourceVersion"] = there.metadata.resource_version.into();
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
            // The test has failed: the Role is of another owner.
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
        // All but the status and the version is taken from what is stored. A patch costs the API server more: it makes text of
        // what is stored, changes that, and reads it again.
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
        let request = request.replace_subresource("status", text("name"), &by_us(), object);
        let mut written = job.clone();
        written["metadata"] = self.send(request).await?;
        written["status"] = status.clone();
        Ok(written)
    }

    async fn publish(&self, job: &Value, event: &JobEvent) -> Result<(), PortError> {
        let namespace = job["metadata"]["namespace"].as_str().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let (name, done) = match self.events.write(job, event) {
            EventWrite::Create(event) => {
                let name = event.metadata.name.clone().unwrap_or_default();
                (name, call(api.create(&by_us(), &event)).await)
            }
            EventWrite::Count(name, patch) => {
                let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
                let done = call(api.patch(&name, &params, &patch)).await;
                (name, done)
            }
            EventWrite::Nothing => return Ok(()),
        };
        if done.is_err() {
            // Nothing counts in what may not be there.
            self.events.forget(job, &name);
        }
        done.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_line_is_read_to_the_nanosecond() {
        let time = since_epoch("1970-01-01T00:00:31.123456789Z");
        assert_eq!(time, Some(Duration::new(31, 123_456_789)));
        assert_eq!(
            since_epoch("1970-01-01T02:00:01.5+02:00"),
            Some(Duration::from_millis(1500))
        );
        assert_eq!(since_epoch("unable"), None);
        assert_eq!(since_epoch("1969-12-31T23:59:59Z"), None);
    }

    /// What the creation of a Kubernetes Pod comes to at this address.
    async fn create_at(address: std::net::SocketAddr) -> PortError {
        let uri = format!("http://{address}").parse().expect("an address");
        let api = KubeApi::new(Config::new(uri), "test").expect("a client");
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "n"}});
        api.create_pod(&pod).await.expect_err("nothing is made")
    }

    /// Answers the one call that comes with this status.
    fn answering(status: u16) -> std::net::SocketAddr {
        use std::io::{Read as _, Write as _};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a call");
            let read = stream.read(&mut [0; 4096]).expect("a request");
            assert!(read > 0);
            let answer = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status})
                .to_string();
            let length = answer.len();
            write!(
                stream,
                "HTTP/1.1 {status} No\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{answer}"
            )
            .expect("an answer");
        });
        address
    }

    #[tokio::test]
    async fn what_was_turned_away_or_reached_nobody_was_not_done_and_what_was_not_answered_may_have_been() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let nobody = listener.local_addr().expect("an address");
        drop(listener);
        let refused = create_at(nobody).await;
        assert!(matches!(refused, PortError::NotDone(_)), "{refused:?}");
        let busy = create_at(answering(429)).await;
        assert!(matches!(busy, PortError::NotDone(_)), "{busy:?}");
        let broken = create_at(answering(503)).await;
        assert!(matches!(broken, PortError::Unavailable(_)), "{broken:?}");
    }
}
