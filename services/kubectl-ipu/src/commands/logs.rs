//! `kubectl ipu logs`: prints the logs of a job.

mod copy;

use futures::StreamExt as _;
use ipu_core::JobPhase;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, LogParams};
use kube::runtime::wait::await_condition;
use kube::runtime::{WatchStreamExt as _, watcher};

use self::copy::{CopyError, LogEnd, copy, copy_lines};
use super::get::status_of;
use super::job_watch::{JobWatch, check_denied, is_finished};
use crate::cli::{Logs, PodSelection};
use crate::context::{Context, INSTANCE, JOB_NAME, WORKER, index, is_launcher};
use crate::exit_code::{Code, Failure};
use crate::output;

/// Prints the log of the selected Pod, or of all Pods.
pub(crate) async fn logs(arguments: &Logs, context: &Context) -> Result<Code, Failure> {
    let mut pods = context.pods(&arguments.job).await?;
    if arguments.follow && selected(&pods, arguments).is_err() {
        pods = wait_for_pod(arguments, context).await?;
    }
    if pods.is_empty() {
        return without_pods(&arguments.job, context).await;
    }
    let selected = selected(&pods, arguments)?;
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &context.namespace);
    let with_prefix = selected.len() > 1;
    let streams = selected
        .into_iter()
        .map(|pod| print(&api, pod, arguments.follow, with_prefix));
    // Logs that end are printed one after the other, and followed ones as their lines come.
    let at_once = if arguments.follow { usize::MAX } else { 1 };
    let mut printed = futures::stream::iter(streams).buffer_unordered(at_once.min(MAX_FOLLOWED));
    let mut first_failure = None;
    while let Some(result) = printed.next().await {
        match result {
            Ok(LogEnd::Complete) => {}
            // As `head` does after its last line.
            Ok(LogEnd::ReaderClosed) => return Ok(Code::Done),
            Err(failure) => {
                output::say(&format!("error: {}", failure.chain()));
                first_failure.get_or_insert(failure.code);
            }
        }
    }
    Ok(first_failure.unwrap_or(Code::Done))
}

/// Returns the Pods whose logs are requested.
fn selected<'a>(pods: &'a [Pod], arguments: &Logs) -> Result<Vec<&'a Pod>, Failure> {
    if arguments.all && !pods.is_empty() {
        return Ok(pods.iter().collect());
    }
    select(pods, &arguments.selection, &arguments.job).map(|pod| vec![pod])
}

/// Waits until the selected Pod exists or the job has finished, and prints the reason of the wait. Returns
/// the Pods of the job.
async fn wait_for_pod(arguments: &Logs, context: &Context) -> Result<Vec<Pod>, Failure> {
    let Logs { job, .. } = arguments;
    let namespace = &context.namespace;
    let mut states = JobWatch::new(&context.job(job).await?, context);
    let api: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let of_job = watcher::Config::default().labels(&format!("{JOB_NAME}={job}"));
    let mut events = std::pin::pin!(watcher(api, of_job).default_backoff());
    output::say(&format!("Waiting for a Pod of IPUJob {namespace}/{job}"));
    loop {
        tokio::select! {
            state = states.next() => {
                let status = status_of(&state?);
                // All Pods of a running job exist: the selected one never will.
                if is_finished(&status) || status.phase == Some(JobPhase::Running) {
                    let pods = context.pods(job).await?;
                    if is_finished(&status) || !pods.is_empty() {
                        return Ok(pods);
                    }
                }
            }
            Some(event) = events.next() => match event {
                Ok(watcher::Event::Apply(_) | watcher::Event::InitDone) => {
                    let pods = context.pods(job).await?;
                    if selected(&pods, arguments).is_ok() {
                        return Ok(pods);
                    }
                }
                Ok(_) => {}
                Err(error) => check_denied(error, &format!("watch the Pods of {namespace}/{job}"))?,
            },
        }
    }
}

/// Maximum number of logs that are followed at once: a job has at most some hundred Pods.
const MAX_FOLLOWED: usize = 1024;

async fn print(api: &Api<Pod>, pod: &Pod, follow: bool, with_prefix: bool) -> Result<LogEnd, Failure> {
    let name = pod.name_any();
    if follow {
        wait_for_start(api, pod).await?;
    }
    let params = LogParams {
        container: pod
            .spec
            .as_ref()
            .and_then(|spec| spec.containers.first())
            .map(|container| container.name.clone()),
        follow,
        ..LogParams::default()
    };
    let log = api.log_stream(&name, &params).await;
    let log = log.map_err(|error| match &error {
        // The container waits to start.
        kube::Error::Api(status) if status.code == 400 => {
            let text = format!(
                "Pod {name} has no log yet: {}; use --follow to wait",
                status.message
            );
            Failure::new(Code::NotFound, text)
        }
        _ => Failure::api(format!("read the log of Pod {name}"), error),
    })?;
    let broken = |error| Failure::because(Code::Unavailable, format!("the log of Pod {name} broke"), error);
    if with_prefix {
        let prefix = format!("[{name}] ");
        copy_lines(log, prefix.as_bytes(), output::bytes).await
    } else {
        copy(log, output::bytes).await
    }
    .map_err(|error| match error {
        CopyError::Read(error) => broken(error),
        CopyError::Write(error) => output::write_failure(error),
    })
}

