//! Releases that must not force the controller to remove the partition.

use ipu_core::{Entry, Release, RemovalRefusal, Request, Timestamp, Topology, Transition};

use super::{EntryState, LedgerHarness, TransitionError, request};

impl LedgerHarness {
    fn release_unforced(&mut self, request: &Request) -> Release {
        let (id, owner) = (&request.id, &request.owner);
        let window = self.window();
        let step = self.state.release_without_force(id, owner, None, None, window);
        self.commit(step.unwrap())
    }

    fn release_forced(&mut self, request: &Request) -> Transition<Release> {
        let (id, owner) = (&request.id, &request.owner);
        self.state.release(id, owner, None, None, self.window()).unwrap()
    }

    fn entry(&self, request: &Request) -> &Entry {
        self.state.get(&request.id).unwrap()
    }

    fn fence(&self, request: &Request) -> Timestamp {
        match self.entry(request).state {
            EntryState::Releasing { fence } => fence,
            ref other => panic!("{other:?}"),
        }
    }

    /// Records a refusal by the controller.
    fn refuse(&mut self, request: &Request) {
        let refusal = RemovalRefusal::new("it is in error", self.now());
        let step = self
            .state
            .refuse_removal(&request.id, self.fence(request), refusal);
        self.commit(step.unwrap());
    }
}

/// Returns a ledger with an active partition of this request.
fn with_active() -> (LedgerHarness, Request) {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let job = request("ns", "job", 4);
    harness.submit(&job);
    (harness, job)
}

#[test]
fn a_refused_removal_keeps_the_partition_and_says_how_to_go_on() {
    let (mut harness, job) = with_active();
    assert_eq!(harness.entry(&job).format(), Entry::FORMAT);
    assert!(matches!(harness.release_unforced(&job), Release::Drive(_)));
    assert_eq!(harness.entry(&job).removal_reason(), None);
    harness.refuse(&job);
    let reason = harness.entry(&job).removal_reason().unwrap();
    assert_eq!(
        (&*reason.code, &*reason.message),
        (
            "RemovalRefused",
            "controller c refuses to remove the partition without force: it is in error; release it with force, \
             or mend the cause and release it without force again"
        )
    );
    assert!(harness.holds(&job));
    // An older build would force the controller.
    assert_eq!(harness.entry(&job).format(), Entry::UNFORCED_FORMAT);
    assert_eq!(harness.state.format(), Entry::UNFORCED_FORMAT);
    // A repair and a resumption change nothing.
    let resumed = harness.state.resume_release(&job.id, &job.owner).unwrap();
    assert_eq!(resumed.changes, []);
}

#[test]
fn a_repetition_without_force_clears_the_refusal_and_one_with_force_allows_it() {
    let (mut harness, job) = with_active();
    harness.release_unforced(&job);
    harness.refuse(&job);
    let refused_at = harness.fence(&job);
    harness.release_unforced(&job);
    assert_eq!(harness.entry(&job).removal_reason(), None);
    assert!(harness.entry(&job).unforced.is_some());
    assert!(harness.fence(&job) > refused_at);
    // Without a refusal there is nothing new to record.
    let before = harness.entry(&job).clone();
    harness.release_unforced(&job);
    assert_eq!(*harness.entry(&job), before);

    harness.refuse(&job);
    let step = harness.release_forced(&job);
    harness.commit(step);
    assert_eq!(harness.entry(&job).unforced, None);
    assert!(harness.fence(&job) > before.since);
    // A call with force may be under way.
    harness.release_unforced(&job);
    assert_eq!(harness.entry(&job).unforced, None);
    assert_eq!(harness.release_forced(&job).changes, []);
}

#[test]
fn a_refusal_of_an_earlier_call_is_not_recorded() {
    let (mut harness, job) = with_active();
    harness.release_unforced(&job);
    let fence = harness.fence(&job);
    harness.refuse(&job);
    harness.release_unforced(&job);
    let late = |harness: &LedgerHarness, fence| {
        let refusal = RemovalRefusal::new("late", harness.now());
        harness.state.refuse_removal(&job.id, fence, refusal)
    };
    assert!(matches!(
        late(&harness, fence),
        Err(TransitionError::Moved { .. })
    ));
    let step = harness.release_forced(&job);
    harness.commit(step);
    let forced = harness.fence(&job);
    assert!(matches!(
        late(&harness, forced),
        Err(TransitionError::Moved { .. })
    ));
}

#[test]
fn a_queued_request_leaves_the_queue_without_a_call() {
    let (mut harness, _) = with_active();
    let queued = request("ns", "queued", 16);
    harness.expect_queued(&queued);
    assert_eq!(harness.release_unforced(&queued), Release::Dequeued);
    assert_eq!(harness.state.get(&queued.id), None);
}

#[test]
fn a_long_message_is_cut_between_characters() {
    let now = Timestamp::from_millis(0);
    let message = "é".repeat(RemovalRefusal::MAX_MESSAGE_LEN);
    let refusal = RemovalRefusal::new(&format!("x{message}"), now);
    assert_eq!(refusal.message.len(), RemovalRefusal::MAX_MESSAGE_LEN - 1);
    assert_eq!(RemovalRefusal::new("short", now).message, "short");
    assert!(refusal.is_recent(Timestamp::from_millis(29_999)));
    assert!(!refusal.is_recent(Timestamp::from_millis(30_000)));
}
