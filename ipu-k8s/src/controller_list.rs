//! The watched list of V-IPU controllers in a ConfigMap.

use std::pin::Pin;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, WatchEvent, WatchParams};
use kube::{Client, Config};
use tokio_stream::{Stream, StreamExt as _};

use crate::api_call::{Failure, bounded, connect};

/// Default key of the list. Despite the name of the key, the value is not YAML but `host:port:label=value,…`.
const DEFAULT_KEY: &str = "controllers.yaml";

/// Timeout of one watch. Then the ConfigMap is read again, so an edit that a silent watch misses is noticed
/// within the documented minute.
const WATCH_TIMEOUT: Duration = Duration::from_secs(40);

/// Time for which a watch may stay open beyond its timeout.
const WATCH_GRACE: Duration = Duration::from_secs(5);

/// Minimum and maximum backoff after failures.
const MIN_BACKOFF: Duration = Duration::from_millis(250);
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// Location of the list.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ControllersOptions {
    /// Namespace of the ConfigMap.
    pub namespace: String,
    /// Name of the ConfigMap.
    pub name: String,
    /// Key of the list; `controllers.yaml` by default.
    pub key: String,
    /// Timeout of one read; 5 s by default.
    pub timeout: Duration,
}

impl ControllersOptions {
    /// Selects the key `controllers.yaml` of this ConfigMap.
    #[must_use]
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            key: DEFAULT_KEY.into(),
            timeout: Duration::from_secs(5),
        }
    }
}

/// Current content of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllersText {
    /// The text under the key, for `ControllerPool` to parse.
    List(String),
    /// The ConfigMap or key does not exist. This is not an empty list: keep the last one.
    Absent {
        /// Name of the missing object or key.
        detail: String,
    },
}

type Events = Pin<Box<dyn Stream<Item = Result<WatchEvent<ConfigMap>, kube::Error>> + Send>>;

/// Watches the list. The service account needs `get` and `watch` on the ConfigMap.
pub struct ControllersWatch {
    client: Client,
    options: ControllersOptions,
    last_text: Option<ControllersText>,
    /// Open watch that continues from the last returned text, and its deadline.
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

/// Creates a watch of the list that `options` select, at the API server of `config`. Sends no request yet.
///
/// # Errors
///
/// If `config` is not valid for a client.
pub fn watch(config: Config, options: ControllersOptions) -> Result<ControllersWatch, kube::Error> {
    let client = connect(config)?;
    Ok(ControllersWatch {
        client,
        options,
        last_text: None,
        events: None,
        failures: 0,
    })
}

impl ControllersWatch {
    /// Returns the current text on the first call, and then each changed text. Waits while the API server
    /// does not respond and while nothing changes. An edit is returned within seconds, and within a minute if
    /// a connection goes silent.
    ///
    /// *Cancel safety*: no change is lost if the future is dropped.
    pub async fn next(&mut self) -> ControllersText {
        loop {
            let changed = match &mut self.events {
                None => self.read().await,
                Some((events, end)) => match tokio::time::timeout_at(*end, events.next()).await {
                    Ok(Some(Ok(WatchEvent::Added(map) | WatchEvent::Modified(map)))) => {
                        Some(self.text(Some(map)))
                    }
                    Ok(Some(Ok(WatchEvent::Bookmark(_)))) => None,
                    // Deleted, ended, broken or expired: the ConfigMap is read again.
                    _ => {
                        self.events = None;
                        tokio::time::sleep(MIN_BACKOFF).await;
                        None
                    }
                },
            };
            if let Some(text) = changed.filter(|text| self.last_text.as_ref() != Some(text)) {
                self.last_text = Some(text.clone());
                return text;
            }
        }
    }

    /// Reads the ConfigMap and starts a watch. Returns `None` if the API server does not
    /// respond.
    async fn read(&mut self) -> Option<ControllersText> {
        match self.try_read().await {
            Ok((text, events)) => {
                self.failures = 0;
                self.events = Some((events, tokio::time::Instant::now() + WATCH_TIMEOUT + WATCH_GRACE));
                Some(text)
            }
            Err(failure) => {
                let backoff = MIN_BACKOFF
                    .saturating_mul(1 << self.failures.min(10))
                    .min(MAX_BACKOFF);
                self.failures = self.failures.saturating_add(1);
                tracing::warn!(%failure, ?backoff, "cannot read the list of V-IPU controllers");
                tokio::time::sleep(backoff).await;
                None
            }
        }
    }

    // This borrows the watch exclusively, because an open watch cannot be shared between tasks.
    async fn try_read(&mut self) -> Result<(ControllersText, Events), Failure> {
        let ControllersOptions {
            namespace,
            name,
            timeout,
            ..
        } = &self.options;
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let found = bounded(*timeout, api.get_opt(name)).await?;
        let params = WatchParams::default()
            .fields(&format!("metadata.name={name}"))
            .timeout(u32::try_from(WATCH_TIMEOUT.as_secs()).unwrap_or(u32::MAX));
        // Without a version, the watch first delivers the current object. That of an object that has not
        // changed for long is too old.
        let events = bounded(*timeout, api.watch(&params, "")).await?;
        Ok((self.text(found), Box::pin(events)))
    }

    fn text(&self, map: Option<ConfigMap>) -> ControllersText {
        let ControllersOptions {
            namespace, name, key, ..
        } = &self.options;
        let Some(map) = map else {
            let detail = format!("ConfigMap {namespace}/{name} does not exist");
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
