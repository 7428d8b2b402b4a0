//! Work queue of the controller: it limits concurrency, never runs one item twice at once, and orders items
//! by priority.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::hash::Hash;
use std::panic::resume_unwind;
use std::pin::pin;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Maximum delay until an item is processed again.
const MAX_DELAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Items ordered by key; items with equal keys keep their insertion order.
#[derive(Debug)]
struct PriorityQueue<T, M> {
    order: BTreeMap<(M, u64), T>,
    keys: HashMap<T, (M, u64)>,
    sequence: u64,
}

impl<T: Clone + Eq + Hash, M: Copy + Ord> PriorityQueue<T, M> {
    fn new() -> Self {
        Self {
            order: BTreeMap::new(),
            keys: HashMap::new(),
            sequence: 0,
        }
    }

    /// Inserts `item` with this `key`, unless it has an earlier one.
    fn insert(&mut self, item: T, key: M) {
        if self.keys.get(&item).is_some_and(|(known, _)| *known <= key) {
            return;
        }
        self.remove(&item);
        let key = (key, self.sequence);
        self.sequence += 1;
        self.keys.insert(item.clone(), key);
        self.order.insert(key, item);
    }

    fn remove(&mut self, item: &T) {
        if let Some(key) = self.keys.remove(item) {
            self.order.remove(&key);
        }
    }

    fn len(&self) -> usize {
        self.order.len()
    }

    fn first(&self) -> Option<M> {
        self.order.first_key_value().map(|((key, _), _)| *key)
    }

    fn pop(&mut self) -> Option<T> {
        let (_, item) = self.order.pop_first()?;
        self.keys.remove(&item);
        Some(item)
    }
}