/// Waits until the first container of a Pod has started.
async fn wait_for_start(api: &Api<Pod>, pod: &Pod) -> Result<(), Failure> {
    let has_started = |pod: Option<&Pod>| {
        // A deleted Pod is reported by the request for its log.
        let Some(pod) = pod else { return true };
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let statuses = pod
            .status
            .as_ref()
            .and_then(|status| status.container_statuses.as_ref());
        let state = statuses.and_then(|statuses| statuses.first()?.state.as_ref());
        !matches!(phase, None | Some("Pending"))
            || state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    };
    if has_started(Some(pod)) {
        return Ok(());
    }
    let name = pod.name_any();
    output::say(&format!("Waiting for the start of Pod {name}"));
    let started = await_condition(api.clone(), &name, has_started).await;
    let failed = |error| Failure::because(Code::Unavailable, format!("cannot watch Pod {name}"), error);
    started.map(|_| ()).map_err(failed)
}

/// Returns the selected Pod: by default the launcher, and without one worker 0.
pub(super) fn select<'a>(pods: &'a [Pod], selection: &PodSelection, job: &str) -> Result<&'a Pod, Failure> {
    let instance = selection.instance;
    let mut of_instance = pods.iter().filter(|pod| index(pod, INSTANCE) == instance);
    let launcher = of_instance.clone().find(|pod| is_launcher(pod));
    if let (None, Some(launcher)) = (selection.worker, launcher) {
        return Ok(launcher);
    }
    let wanted = selection.worker.unwrap_or(0);
    let worker = of_instance.find(|pod| !is_launcher(pod) && index(pod, WORKER) == wanted);
    let role = if selection.launcher {
        "launcher".to_owned()
    } else {
        format!("worker {wanted}")
    };
    worker.filter(|_| !selection.launcher).ok_or_else(|| {
        let names: Vec<_> = pods.iter().map(|pod| pod.name_any()).collect();
        let text = format!(
            "instance {instance} of IPUJob {job} has no {role}; existing Pods: {}",
            if names.is_empty() {
                "none".into()
            } else {
                names.join(", ")
            }
        );
        Failure::new(Code::NotFound, text)
    })
}

/// Prints the recorded end of the log of the first failure, which survives the Pods.
async fn without_pods(job: &str, context: &Context) -> Result<Code, Failure> {
    let status = status_of(&context.job(job).await?);
    match status.first_failure.filter(|failure| !failure.log.is_empty()) {
        Some(failure) => {
            output::say(&format!(
                "The Pods of {job} are gone. This is the end of the log of {}, which failed first:",
                failure.name
            ));
            output::result(&format!("{}\n", failure.log.trim_end()))?;
            Ok(Code::Done)
        }
        None => Err(Failure::new(
            Code::NotFound,
            format!(
                "IPUJob {}/{job} has no Pods; use `kubectl ipu why {job}`",
                context.namespace
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, role: &str, instance: u32, worker: u32) -> Pod {
        let labels = json!({
            "graphcore.ai/role": role, "graphcore.ai/instance": instance.to_string(),
            "graphcore.ai/worker": worker.to_string(),
        });
        serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap()
    }

    fn selected(pods: &[Pod], worker: Option<u32>, launcher: bool, instance: u32) -> Result<String, String> {
        let selection = PodSelection {
            worker,
            launcher,
            instance,
        };
        let selected = select(pods, &selection, "job");
        selected
            .map(|pod| pod.name_any())
            .map_err(|failure| failure.chain())
    }

    #[test]
    fn the_launcher_is_the_default_and_worker_0_without_one() {
        let pods = [
            pod("job-worker-0-0", "worker", 0, 0),
            pod("job-worker-0-1", "worker", 0, 1),
            pod("job-launcher", "launcher", 0, 0),
            pod("job-worker-1-0", "worker", 1, 0),
        ];
        assert_eq!(selected(&pods, None, false, 0).unwrap(), "job-launcher");
        assert_eq!(selected(&pods, Some(1), false, 0).unwrap(), "job-worker-0-1");
        assert_eq!(selected(&pods, None, false, 1).unwrap(), "job-worker-1-0");
        assert_eq!(
            selected(&pods[..1], None, true, 0).unwrap_err(),
            "instance 0 of IPUJob job has no launcher; existing Pods: job-worker-0-0"
        );
        assert!(
            selected(&[], Some(2), false, 0)
                .unwrap_err()
                .contains("has no worker 2")
        );
    }
}
