//! Whose turn it is: so many jobs are worked on at a time, each by one at a time, and whoever has waited longest comes first.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::hash::Hash;
use std::panic::resume_unwind;
use std::pin::pin;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// No pause is longer: then is long enough to look again.
const MAX_DELAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What is in order of a moment; of the same moment, in the order in which it came.
#[derive(Debug)]
struct PriorityQueue<T, M> {
    order: BTreeMap<(M, u64), T>,
    places: HashMap<T, (M, u64)>,
    came: u64,
}

impl<T: Clone + Eq + Hash, M: Copy + Ord> PriorityQueue<T, M> {
    fn new() -> Self {
        Self {
            order: BTreeMap::new(),
            places: HashMap::new(),
            came: 0,
        }
    }

    /// Puts `what` where `at` belongs, unless it has an earlier place.
    fn put(&mut self, what: T, at: M) {
        if self.places.get(&what).is_some_and(|(known, _)| *known <= at) {
            return;
        }
        self.remove(&what);
        let place = (at, self.came);
        self.came += 1;
        self.places.insert(what.clone(), place);
        self.order.insert(place, what);
    }

    fn remove(&mut self, what: &T) {
        if let Some(place) = self.places.remove(what) {
            self.order.remove(&place);
        }
    }

    fn len(&self) -> usize {
        self.order.len()
    }

    fn first(&self) -> Option<M> {
        self.order.first_key_value().map(|((at, _), _)| *at)
    }

    fn pop(&mut self) -> Option<T> {
        let (_, what) = self.order.pop_first()?;
        self.places.remove(&what);
        Some(what)
    }
}

