//! Starts a command in a Pod, and retries only while it certainly has not started.

use std::error::Error as _;
use std::time::Duration;

use hyper_util::client::legacy::Error as ConnectError;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{AttachParams, AttachedProcess};

/// Maximum number of attempts to start a command.
const MAX_ATTEMPTS: u32 = 8;

/// Delay before the second attempt; it doubles after each attempt, up to half a minute in total.
const INITIAL_RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Buffer size of each stream, in bytes.
const BUFFER_BYTES: usize = 64 * 1024;

/// Annotation that names the default container of a Pod.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// Streams attached to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Streams {
    /// Standard input, output and error.
    All,
    /// Standard output and error.
    Output,
}

/// Starts `command` in a container; retries as long as the API server has not accepted the request.
pub(crate) async fn start(
    pods: &Api<Pod>,
    pod: &str,
    container: &str,
    command: &[String],
    streams: Streams,
) -> Result<AttachedProcess, kube::Error> {
    let params = AttachParams::default()
        .container(container)
        .stdin(streams == Streams::All)
        .stdout(true)
        .stderr(true)
        .max_stdin_buf_size(BUFFER_BYTES)
        .max_stdout_buf_size(BUFFER_BYTES)
        .max_stderr_buf_size(BUFFER_BYTES);
    retry(|| pods.exec(pod, command.to_vec(), &params)).await
}

/// Returns the default container of a Pod: the one in its annotation, or the first.
pub(crate) async fn default_container(pods: &Api<Pod>, pod: &str) -> Result<String, kube::Error> {
    let pod = retry(|| pods.get(pod)).await?;
    let annotated = pod
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(DEFAULT_CONTAINER));
    let first = || {
        pod.spec
            .as_ref()
            .and_then(|spec| spec.containers.first())
            .map(|first| &first.name)
    };
    Ok(annotated.or_else(first).cloned().unwrap_or_default())
}

/// Repeats `request` while it fails with a retryable error, up to [`MAX_ATTEMPTS`] times.
async fn retry<T, F>(mut request: impl FnMut() -> F) -> Result<T, kube::Error>
where
    F: Future<Output = Result<T, kube::Error>>,
{
    let mut interval = INITIAL_RETRY_INTERVAL;
    for _ in 1..MAX_ATTEMPTS {
        match request().await {
            Err(error) if is_retryable(&error) => tokio::time::sleep(interval).await,
            result => return result,
        }
        interval *= 2;
    }
    request().await
}

/// Returns whether the command certainly has not started: the connection failed, or the API server returned
/// 429 or a retryable 5xx status.
fn is_retryable(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 429 | 500 | 502 | 503 | 504),
        kube::Error::Service(error) => {
            let mut cause = Some(&**error as &(dyn std::error::Error + 'static));
            while let Some(error) = cause {
                if error
                    .downcast_ref::<ConnectError>()
                    .is_some_and(ConnectError::is_connect)
                {
                    return true;
                }
                cause = error.source();
            }
            false
        }
        other => other
            .source()
            .and_then(|cause| cause.downcast_ref::<ConnectError>())
            .is_some_and(ConnectError::is_connect),
    }
}
