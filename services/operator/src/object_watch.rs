//! Wake-ups for changes of one object; the caller reads the object afterwards.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use ipu_core::ErrorChain;
use kube::Api;
use kube::api::WatchParams;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio_stream::StreamExt as _;
use tracing::debug;

/// Timeout of one watch, in seconds; the API server permits at most 295 s.
const WATCH_TIMEOUT_SECONDS: u32 = 290;
/// Delay before a watch is restarted.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Notifies `wake` whenever object `name` of `api` changes, and whenever a change may have been missed.
/// Never ends.
pub(crate) async fn wake_on_changes<K>(api: Api<K>, name: String, wake: Arc<Notify>)
where
    K: Clone + Debug + DeserializeOwned,
{
    let params = WatchParams::default()
        .fields(&format!("metadata.name={name}"))
        .timeout(WATCH_TIMEOUT_SECONDS);
    loop {
        match api.watch_metadata(&params, "0").await {
            Ok(events) => {
                let mut events = std::pin::pin!(events);
                while let Some(Ok(_)) = events.next().await {
                    wake.notify_one();
                }
            }
            Err(error) => debug!(name, error = %ErrorChain(&error), "cannot watch"),
        }
        // Changes between two watches may be missed, so the object is read again.
        wake.notify_one();
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}
