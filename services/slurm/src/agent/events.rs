//! The events of the ledger.

use ipu_proxy_client::{ClientError, Events, ProxyClient};
use tokio::time::Instant;

use super::RETRY_INTERVAL;

/// The changes of the ledger.
pub(super) struct LedgerEvents {
    stream: Events,
    /// The next request after an error. The client repeats a refused request at once.
    not_before: Instant,
}

impl LedgerEvents {
    pub(super) fn new(proxy: &ProxyClient) -> Self {
        Self {
            stream: proxy.events(None),
            not_before: Instant::now(),
        }
    }

    /// Waits for the next change.
    ///
    /// *Cancel safety*: no change is lost.
    pub(super) async fn changed(&mut self) -> Result<(), ClientError> {
        tokio::time::sleep_until(self.not_before).await;
        let event = self.stream.next().await;
        if event.is_err() {
            self.not_before = Instant::now() + RETRY_INTERVAL;
        }
        event.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::scripted_proxy::{Response, ScriptedProxy};

    #[tokio::test]
    async fn a_refused_token_is_not_tried_again_at_once() {
        let server = ScriptedProxy::start(|_| Response::problem(401, "Unauthenticated"));
        let mut events = LedgerEvents::new(&server.client());
        events.changed().await.unwrap_err();
        let second = tokio::time::timeout(Duration::from_millis(200), events.changed());
        second.await.unwrap_err();
        assert_eq!(server.requests(), ["GET /v1/events"]);
    }
}
