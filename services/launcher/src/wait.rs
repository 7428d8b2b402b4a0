//! `ipu-launcher wait`: watches until all workers are ready.

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
use crate::{hostfile, say};

/// What is written to the termination log at most: the kubelet keeps no more.
const LOG_MAX: usize = 4096;

/// Waits, and answers with the exit code.
pub(crate) async fn wait(client: Client, namespace: &str, options: &WaitArgs) -> Result<u8, Failure> {
    let done = watch(client, namespace, options).await;
    if let Err(failure) = &done {
        note(&options.termination_log, &failure.to_string());
    }
    done
}

async fn watch(client: Client, namespace: &str, options: &WaitArgs) -> Result<u8, Failure> {
    let names = hostfile::read(&options.hostfile)?;
    let mut workers = Workers::new(&names, Duration::from_secs(options.gone_grace));
    let deadline = options
        .deadline
        .map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut signals = Signals::new().map_err(|error| Failure::Configuration(error.to_string()))?;
    let api = Api::<Pod>::namespaced(client, namespace);
    // One watch for each worker: RBAC lets a launcher list and watch Pods by their names, and no others. A watch begins anew by
    // itself after a gap, a restart of the API server, or a version that is too old (410).
    let mut events = StreamMap::new();
    for name in names {
        let events_of = watcher(api.clone(), selection(options, &name)).default_backoff();
        events.insert(name, Box::pin(events_of));
    }
    let mut trouble = String::new();
    loop {
        let now = Instant::now();
        let again = match workers.verdict(now) {
            WaitStatus::Ready => {
                say(&format!("all {} workers are ready", workers.count()));
                return Ok(0);
            }
            WaitStatus::Never(why) => return Err(Failure::Never(why)),
            WaitStatus::Wait(again) => again,
        };
        if deadline.is_some_and(|deadline| now >= deadline) {
            return Err(Failure::Deadline(workers.unready().join("; ")));
        }
        let next = [again, deadline].into_iter().flatten().min();
        tokio::select! {
            event = events.next() => match event {
                Some((name, Ok(event))) => {
                    trouble.clear();
                    apply(&mut workers, &name, event);
                }
                Some((_, Err(error))) => {
                    let text = format!("cannot watch Kubernetes Pods in {namespace}: {error}");
                    if text != trouble {
                        say(&text);
                        trouble = text;
                    }
                }
                None => {}
            },
            signal = signals.next() => return Ok(signal.exit_code()),
            () = until(next) => {}
        }
    }
}

/// Takes in an event of the watch of the worker of this name.
fn apply(workers: &mut Workers, name: &str, event: Event<Pod>) {
    let line = match event {
        Event::Init => {
            workers.list_begins(name);
            None
        }
        Event::Apply(pod) | Event::InitApply(pod) => workers.seen(name, readiness_of(&pod)),
        Event::Delete(_) => workers.deleted(name, Instant::now()),
        Event::InitDone => workers.list_ends(name, Instant::now()),
    };
    if let Some(line) = line {
        say(&line);
    }
}

/// Selects the worker of this name, if it has the labels that are asked for.
fn selection(options: &WaitArgs, name: &str) -> watcher::Config {
    let one = watcher::Config::default().fields(&format!("metadata.name={name}"));
    match &options.selector {
        Some(labels) => one.labels(labels),
        None => one,
    }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}

/// Writes the reason where the kubelet looks for it. Outside of a container there is no such file.
fn note(path: &Path, reason: &str) {
    let mut end = reason.len().min(LOG_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    if path.exists() {
        // There is nobody to tell that it cannot be written; the log has it too.
        let _ = std::fs::write(path, &reason[..end]);
    }
}
