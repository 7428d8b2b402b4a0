//! Runs a command in a Kubernetes Pod, with its streams, its exit code and its signals.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::AttachedProcess;
use kube::{Api, Client};

use crate::exec::{Streams, default_container, start};
use crate::exit::{ExecEnd, Failure, ended};
use crate::pipe::Pipes;
use crate::report;
use crate::signals::Signals;

/// The variable by which the processes of a command are found: exec itself carries no signals.
const MARK: &str = "IPU_LAUNCHER_EXEC";

/// Sends the signal `$2` to every process that has the mark `$1`.
const KILL: &str = r#"for p in /proc/[0-9]*; do
if grep -qs "IPU_LAUNCHER_EXEC=$1" "$p/environ"; then kill -s "$2" "${p#/proc/}"; fi
done 2>/dev/null"#;

/// How long a command may take to end after it was told to.
const TERMINATION_GRACE: Duration = Duration::from_secs(10);

/// How long what was received before a connection broke may take to be passed on.
const LEFT: Duration = Duration::from_secs(1);

/// What is to be run where.
pub(crate) struct ExecRequest {
    pod: String,
    container: Option<String>,
    command: Vec<String>,
    /// What its processes are found by, if they can be.
    mark: Option<String>,
}

impl ExecRequest {
    /// A command as words of its own.
    pub(crate) fn command(pod: String, container: Option<String>, words: Vec<String>, plain: bool) -> Self {
        if plain {
            return Self {
                pod,
                container,
                command: words,
                mark: None,
            };
        }
        let mark = new_mark();
        // The shell makes way for the command: its own environment stays that which it began with.
        let script = format!(r#"{MARK}={mark}; export {MARK}; exec "$@""#);
        let mut command: Vec<String> = ["/bin/sh", "-c", &script, "ipu-launcher"]
            .map(String::from)
            .to_vec();
        command.extend(words);
        Self {
            pod,
            container,
            command,
            mark: Some(mark),
        }
    }

    /// A line for the shell there.
    pub(crate) fn shell(pod: String, container: Option<String>, line: &str) -> Self {
        let words = ["/bin/sh", "-c", line].map(String::from).to_vec();
        Self::command(pod, container, words, false)
    }
}

/// One that no other command has.
fn new_mark() -> String {
    let random = RandomState::new();
    format!(
        "{:016x}{:016x}",
        random.hash_one(std::process::id()),
        random.hash_one(0)
    )
}

/// Runs it and answers with its exit code.
pub(crate) async fn run(client: &Client, namespace: &str, wanted: ExecRequest) -> Result<u8, Failure> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pod = wanted.pod.as_str();
    let not_started = |detail: String| Failure::NotStarted {
        pod: pod.to_owned(),
        detail,
    };
    let mut signals = Signals::new().map_err(|error| Failure::Configuration(error.to_string()))?;
    let begun = async {
        let container = match &wanted.container {
            Some(container) => container.clone(),
            None => default_container(&pods, pod).await?,
        };
        let process = start(&pods, pod, &container, &wanted.command, Streams::All).await?;
        Ok::<_, kube::Error>((container, process))
    };
    let (container, mut process) = tokio::select! {
        begun = begun => begun.map_err(|error| not_started(said(error)))?,
        signal = signals.next() => return Ok(signal.exit_code()),
    };
    let pipes = Pipes::join(&mut process);
    let mut status = std::pin::pin!(status_of(&mut process));
    let mut told = None;
    let status = loop {
        tokio::select! {
            status = &mut status => break status,
            signal = signals.next() => {
                let first = told.is_none();
                told = Some(signal);
                let name = if first { signal.name() } else { "KILL" };
                kill(&pods, &wanted, &container, name).await;
            }
            () = tokio::time::sleep(TERMINATION_GRACE), if told.is_some() => {
                kill(&pods, &wanted, &container, "KILL").await;
                return Ok(told.map_or(1, |signal| signal.exit_code()));
            }
        }
    };
    let Some(status) = status else {
        let detail = match process.join().await {
            Ok(()) => "it was closed without a word about the command".to_owned(),
            Err(error) => error.to_string(),
        };
        // Its streams are not closed then, so that their end cannot be waited for.
        let _ = tokio::time::timeout(LEFT, pipes.drain()).await;
        return Err(Failure::Broken {
            pod: pod.to_owned(),
            detail,
        });
    };
    pipes.drain().await;
    match ended(&status) {
        ExecEnd::Code(code) => Ok(code),
        ExecEnd::NotStarted(detail) => Err(not_started(detail)),
    }
}

/// The last word about a command; none if the connection breaks before.
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

/// Sends a signal to what was started, by a second command there.
async fn kill(pods: &Api<Pod>, wanted: &ExecRequest, container: &str, signal: &str) {
    let Some(mark) = &wanted.mark else {
        return;
    };
    let command = ["/bin/sh", "-c", KILL, "kill", mark, signal].map(String::from);
    match start(pods, &wanted.pod, container, &command, Streams::Output).await {
        Ok(mut process) => {
            status_of(&mut process).await;
        }
        Err(error) => report(&format!(
            "cannot send {signal} to the command in {}: {}",
            wanted.pod,
            said(error)
        )),
    }
}

/// What the API server said, without what wraps it.
fn said(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}
