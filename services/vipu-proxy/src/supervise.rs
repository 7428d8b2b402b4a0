//! Background tasks that go on after a panic.

use std::future::Future;
use std::time::Duration;

/// The pause before a task that panicked is started again, so that one that always panics leaves the processor to others.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// Runs the background task `name` on `context` until it ends, and starts it again after a panic.
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
                tracing::error!(task = name, %error, "a background task panicked; it is started again");
                tokio::time::sleep(RESTART_PAUSE).await;
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
    async fn a_background_task_that_panics_is_started_again_until_it_ends() {
        let starts = Arc::new(AtomicU32::new(0));
        let task = |starts: Arc<AtomicU32>| async move {
            assert!(starts.fetch_add(1, Ordering::Relaxed) == 2, "a defect");
        };
        supervise("test", Arc::clone(&starts), task).await;
        assert_eq!(starts.load(Ordering::Relaxed), 3);
    }
}
