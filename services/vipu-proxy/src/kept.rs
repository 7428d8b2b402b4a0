//! Guards that the tasks of a request keep.

use std::any::Any;
use std::sync::Arc;

use tokio::task::JoinHandle;

type RequestGuard = Arc<dyn Any + Send + Sync>;

tokio::task_local! {
    static GUARD: RequestGuard;
}

/// Runs `work`; the tasks that it starts with [`spawn`] keep `guard` until they end.
pub(crate) async fn scope<T>(guard: RequestGuard, work: impl Future<Output = T>) -> T {
    GUARD.scope(guard, work).await
}

/// Starts a task that keeps the guard of the current request until it ends, so that its slots stay taken.
pub(crate) fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let guard = GUARD.try_with(Arc::clone).ok();
    tokio::spawn(async move {
        let result = work.await;
        drop(guard);
        result
    })
}
