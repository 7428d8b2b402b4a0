//! Places that the tasks of a request keep.

use std::any::Any;
use std::sync::Arc;

use tokio::task::JoinHandle;

type Kept = Arc<dyn Any + Send + Sync>;

tokio::task_local! {
    static KEPT: Kept;
}

/// Runs `work`; the tasks that it starts with [`spawn`] keep `kept` until they end.
pub(crate) async fn scope<T>(kept: Kept, work: impl Future<Output = T>) -> T {
    KEPT.scope(kept, work).await
}

/// Starts a task that keeps the places of the request that starts it: they are taken as long as the task works.
pub(crate) fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let kept = KEPT.try_with(Arc::clone).ok();
    tokio::spawn(async move {
        let answer = work.await;
        drop(kept);
        answer
    })
}
