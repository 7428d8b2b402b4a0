//! `ipu-launcher wait`: watches the workers until all of them are ready.

use std::path::Path;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio_stream::{StreamExt as _, StreamMap};

use crate::cli::WaitArgs;
use crate::exit::Failure;
use crate::pod_readiness::readiness_of;
use crate::readiness_tracker::{WaitStatus, Workers};
use crate::signals::Signals;
use crate::{hostfile, print_progress};

/// Maximum length of the termination log, in bytes; the kubelet keeps no more.
const MAX_TERMINATION_LOG_BYTES: usize = 4096;

/// Waits for the workers, records a failure in the termination log, and returns the exit code.
pub(crate) async fn wait(client: Client, namespace: &str, options: &WaitArgs) -> Result<u8, Failure> {
    let result = watch(client, namespace, options).await;
    if let Err(failure) = &result {
        write_termination_log(&options.termination_log, &failure.to_string());
    }
    result
}

async fn watch(client: Client, namespace: &str, options: &WaitArgs) -> Result<u8, Failure> {
    let names = hostfile::read(&options.hostfile)?;
    let mut workers = Workers::new(&names, Duration::from_secs(options.recreation_timeout));
    let deadline = options
        .deadline
        .map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut signals = Signals::new().map_err(|error| Failure::Configuration(error.to_string()))?;
    let api = Api::<Pod>::namespaced(client, namespace);
    // One watch per worker: RBAC permits a launcher to list and watch its own workers by name only. A watch
    // restarts by itself after a gap, a restart of the API server, or an expired version (410).
    let mut events = StreamMap::new();
    for name in names {
        let events_of = watcher(api.clone(), watch_config(options, &name)).default_backoff();
        events.insert(name, Box::pin(events_of));
    }
    let mut last_error = String::new();
    loop {
        let now = Instant::now();
        let retry_at = match workers.status(now) {
            WaitStatus::Ready => {
                print_progress(&format!("all {} workers are ready", workers.count()));
                return Ok(0);
            }
            WaitStatus::NeverReady(reason) => return Err(Failure::NeverReady(reason)),
            WaitStatus::Wait(retry_at) => retry_at,
        };
        if deadline.is_some_and(|deadline| now >= deadline) {
            return Err(Failure::DeadlineExceeded(workers.unready().join("; ")));
        }
        let next = [retry_at, deadline].into_iter().flatten().min();
        tokio::select! {
            event = events.next() => match event {
                Some((name, Ok(event))) => {
                    last_error.clear();
                    apply(&mut workers, &name, event);
                }
                Some((_, Err(error))) => {
                    let text = format!("cannot watch Pods in {namespace}: {error}");
                    if text != last_error {
                        print_progress(&text);
                        last_error = text;
                    }
                }
                None => {}
            },
            signal = signals.next() => return Ok(signal.exit_code()),
            () = sleep_until_some(next) => {}
        }
    }
}

/// Applies an event of the watch of worker `name`.
fn apply(workers: &mut Workers, name: &str, event: Event<Pod>) {
    let line = match event {
        Event::Init => {
            workers.start_list(name);
            None
        }
        Event::Apply(pod) | Event::InitApply(pod) => workers.update(name, readiness_of(&pod)),
        Event::Delete(_) => workers.mark_deleted(name, Instant::now()),
        Event::InitDone => workers.finish_list(name, Instant::now()),
    };
    if let Some(line) = line {
        print_progress(&line);
    }
}

/// Selects the worker `name`, if it has the labels in `--selector`.
fn watch_config(options: &WaitArgs, name: &str) -> watcher::Config {
    let one = watcher::Config::default().fields(&format!("metadata.name={name}"));
    match &options.selector {
        Some(labels) => one.labels(labels),
        None => one,
    }
}

async fn sleep_until_some(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}

/// Writes the reason to the termination log. The file does not exist outside a container.
fn write_termination_log(path: &Path, reason: &str) {
    let mut end = reason.len().min(MAX_TERMINATION_LOG_BYTES);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    if path.exists() {
        // A write error is ignored: the log of the container has the reason too.
        let _ = std::fs::write(path, &reason[..end]);
    }
}
