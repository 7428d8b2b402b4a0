//! Starts a command in a Kubernetes Pod, again if it certainly has not begun.

use std::error::Error as _;
use std::time::Duration;

use hyper_util::client::legacy::Error as ConnectError;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{AttachParams, AttachedProcess};

/// How often a start is tried.
const TRIES: u32 = 8;

/// The first pause between two of them; each is twice as long as the one before: half a minute in all.
const PAUSE: Duration = Duration::from_millis(250);

/// How much is on its way in each direction.
const BUFFER: usize = 64 * 1024;

/// The annotation that names the container that is meant if none is named.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// Which streams a command has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Streams {
    /// All three.
    All,
    /// What it writes.
    Output,
}

/// Starts `command`.
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
        .max_stdin_buf_size(BUFFER)
        .max_stdout_buf_size(BUFFER)
        .max_stderr_buf_size(BUFFER);
    again(|| pods.exec(pod, command.to_vec(), &params)).await
}

/// The container that is meant if none is named.
pub(crate) async fn default_container(pods: &Api<Pod>, pod: &str) -> Result<String, kube::Error> {
    let pod = again(|| pods.get(pod)).await?;
    let named = pod
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
    Ok(named.or_else(first).cloned().unwrap_or_default())
}

/// Asks again while nobody has heard.
async fn again<T, F>(mut ask: impl FnMut() -> F) -> Result<T, kube::Error>
where
    F: Future<Output = Result<T, kube::Error>>,
{
    let mut pause = PAUSE;
    for _ in 1..TRIES {
        match ask().await {
            Err(error) if is_unheard(&error) => tokio::time::sleep(pause).await,
            done => return done,
        }
        pause *= 2;
    }
    ask().await
}

/// Whether this certainly was before anything was begun: nobody was reached, or the answer is a refusal for now.
fn is_unheard(error: &kube::Error) -> bool {
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
