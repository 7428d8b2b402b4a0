//! Supervision of background tasks, which restart after a panic.

use std::future::Future;
use std::time::Duration;

/// Pause before a panicked task restarts, so that one that always panics does not occupy a processor.
const RESTART_INTERVAL: Duration = Duration::from_secs(1);

/// Runs the background task `name` on `context` until it returns, and restarts it after a panic.
pub(crate) async fn supervise<C, F, T>(name: &'static str, context: C, start: F)
where
    C: Clone,
    F: Fn(C) -> T,
    T: Future<Output = ()> + Send + 'static,
{
    loop {
        match tokio::spawn(start(context.clone())).await {
            Ok(()) => return,
            Err(error) if error.is_panic() => {
                tracing::error!(task = name, %error, "a background task panicked and restarts");
                tokio::time::sleep(RESTART_INTERVAL).await;
            }
            // The runtime is shutting down.
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_background_task_restarts_after_a_panic_until_it_returns() {
        let starts = Arc::new(AtomicU32::new(0));
        let task = |starts: Arc<AtomicU32>| async move {
            assert!(starts.fetch_add(1, Ordering::Relaxed) == 2, "a defect");
        };
        supervise("test", Arc::clone(&starts), task).await;
        assert_eq!(starts.load(Ordering::Relaxed), 3);
    }
}
