//! `ipu-launcher wait`: watches until all workers are ready.

use std::path::Path;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use tokio_stream::StreamExt as _;

use crate::cli::Wait;
use crate::exit::Failure;
use crate::signals::Signals;
use crate::worker::judge;
use crate::workers::{Verdict, Workers};
use crate::{hostfile, say};

/// What is written to the termination log at most: the kubelet keeps no more.
const LOG_MAX: usize = 4096;

/// Waits, and answers with the exit code.
pub(crate) async fn wait(client: Client, namespace: &str, options: &Wait) -> Result<u8, Failure> {
    let done = watch(client, namespace, options).await;
    if let Err(failure) = &done {
        note(&options.termination_log, &failure.to_string());
    }
    done
}

async fn watch(client: Client, namespace: &str, options: &Wait) -> Result<u8, Failure> {
    let names = hostfile::read(&options.hostfile)?;
    let mut workers = Workers::new(&names, Duration::from_secs(options.gone_grace));
    let deadline = options
        .deadline
        .map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut signals = Signals::new().map_err(|error| Failure::Configuration(error.to_string()))?;
    // It begins anew by itself after a gap, a restart of the API server, or a version that is too old (410).
    let events = watcher(
        Api::<Pod>::namespaced(client, namespace),
        selection(options, &names),
    )
    .default_backoff();
    let mut events = std::pin::pin!(events);
    let mut trouble = String::new();
    loop {
        let now = Instant::now();
        let again = match workers.verdict(now) {
            Verdict::Ready => {
                say(&format!("all {} workers are ready", workers.count()));
                return Ok(0);
            }
            Verdict::Never(why) => return Err(Failure::Never(why)),
            Verdict::Wait(again) => again,
        };
        if deadline.is_some_and(|deadline| now >= deadline) {
            return Err(Failure::Deadline(workers.unready().join("; ")));
        }
        let next = [again, deadline].into_iter().flatten().min();
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(event)) => {
                    trouble.clear();
                    apply(&mut workers, event);
                }
                Some(Err(error)) => {
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

fn apply(workers: &mut Workers, event: Event<Pod>) {
    let lines = match event {
        Event::Init => {
            workers.list_begins();
            Vec::new()
        }
        Event::Apply(pod) | Event::InitApply(pod) => {
            workers.seen(&pod.name_any(), judge(&pod)).into_iter().collect()
        }
        Event::Delete(pod) => workers
            .deleted(&pod.name_any(), Instant::now())
            .into_iter()
            .collect(),
        Event::InitDone => {
            let mut lines = workers.list_ends(Instant::now());
            lines.extend(
                workers
                    .unready()
                    .into_iter()
                    .filter(|line| line.ends_with("does not exist yet")),
            );
            lines
        }
    };
    for line in lines {
        say(&line);
    }
}

/// A single worker is watched alone; several by their labels, or among all of the namespace.
fn selection(options: &Wait, names: &[String]) -> watcher::Config {
    match (&options.selector, names) {
        (Some(labels), _) => watcher::Config::default().labels(labels),
        (None, [one]) => watcher::Config::default().fields(&format!("metadata.name={one}")),
        (None, _) => watcher::Config::default(),
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
