//! Connection of an operator to the simulated cluster: calls are late, unanswered or rejected.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use async_trait::async_trait;
use ipu_core::PartitionId;
use ipu_k8s::controller::{ApiServer, JobEvent, Partitions, PortError};
use ipu_proxy_client::{DeletePartition, PartitionDocument, PutPartition, ResetPartition};
use serde_json::{Value, json};

use super::fake_cluster::{ClusterState, Hold, World, time};

/// Future that yields once.
struct YieldOnce(bool);

impl Future for YieldOnce {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

/// Connection to the simulated cluster. Other tasks may run before each call and before its response.
#[derive(Debug)]
pub(crate) struct Port(pub(super) World);

impl Port {
    async fn call<T>(
        &self,
        act: impl FnOnce(&mut ClusterState) -> Result<T, PortError>,
    ) -> Result<T, PortError> {
        YieldOnce(false).await;
        let response = {
            let mut state = self.0.state();
            state.calls += 1;
            match state.inject_fault() {
                Some(true) => Err(PortError::Unavailable("the server is unreachable".into())),
                Some(false) => {
                    let _ = act(&mut state);
                    Err(PortError::Unavailable("the response was lost".into()))
                }
                None => act(&mut state),
            }
        };
        YieldOnce(false).await;
        response
    }

    /// Calls the proxy, if it is available.
    async fn proxy<T>(
        &self,
        act: impl FnOnce(&mut ClusterState) -> Result<T, PortError>,
    ) -> Result<T, PortError> {
        self.call(|state| {
            if state.proxy_is_down {
                Err(PortError::Unavailable("the proxy is down".into()))
            } else if state.proxy_refuses {
                Err(PortError::Refused {
                    code: "Forbidden".to_owned(),
                    message: "the token is unknown".to_owned(),
                })
            } else {
                act(state)
            }
        })
        .await
    }

    /// Changes the job `name` if `version` is its latest version.
    async fn change(
        &self,
        name: &str,
        version: &Value,
        change: impl FnOnce(&mut Value),
    ) -> Result<Value, PortError> {
        self.call(|state| {
            let Some(job) = state.jobs.get(name) else {
                return Err(PortError::NotFound(name.into()));
            };
            if *version != job["metadata"]["resourceVersion"] {
                return Err(PortError::Conflict(name.into()));
            }
            let mut changed = job.clone();
            change(&mut changed);
            check_progress(&job["status"], &changed["status"]);
            state.writes += 1;
            state.change_job(name, |job| *job = changed.clone());
            Ok(state.jobs.get(name).cloned().unwrap_or(changed))
        })
        .await
    }
}

#[async_trait]
impl ApiServer for Port {
    async fn pod(&self, _: &str, name: &str) -> Result<Option<Value>, PortError> {
        self.call(|state| Ok(state.pods.get(name).cloned())).await
    }

    async fn create_pod(&self, pod: &Value) -> Result<Value, PortError> {
        self.call(|state| {
            let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
            if state.pods.contains_key(&name) {
                return Err(PortError::Conflict(format!("{name} exists")));
            }
            if state.pods.len() >= state.quota {
                return Err(PortError::Refused {
                    code: "Forbidden".to_owned(),
                    message: format!("pods \"{name}\" is forbidden: exceeded quota"),
                });
            }
            state.writes += 1;
            state.version += 1;
            let mut pod = pod.clone();
            pod["metadata"]["uid"] = format!("pod-{}", state.version).into();
            pod["metadata"]["creationTimestamp"] = time(state.now).into();
            state.pods.insert(name.clone(), pod);
            state.change_pod(&name, |_| ());
            Ok(state.pods[&name].clone())
        })
        .await
    }

    async fn delete_pod(&self, _: &str, name: &str, uid: &str) -> Result<(), PortError> {
        self.call(|state| {
            let now = time(state.now);
            match state.pods.get(name) {
                None => Err(PortError::NotFound(name.into())),
                Some(pod) if pod["metadata"]["uid"] != uid => Err(PortError::Conflict(name.into())),
                Some(_) => {
                    state.writes += 1;
                    state.check_no_rights(name);
                    state.change_pod(name, |pod| pod["metadata"]["deletionTimestamp"] = now.into());
                    Ok(())
                }
            }
        })
        .await
    }

    async fn last_lines(&self, _: &str, name: &str, _: Option<&str>) -> Result<Option<String>, PortError> {
        // Tests put the log into an annotation.
        self.call(|state| {
            let log = state
                .pods
                .get(name)
                .map(|pod| &pod["metadata"]["annotations"]["log"]);
            Ok(log.and_then(Value::as_str).map(str::to_owned))
        })
        .await
    }

    async fn apply(&self, object: &Value) -> Result<(), PortError> {
        self.call(|state| {
            state.writes += 1;
            state.applied += 1;
            state.write_role(object);
            Ok(())
        })
        .await
    }

    async fn revoke(&self, _: &str, role: &str, uid: &str) -> Result<(), PortError> {
        self.call(|state| {
            if !state.revokes {
                return Err(PortError::Refused {
                    code: "Forbidden".to_owned(),
                    message: format!("roles \"{role}\" is forbidden"),
                });
            }
            state.writes += 1;
            state.roles.revoke(role, uid);
            Ok(())
        })
        .await
    }

