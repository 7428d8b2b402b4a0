//! `kubectl ipu logs` and `exec`: find the Pods of a job, and run `kubectl logs` or `kubectl exec`, which
//! handle streams and terminals.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use ipu_core::job::JobPhase;
use ipu_k8s::crd::job_container;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::Api;
use kube::runtime::wait::await_condition;
use kube::runtime::{WatchStreamExt as _, watcher};

use super::get::status_of;
use super::job_watch::{JobWatch, check_denied, is_finished};
use crate::cli::{Exec, Global, Logs, PodSelection};
use crate::context::{Context, INSTANCE, JOB_NAME, WORKER, index, is_launcher};
use crate::exit_code::{Code, Failure};
use crate::output;

/// Maximum number of logs that are followed at once: a job has at most some hundred Pods.
const MAX_FOLLOWED: usize = 1024;

/// Replaces this process by `kubectl logs` for the selected Pod, or for all Pods.
pub(crate) async fn logs(arguments: &Logs, context: &Context, global: &Global) -> Result<Code, Failure> {
    let job = &arguments.job;
    let mut pods = context.pods(job).await?;
    let mut of_launcher = arguments.clone();
    if arguments.follow && !arguments.all && arguments.selection.worker.is_none() {
        // The launcher starts after the workers, which do not end by themselves.
        let object = context.job(job).await?;
        of_launcher.selection.launcher |= object.data["spec"]["launcher"].is_object();
    }
    if arguments.follow && selected(&pods, &of_launcher).is_err() {
        pods = wait_for_pod(&of_launcher, context).await?;
    }
    if pods.is_empty() {
        return without_pods(job, context).await;
    }
    let selected = selected(&pods, arguments)?;
    let mut kubectl = kubectl(global, context);
    kubectl.arg("logs");
    if arguments.follow {
        for pod in &selected {
            wait_for_start(context, pod, arguments.container.as_deref()).await?;
        }
        kubectl.arg("--follow");
    }
    match selected.as_slice() {
        [pod] => {
            let container = arguments.container.as_deref().or_else(|| container_of(pod));
            let container = container.map(|container| format!("--container={container}"));
            kubectl.arg(pod.name_any()).args(container);
        }
        _ => {
            let selector = format!("--selector={JOB_NAME}={job}");
            let requests = format!("--max-log-requests={MAX_FOLLOWED}");
            let container = arguments.container.as_ref();
            let container = container.map(|container| format!("--container={container}"));
            // Without an option, kubectl chooses the container of each Pod by the same rule.
            kubectl.args([&selector, &requests, "--prefix", "--tail=-1", "--ignore-errors"]);
            kubectl.args(container);
        }
    }
    Err(replace(kubectl.args(&arguments.options)))
}

/// Replaces this process by `kubectl exec` in the selected Pod.
pub(crate) async fn exec(arguments: &Exec, context: &Context, global: &Global) -> Result<Code, Failure> {
    let pods = context.pods(&arguments.job).await?;
    let pod = select(&pods, &arguments.selection, &arguments.job)?.name_any();
    let mut kubectl = kubectl(global, context);
    kubectl.arg("exec");
    kubectl.args(arguments.stdin.then_some("--stdin"));
    kubectl.args(arguments.tty.then_some("--tty"));
    Err(replace(kubectl.args([&pod, "--"]).args(&arguments.command)))
}

/// Returns `kubectl` with the kubeconfig, the context and the namespace of this program.
fn kubectl(global: &Global, context: &Context) -> Command {
    let mut kubectl = Command::new("kubectl");
    if let Some(kubeconfig) = &global.kubeconfig {
        kubectl.arg("--kubeconfig").arg(kubeconfig);
    }
    if let Some(context) = &global.context {
        kubectl.arg(format!("--context={context}"));
    }
    kubectl.arg(format!("--namespace={}", context.namespace));
    kubectl
}

fn replace(command: &mut Command) -> Failure {
    Failure::because(Code::Host, "cannot run kubectl", command.exec())
}

/// Returns the name of the job's container in a Pod.
fn container_of(pod: &Pod) -> Option<&str> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    job_container(
        pod.metadata.annotations.as_ref(),
        containers.map(|container| &*container.name),
    )
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
    use futures::StreamExt as _;
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
                let is_running = status.phase == Some(JobPhase::Running);
                if is_finished(&status) || is_running && !arguments.selection.launcher {
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

/// Waits until the container whose log is requested, or the job's, has started.
async fn wait_for_start(context: &Context, pod: &Pod, container: Option<&str>) -> Result<(), Failure> {
    let has_started = |pod: Option<&Pod>| {
        // A deleted Pod is reported by the request for its log.
        let Some(status) = pod.and_then(|pod| pod.status.as_ref()) else {
            return pod.is_none();
        };
        let wanted = container.or_else(|| pod.and_then(container_of));
        let mut statuses = status.container_statuses.iter().flatten();
        let state = statuses
            .find(|status| Some(&*status.name) == wanted)
            .and_then(|container| container.state.as_ref());
        !matches!(status.phase.as_deref(), None | Some("Pending"))
            || state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    };
    if has_started(Some(pod)) {
        return Ok(());
    }
    let name = pod.name_any();
    output::say(&format!("Waiting for the start of Pod {name}"));
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &context.namespace);
    let started = await_condition(api, &name, has_started).await;
    let failed = |error| Failure::because(Code::Unavailable, format!("cannot watch Pod {name}"), error);
    started.map(|_| ()).map_err(failed)
}

/// Returns the selected Pod: by default the launcher, and without one worker 0.
fn select<'a>(pods: &'a [Pod], selection: &PodSelection, job: &str) -> Result<&'a Pod, Failure> {
    let instance = selection.instance;
    let mut of_instance = pods.iter().filter(|pod| index(pod, INSTANCE) == instance);
    let launcher = of_instance.clone().find(|pod| is_launcher(pod));
    if let (None, Some(launcher)) = (selection.worker, launcher) {
        return Ok(launcher);
    }
    let wanted = selection.worker.unwrap_or(0);
    let worker = of_instance.find(|pod| !is_launcher(pod) && index(pod, WORKER) == wanted);
    worker.filter(|_| !selection.launcher).ok_or_else(|| {
        let role = if selection.launcher {
            "launcher".to_owned()
        } else {
            format!("worker {wanted}")
        };
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
