//! Being told that an object has changed: a wake-up and no more, the facts are looked up afterwards.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use kube::api::WatchParams;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio_stream::StreamExt as _;
use tracing::debug;

use crate::error::chain;

/// How long one watch lasts; the API server takes at most 295 s.
const WATCH_SECONDS: u32 = 290;
/// The pause after a watch that failed.
const PAUSE: Duration = Duration::from_secs(2);

/// Wakes whenever the object `name` of `api` changes, and when that may have been missed. Never ends.
pub(crate) async fn wake_on_changes<K>(api: Api<K>, name: String, wake: Arc<Notify>)
where
    K: Clone + Debug + DeserializeOwned,
{
    let params = WatchParams::default()
        .fields(&format!("metadata.name={name}"))
        .timeout(WATCH_SECONDS);
    loop {
        match api.watch_metadata(&params, "0").await {
            Ok(events) => {
                let mut events = std::pin::pin!(events);
                while let Some(Ok(_)) = events.next().await {
                    wake.notify_one();
                }
            }
            Err(error) => debug!(name, error = %chain(&error), "cannot watch"),
        }
        // What happened between two watches is looked up.
        wake.notify_one();
        tokio::time::sleep(PAUSE).await;
    }
}