/// Does `work` on whatever is `told`, and again after the time that it answers, if any; at most on `most` at a time, never twice on
/// the same at once, and first on what waits since the earliest moment, as `since` says. What is told of while it is worked on is
/// worked on again. When `told` ends, what is under way is ended and nothing is begun. Everything stops if this is dropped. `waiting`
/// is told how many wait for their turn whenever that changes.
pub(super) async fn run_work_queue<T, M, F>(
    told: impl Stream<Item = T>,
    most: usize,
    since: impl Fn(&T) -> M,
    work: impl Fn(T) -> F,
    waiting: impl Fn(usize),
) where
    T: Clone + Eq + Hash + Send + 'static,
    M: Copy + Ord,
    F: Future<Output = Option<Duration>> + Send + 'static,
{
    let mut told = pin!(told);
    let mut open = true;
    let mut ready: PriorityQueue<T, M> = PriorityQueue::new();
    let mut later: PriorityQueue<T, Instant> = PriorityQueue::new();
    let mut passes = JoinSet::new();
    // What is worked on, and whether it was told of meanwhile.
    let mut busy: HashMap<T, bool> = HashMap::new();
    let mut told_waiting = 0;
    while open || !passes.is_empty() {
        while open && passes.len() < most {
            let Some(what) = ready.pop() else { break };
            busy.insert(what.clone(), false);
            let pass = work(what.clone());
            passes.spawn(async move { (what, pass.await) });
        }
        if ready.len() != told_waiting {
            told_waiting = ready.len();
            waiting(told_waiting);
        }
        let due = later.first();
        tokio::select! {
            next = told.next(), if open => match next {
                None => open = false,
                Some(what) => {
                    if let Some(again) = busy.get_mut(&what) {
                        *again = true;
                    } else {
                        later.remove(&what);
                        let at = since(&what);
                        ready.put(what, at);
                    }
                }
            },
            Some(done) = passes.join_next() => {
                let (what, pause) = match done {
                    Ok(done) => done,
                    Err(error) => match error.try_into_panic() {
                        // Whoever works on something catches what that panics with: this is a defect of the loop.
                        Ok(panic) => resume_unwind(panic),
                        // Nobody aborts one.
                        Err(_) => continue,
                    },
                };
                if busy.remove(&what) == Some(true) {
                    let at = since(&what);
                    ready.put(what, at);
                } else if let Some(pause) = pause {
                    later.put(what, Instant::now() + pause.min(MAX_DELAY));
                }
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if open && due.is_some() => {
                while later.first().is_some_and(|first| first <= Instant::now()) {
                    let Some(what) = later.pop() else { break };
                    let at = since(&what);
                    ready.put(what, at);
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

    /// What was worked on, in order, and how much of it at a time at most.
    #[derive(Default)]
    struct Log {
        done: Vec<u32>,
        busy: Vec<u32>,
        most: usize,
        waiting: Vec<usize>,
    }

    const PASS: Duration = Duration::from_millis(10);

    /// Works on numbers, each for [`PASS`]; the lower, the longer it waits. 7 is looked at again after a second.
    fn start(most: usize) -> (UnboundedSender<u32>, Arc<Mutex<Log>>, tokio::task::JoinHandle<()>) {
        let (tell, told) = unbounded();
        let log = Arc::new(Mutex::new(Log::default()));
        let kept = Arc::clone(&log);
        let work = move |what: u32| {
            let log = Arc::clone(&kept);
            async move {
                {
                    let mut log = log.lock().expect("nobody panics");
                    assert!(!log.busy.contains(&what), "twice at once");
                    log.busy.push(what);
                    log.most = log.most.max(log.busy.len());
                }
                tokio::time::sleep(PASS).await;
                let mut log = log.lock().expect("nobody panics");
                log.busy.retain(|busy| *busy != what);
                log.done.push(what);
                (what == 7).then_some(Duration::from_secs(1))
            }
        };
        let kept = Arc::clone(&log);
        let waiting = move |many| kept.lock().expect("nobody panics").waiting.push(many);
        let loops = tokio::spawn(run_work_queue(told, most, |what| *what, work, waiting));
        (tell, log, loops)
    }

    fn done(log: &Mutex<Log>) -> Vec<u32> {
        log.lock().expect("nobody panics").done.clone()
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_longest_comes_first_and_only_so_many_at_a_time() {
        let (tell, log, _loops) = start(2);
        for what in [90, 91, 30, 20, 20, 10] {
            tell.unbounded_send(what).expect("it listens");
        }
        tokio::time::sleep(PASS * 10).await;
        let all = done(&log);
        assert_eq!(all.len(), 5, "{all:?}");
        assert_eq!(all[2..], [10, 20, 30][..3], "{all:?}");
        let log = log.lock().expect("nobody panics");
        assert_eq!(log.most, 2);
        assert_eq!(log.waiting, [1, 2, 3, 2, 1, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_passed_over_for_good_by_those_who_come_later() {
        let (tell, log, _loops) = start(1);
        tell.unbounded_send(100).expect("it listens");
        tell.unbounded_send(50).expect("it listens");
        for what in 101..200 {
            tell.unbounded_send(what).expect("it listens");
            tokio::time::sleep(PASS / 2).await;
        }
        let all = done(&log);
        assert!(
            all.iter()
                .position(|what| *what == 50)
                .is_some_and(|place| place < 2),
            "{all:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_told_of_while_it_is_worked_on_is_worked_on_again() {
        let (tell, log, _loops) = start(4);
        tell.unbounded_send(1).expect("it listens");
        tokio::time::sleep(PASS / 2).await;
        tell.unbounded_send(1).expect("it listens");
        tell.unbounded_send(1).expect("it listens");
        tokio::time::sleep(PASS * 5).await;
        assert_eq!(done(&log), [1, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_to_be_looked_at_later_is_and_earlier_if_it_is_told_of() {
        let (tell, log, _loops) = start(4);
        tell.unbounded_send(7).expect("it listens");
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(done(&log), [7]);
        tell.unbounded_send(7).expect("it listens");
        tokio::time::sleep(Duration::from_millis(900)).await;
        assert_eq!(done(&log), [7, 7], "a second after the last time");
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(done(&log), [7, 7, 7]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_under_way_ends_and_nothing_begins_when_nobody_tells_any_more() {
        let (tell, log, loops) = start(1);
        tell.unbounded_send(1).expect("it listens");
        tokio::time::sleep(PASS / 2).await;
        tell.unbounded_send(2).expect("it listens");
        drop(tell);
        loops.await.expect("it ends");
        assert_eq!(done(&log), [1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_that_whoever_works_does_not_catch_is_not_hidden() {
        let (tell, told) = unbounded();
        let loops = tokio::spawn(run_work_queue(
            told,
            1,
            |what: &u32| *what,
            |_| async { panic!("oh") },
            |_| {},
        ));
        tell.unbounded_send(1).expect("it listens");
        assert!(loops.await.is_err_and(|error| error.is_panic()));
    }

    #[tokio::test(start_paused = true)]
    async fn everything_stops_when_the_loop_is_dropped() {
        let (tell, log, loops) = start(1);
        tell.unbounded_send(1).expect("it listens");
        tokio::time::sleep(PASS / 2).await;
        loops.abort();
        tokio::time::sleep(PASS * 3).await;
        assert!(done(&log).is_empty());
    }
}
