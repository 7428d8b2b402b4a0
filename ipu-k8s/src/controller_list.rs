//! The list of V-IPU controllers in a ConfigMap, watched.

use std::pin::Pin;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, WatchEvent, WatchParams};
use kube::{Client, Config};
use tokio_stream::{Stream, StreamExt as _};

use crate::api_call::{Failure, bounded, connect};

/// The key of the list unless another is chosen. The value is not YAML but `host:port:label=value,…`, whatever the key's
/// name says.
const KEY: &str = "controllers.yaml";

/// How long the API server is asked to go on with one watch. Then the ConfigMap is read again: so long may an edit stay
/// unseen if a watch goes silent, and that is within the documented minute.
const WATCH: Duration = Duration::from_secs(40);

/// How long beyond that a watch may stay open.
const WATCH_GRACE: Duration = Duration::from_secs(5);

/// The first pause after a failure, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// Where the list is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ControllersOptions {
    /// The namespace of the ConfigMap.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The key with the list: `controllers.yaml` unless set.
    pub key: String,
    /// How long one read may take: 5 s unless set.
    pub timeout: Duration,
}

impl ControllersOptions {
    /// The key `controllers.yaml` of this ConfigMap.
    #[must_use]
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            key: KEY.into(),
            timeout: Duration::from_secs(5),
        }
    }
}

/// What is there now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControllersText {
    /// The text under the key, for `ControllerPool` to parse.
    List(String),
    /// There is no such ConfigMap or key. That is no empty list: keep what you have.
    Absent {
        /// What is missing.
        detail: String,
    },
}

type Events = Pin<Box<dyn Stream<Item = Result<WatchEvent<ConfigMap>, kube::Error>> + Send>>;

/// Tells what the list is and whenever it changes. Whoever uses it may `get` and `watch` the ConfigMap.
pub struct ControllersWatch {
    client: Client,
    options: ControllersOptions,
    told: Option<ControllersText>,
    /// The watch that goes on from what was told, and when it has to end.
    events: Option<(Events, tokio::time::Instant)>,
    failures: u32,
}

impl std::fmt::Debug for ControllersWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControllersWatch")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// The list that `options` name, at the API server of `config`. Calls nobody yet.
///
/// # Errors
///
/// If `config` makes no client.
pub fn watch(config: Config, options: ControllersOptions) -> Result<ControllersWatch, kube::Error> {
    let client = connect(config)?;
    Ok(ControllersWatch {
        client,
        options,
        told: None,
        events: None,
        failures: 0,
    })
}

impl ControllersWatch {
    /// What is there now, the first time, and from then on whatever it is changed to. Waits as long as the API server
    /// does not answer and as long as nothing changes; an edit is told within seconds, and within a minute if a connection
    /// goes silent.
    ///
    /// *Cancel safety*: nothing is lost if this is dropped.
    pub async fn next(&mut self) -> ControllersText {
        loop {
            let seen = match &mut self.events {
                None => self.read().await,
                Some((events, end)) => match tokio::time::timeout_at(*end, events.next()).await {
                    Ok(Some(Ok(WatchEvent::Added(map) | WatchEvent::Modified(map)))) => {
                        Some(self.text(Some(map)))
                    }
                    Ok(Some(Ok(WatchEvent::Bookmark(_)))) => None,
                    // Deleted, over, broken or too old to go on with: it is read again.
                    _ => {
                        self.events = None;
                        tokio::time::sleep(FIRST_PAUSE).await;
                        None
                    }
                },
            };
            if let Some(text) = seen.filter(|text| self.told.as_ref() != Some(text)) {
                self.told = Some(text.clone());
                return text;
            }
        }
    }

    /// Reads the ConfigMap and begins to watch it from there. None if the API server does not answer.
    async fn read(&mut self) -> Option<ControllersText> {
        match self.try_read().await {
            Ok((text, events)) => {
                self.failures = 0;
                self.events = Some((events, tokio::time::Instant::now() + WATCH + WATCH_GRACE));
                Some(text)
            }
            Err(failure) => {
                let pause = FIRST_PAUSE
                    .saturating_mul(1 << self.failures.min(10))
                    .min(MAX_BACKOFF);
                self.failures = self.failures.saturating_add(1);
                tracing::warn!(%failure, ?pause, "cannot read the list of V-IPU controllers");
                tokio::time::sleep(pause).await;
                None
            }
        }
    }

    // Alone with it, so that a task may wait for this: a watch that is open cannot be shared.
    async fn try_read(&mut self) -> Result<(ControllersText, Events), Failure> {
        let ControllersOptions {
            namespace,
            name,
            timeout,
            ..
        } = &self.options;
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let found = bounded(*timeout, api.get_opt(name)).await?;
        let version = found
            .as_ref()
            .and_then(|map| map.metadata.resource_version.clone());
        let params = WatchParams::default()
            .fields(&format!("metadata.name={name}"))
            .timeout(u32::try_from(WATCH.as_secs()).unwrap_or(u32::MAX));
        // Without a version, what is there when the watch begins is told first.
        let events = bounded(*timeout, api.watch(&params, version.as_deref().unwrap_or("0"))).await?;
        Ok((self.text(found), Box::pin(events)))
    }

    fn text(&self, map: Option<ConfigMap>) -> ControllersText {
        let ControllersOptions {
            namespace, name, key, ..
        } = &self.options;
        let Some(map) = map else {
            let detail = format!("there is no ConfigMap {namespace}/{name}");
            return ControllersText::Absent { detail };
        };
        match map.data.unwrap_or_default().remove(key) {
            Some(text) => ControllersText::List(text),
            None => ControllersText::Absent {
                detail: format!("ConfigMap {namespace}/{name} has no key {key}"),
            },
        }
    }
}