    async fn patch_job(&self, _: &str, name: &str, patch: &Value) -> Result<Value, PortError> {
        let version = &patch["metadata"]["resourceVersion"];
        self.change(name, version, |job| {
            merge(&mut job["metadata"], &patch["metadata"])
        })
        .await
    }

    async fn delete_job(&self, job: &Value) -> Result<(), PortError> {
        let metadata = &job["metadata"];
        let name = metadata["name"].as_str().unwrap();
        self.change(name, &metadata["resourceVersion"], |job| {
            job["metadata"]["deletionTimestamp"] = "1970-01-01T00:00:00Z".into();
        })
        .await
        .map(drop)
    }

    async fn write_status(&self, job: &Value, status: &Value) -> Result<Value, PortError> {
        let message = status["lastMessage"].as_str().unwrap_or_default();
        assert!(!message.contains("BrokenPlan"), "{job}: {message}");
        let metadata = &job["metadata"];
        let name = metadata["name"].as_str().unwrap();
        self.change(name, &metadata["resourceVersion"], |job| {
            job["status"] = status.clone()
        })
        .await
    }

    async fn publish(&self, _: &Value, event: &JobEvent) -> Result<(), PortError> {
        assert!(
            !event.note.is_empty() && event.reason.chars().all(char::is_alphanumeric),
            "{event:?}"
        );
        self.call(|state| {
            state.event_reasons.push(event.reason.clone());
            state.published.push(event.clone());
            Ok(())
        })
        .await
    }
}

/// Checks that a status never regresses.
fn check_progress(before: &Value, after: &Value) {
    let restarts = |status: &Value| status["restartCount"].as_u64().unwrap_or(0);
    assert!(
        restarts(before) <= restarts(after),
        "the restart count decreases: {before} {after}"
    );
    for phase in ["Completed", "Failed"] {
        let kept = after["phase"] == phase || after["phase"] == "Terminating";
        assert!(before["phase"] != phase || kept, "{phase} is not final: {after}");
    }
    let index = |value: &Value| value["index"].as_u64();
    for old in before["instances"].as_array().into_iter().flatten() {
        let instances = after["instances"].as_array();
        let new = instances
            .into_iter()
            .flatten()
            .find(|new| index(new) == index(old));
        if let Some(new) = new {
            assert!(
                old["attempt"].as_u64() <= new["attempt"].as_u64(),
                "the attempt decreases"
            );
        }
    }
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let target = target.as_object_mut().unwrap();
    for (name, value) in patch {
        if value.is_null() {
            target.remove(name);
        } else {
            merge(target.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

#[async_trait]
impl Partitions for Port {
    async fn get_partition(&self, id: &PartitionId) -> Result<Option<PartitionDocument>, PortError> {
        self.proxy(|state| Ok(state.holds.get(id).map(|hold| state.document(id, hold))))
            .await
    }

    async fn ensure(&self, id: &PartitionId, wanted: &PutPartition) -> Result<PartitionDocument, PortError> {
        self.proxy(|state| {
            let now = state.now;
            let new = Hold {
                wanted: wanted.clone(),
                state: "waiting",
                since: now,
                granted: None,
            };
            if !state.holds.contains_key(id) {
                state.holds.insert(id.clone(), new);
                state.notify_changed(id);
            }
            let hold = state.holds.get_mut(id).unwrap();
            assert_eq!(hold.wanted.owner, wanted.owner, "each id belongs to one job");
            if wanted.attempt < hold.wanted.attempt {
                return Err(PortError::Refused {
                    code: "OldAttempt".into(),
                    message: "the attempt is old".into(),
                });
            }
            if wanted.attempt > hold.wanted.attempt && hold.state != "releasing" {
                let is_resettable = matches!(hold.state, "active" | "failed");
                hold.wanted = wanted.clone();
                if is_resettable {
                    hold.state = "creating";
                    hold.since = now;
                }
                state.notify_changed(id);
            }
            let hold = state.holds[id].clone();
            state.check_unused(id, Some(hold.wanted.attempt));
            Ok(state.document(id, &hold))
        })
        .await
    }

    async fn reset(
        &self,
        id: &PartitionId,
        options: &ResetPartition,
    ) -> Result<PartitionDocument, PortError> {
        self.proxy(|state| {
            let now = state.now;
            let Some(hold) = state.holds.get_mut(id) else {
                return Err(PortError::Refused {
                    code: "NotFound".into(),
                    message: "the partition does not exist".into(),
                });
            };
            if matches!(hold.state, "active" | "failed") {
                hold.state = "creating";
                hold.since = now;
                hold.wanted.attempt = hold.wanted.attempt.max(options.attempt.unwrap_or(0));
            }
            let hold = hold.clone();
            state.notify_changed(id);
            state.check_unused(id, None);
            Ok(state.document(id, &hold))
        })
        .await
    }

    async fn release(&self, id: &PartitionId, options: &DeletePartition) -> Result<(), PortError> {
        self.proxy(|state| {
            state.check_unused(id, None);
            let now = state.now;
            let Some(hold) = state.holds.get_mut(id) else {
                return Ok(());
            };
            if Some(&hold.wanted.owner.uid) != options.uid.as_ref()
                || options
                    .attempt
                    .is_some_and(|attempt| attempt < hold.wanted.attempt)
            {
                return Ok(());
            }
            if hold.state == "waiting" {
                state.remove_hold(id);
            } else {
                hold.state = "releasing";
                hold.since = now;
                state.notify_changed(id);
            }
            Ok(())
        })
        .await
    }
}
