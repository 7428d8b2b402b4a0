//! Runs a command in a Pod, with its streams, its exit code and its signals.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::AttachedProcess;
use kube::{Api, Client};

use crate::exec::{Streams, default_container, start};
use crate::exit::{ExecEnd, Failure, exec_end};
use crate::pipe::Pipes;
use crate::print_error;
use crate::signals::Signals;

/// Environment variable that marks the processes of a command, because exec forwards no signals.
const MARK_VARIABLE: &str = "IPU_LAUNCHER_EXEC";

/// Script that sends the signal `$2` to every process with the mark `$1`.
const KILL_SCRIPT: &str = r#"for p in /proc/[0-9]*; do
if grep -qs "IPU_LAUNCHER_EXEC=$1" "$p/environ"; then kill -s "$2" "${p#/proc/}"; fi
done 2>/dev/null"#;

/// Time for a command to end after the first signal.
const TERMINATION_GRACE: Duration = Duration::from_secs(10);

/// Time to forward output that was received before the connection broke.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Command to run in a container of a Pod.
pub(crate) struct ExecRequest {
    pod: String,
    container: Option<String>,
    command: Vec<String>,
    /// Value of [`MARK_VARIABLE`] in its processes; `None` for a plain command.
    mark: Option<String>,
}

impl ExecRequest {
    /// Creates a request for a command with separate arguments.
    pub(crate) fn command(
        pod: String,
        container: Option<String>,
        arguments: Vec<String>,
        plain: bool,
    ) -> Self {
        if plain {
            return Self {
                pod,
                container,
                command: arguments,
                mark: None,
            };
        }
        let mark = new_mark();
        // The shell replaces itself with the command: `/proc/PID/environ` shows the environment at the
        // start.
        let script = format!(r#"{MARK_VARIABLE}={mark}; export {MARK_VARIABLE}; exec "$@""#);
        let mut command: Vec<String> = ["/bin/sh", "-c", &script, "ipu-launcher"]
            .map(String::from)
            .to_vec();
        command.extend(arguments);
        Self {
            pod,
            container,
            command,
            mark: Some(mark),
        }
    }

    /// Creates a request for a command line of the remote shell.
    pub(crate) fn shell(pod: String, container: Option<String>, line: &str) -> Self {
        let arguments = ["/bin/sh", "-c", line].map(String::from).to_vec();
        Self::command(pod, container, arguments, false)
    }
}

/// Creates a random mark of 32 hexadecimal digits.
fn new_mark() -> String {
    let random = RandomState::new();
    format!(
        "{:016x}{:016x}",
        random.hash_one(std::process::id()),
        random.hash_one(0)
    )
}

/// Runs the command and returns its exit code.
pub(crate) async fn run(client: &Client, namespace: &str, request: ExecRequest) -> Result<u8, Failure> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pod = request.pod.as_str();
    let not_started = |detail: String| Failure::NotStarted {
        pod: pod.to_owned(),
        detail,
    };
    let mut signals = Signals::new().map_err(|error| Failure::Configuration(error.to_string()))?;
    let started = async {
        let container = match &request.container {
            Some(container) => container.clone(),
            None => default_container(&pods, pod).await?,
        };
        let process = start(&pods, pod, &container, &request.command, Streams::All).await?;
        Ok::<_, kube::Error>((container, process))
    };
    let (container, mut process) = tokio::select! {
        started = started => started.map_err(|error| not_started(api_message(error)))?,
        signal = signals.next() => return Ok(signal.exit_code()),
    };
    let pipes = Pipes::join(&mut process);
    let mut status = std::pin::pin!(status_of(&mut process));
    let mut received = None;
    let status = loop {
        tokio::select! {
            status = &mut status => break status,
            signal = signals.next() => {
                let first = received.is_none();
                received = Some(signal);
                let name = if first { signal.name() } else { "KILL" };
                kill(&pods, &request, &container, name).await;
            }
            () = tokio::time::sleep(TERMINATION_GRACE), if received.is_some() => {
                kill(&pods, &request, &container, "KILL").await;
                return Ok(received.map_or(1, |signal| signal.exit_code()));
            }
        }
    };
    let Some(status) = status else {
        let detail = match process.join().await {
            Ok(()) => "the connection was closed without a final status".to_owned(),
            Err(error) => error.to_string(),
        };
        // The streams stay open in this case, so waiting for their end needs a timeout.
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, pipes.drain()).await;
        return Err(Failure::ConnectionLost {
            pod: pod.to_owned(),
            detail,
        });
    };
    pipes.drain().await;
    match exec_end(&status) {
        ExecEnd::Code(code) => Ok(code),
        ExecEnd::NotStarted(detail) => Err(not_started(detail)),
    }
}

/// Returns the final status of a command; `None` if the connection breaks first.
fn status_of(
    process: &mut AttachedProcess,
) -> impl Future<Output = Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Status>> + use<> {
    let status = process.take_status();
    async move {
        match status {
            Some(status) => status.await,
            None => None,
        }
    }
}

/// Sends a signal to the marked processes with a second exec.
async fn kill(pods: &Api<Pod>, request: &ExecRequest, container: &str, signal: &str) {
    let Some(mark) = &request.mark else {
        return;
    };
    let command = ["/bin/sh", "-c", KILL_SCRIPT, "kill", mark, signal].map(String::from);
    match start(pods, &request.pod, container, &command, Streams::Output).await {
        Ok(mut process) => {
            status_of(&mut process).await;
        }
        Err(error) => print_error(&format!(
            "cannot send {signal} to the command in {}: {}",
            request.pod,
            api_message(error)
        )),
    }
}

/// Returns the message of the API server without the wrapping error.
fn api_message(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}