/// Pulls items from `incoming` and runs `work` for each. It runs at most `limit` items concurrently, and
/// never the same item twice at once. The least `priority` goes first; an item that arrives while it is
/// processed is processed again. `work` returns the delay after which its item is processed again, if any.
/// When `incoming` ends, running items complete and no other item starts. Dropping the future stops
/// everything. `depth_changed` receives the number of ready items whenever it changes.
pub(super) async fn run_work_queue<T, M, F>(
    incoming: impl Stream<Item = T>,
    limit: usize,
    priority: impl Fn(&T) -> M,
    work: impl Fn(T) -> F,
    depth_changed: impl Fn(usize),
) where
    T: Clone + Eq + Hash + Send + 'static,
    M: Copy + Ord,
    F: Future<Output = Option<Duration>> + Send + 'static,
{
    let mut incoming = pin!(incoming);
    let mut is_open = true;
    let mut ready: PriorityQueue<T, M> = PriorityQueue::new();
    let mut later: PriorityQueue<T, Instant> = PriorityQueue::new();
    let mut running = JoinSet::new();
    // Running items, and whether they arrived again meanwhile.
    let mut in_progress: HashMap<T, bool> = HashMap::new();
    let mut reported_depth = 0;
    while is_open || !running.is_empty() {
        while is_open && running.len() < limit {
            let Some(item) = ready.pop() else { break };
            in_progress.insert(item.clone(), false);
            let future = work(item.clone());
            running.spawn(async move { (item, future.await) });
        }
        if ready.len() != reported_depth {
            reported_depth = ready.len();
            depth_changed(reported_depth);
        }
        let due = later.first();
        tokio::select! {
            next = incoming.next(), if is_open => match next {
                None => is_open = false,
                Some(item) => {
                    if let Some(again) = in_progress.get_mut(&item) {
                        *again = true;
                    } else {
                        later.remove(&item);
                        let key = priority(&item);
                        ready.insert(item, key);
                    }
                }
            },
            Some(done) = running.join_next() => {
                let (item, pause) = match done {
                    Ok(done) => done,
                    Err(error) => match error.try_into_panic() {
                        // `work` catches the panics of a reconcile: this one is a bug in the loop.
                        Ok(panic) => resume_unwind(panic),
                        // No task is ever aborted.
                        Err(_) => continue,
                    },
                };
                if in_progress.remove(&item) == Some(true) {
                    let key = priority(&item);
                    ready.insert(item, key);
                } else if let Some(pause) = pause {
                    later.insert(item, Instant::now() + pause.min(MAX_DELAY));
                }
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if is_open && due.is_some() => {
                while later.first().is_some_and(|first| first <= Instant::now()) {
                    let Some(item) = later.pop() else { break };
                    let key = priority(&item);
                    ready.insert(item, key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use futures::channel::mpsc::{UnboundedSender, unbounded};

    use super::*;

    /// Processed items in order, and the greatest number of concurrent ones.
    #[derive(Default)]
    struct Log {
        done: Vec<u32>,
        in_progress: Vec<u32>,
        max_concurrent: usize,
        waiting: Vec<usize>,
    }

    const WORK_TIME: Duration = Duration::from_millis(10);

    /// Runs a queue of numbers, each for [`WORK_TIME`], the least first. Number 7 is processed again after a
    /// second.
    fn start(limit: usize) -> (UnboundedSender<u32>, Arc<Mutex<Log>>, tokio::task::JoinHandle<()>) {
        let (sender, incoming) = unbounded();
        let log = Arc::new(Mutex::new(Log::default()));
        let shared = Arc::clone(&log);
        let work = move |item: u32| {
            let log = Arc::clone(&shared);
            async move {
                {
                    let mut log = log.lock().expect("the lock is not poisoned");
                    assert!(
                        !log.in_progress.contains(&item),
                        "the item is in progress already"
                    );
                    log.in_progress.push(item);
                    log.max_concurrent = log.max_concurrent.max(log.in_progress.len());
                }
                tokio::time::sleep(WORK_TIME).await;
                let mut log = log.lock().expect("the lock is not poisoned");
                log.in_progress.retain(|in_progress| *in_progress != item);
                log.done.push(item);
                (item == 7).then_some(Duration::from_secs(1))
            }
        };
        let shared = Arc::clone(&log);
        let waiting = move |depth| {
            shared
                .lock()
                .expect("the lock is not poisoned")
                .waiting
                .push(depth)
        };
        let queue = tokio::spawn(run_work_queue(incoming, limit, |item| *item, work, waiting));
        (sender, log, queue)
    }

    fn done(log: &Mutex<Log>) -> Vec<u32> {
        log.lock().expect("the lock is not poisoned").done.clone()
    }

    #[tokio::test(start_paused = true)]
    async fn the_least_priority_goes_first_within_the_concurrency_limit() {
        let (sender, log, _queue) = start(2);
        for item in [90, 91, 30, 20, 20, 10] {
            sender.unbounded_send(item).expect("the queue receives");
        }
        tokio::time::sleep(WORK_TIME * 10).await;
        let all = done(&log);
        assert_eq!(all.len(), 5, "{all:?}");
        assert_eq!(all[2..], [10, 20, 30][..3], "{all:?}");
        let log = log.lock().expect("the lock is not poisoned");
        assert_eq!(log.max_concurrent, 2);
        assert_eq!(log.waiting, [1, 2, 3, 2, 1, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn no_item_starves_behind_later_items() {
        let (sender, log, _queue) = start(1);
        sender.unbounded_send(100).expect("the queue receives");
        sender.unbounded_send(50).expect("the queue receives");
        for item in 101..200 {
            sender.unbounded_send(item).expect("the queue receives");
            tokio::time::sleep(WORK_TIME / 2).await;
        }
        let all = done(&log);
        assert!(
            all.iter().position(|item| *item == 50).is_some_and(|key| key < 2),
            "{all:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_item_that_arrives_while_it_is_processed_is_processed_again() {
        let (sender, log, _queue) = start(4);
        sender.unbounded_send(1).expect("the queue receives");
        tokio::time::sleep(WORK_TIME / 2).await;
        sender.unbounded_send(1).expect("the queue receives");
        sender.unbounded_send(1).expect("the queue receives");
        tokio::time::sleep(WORK_TIME * 5).await;
        assert_eq!(done(&log), [1, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_requeued_item_is_processed_after_its_delay_or_earlier_when_it_arrives() {
        let (sender, log, _queue) = start(4);
        sender.unbounded_send(7).expect("the queue receives");
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(done(&log), [7]);
        sender.unbounded_send(7).expect("the queue receives");
        tokio::time::sleep(Duration::from_millis(900)).await;
        assert_eq!(done(&log), [7, 7], "a second after the last time");
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(done(&log), [7, 7, 7]);
    }

    #[tokio::test(start_paused = true)]
    async fn running_items_complete_and_no_item_starts_after_the_stream_ends() {
        let (sender, log, queue) = start(1);
        sender.unbounded_send(1).expect("the queue receives");
        tokio::time::sleep(WORK_TIME / 2).await;
        sender.unbounded_send(2).expect("the queue receives");
        drop(sender);
        queue.await.expect("the queue ends");
        assert_eq!(done(&log), [1]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_uncaught_panic_of_a_worker_is_propagated() {
        let (sender, incoming) = unbounded();
        let queue = tokio::spawn(run_work_queue(
            incoming,
            1,
            |item: &u32| *item,
            |_| async { panic!("oh") },
            |_| {},
        ));
        sender.unbounded_send(1).expect("the queue receives");
        assert!(queue.await.is_err_and(|error| error.is_panic()));
    }

    #[tokio::test(start_paused = true)]
    async fn dropping_the_queue_stops_all_items() {
        let (sender, log, queue) = start(1);
        sender.unbounded_send(1).expect("the queue receives");
        tokio::time::sleep(WORK_TIME / 2).await;
        queue.abort();
        tokio::time::sleep(WORK_TIME * 3).await;
        assert!(done(&log).is_empty());
    }
}
