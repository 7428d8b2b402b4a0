//! Views, changes and the log of holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ipu_allocator::UsagePosition;
use ipu_core::allocator::{Cordon, CordonTarget, Phase, Policy, Quota, QuotaSubject, Release};
use ipu_core::job::PartitionFacts;
use ipu_core::{CordonId, CordonOwner, Namespace, PartitionId, Timestamp};
use tokio::time::Instant;

use crate::bed::{Bed, name, options, request, soon};

#[tokio::test(start_paused = true)]
async fn a_view_answers_for_the_published_state() {
    let mut options = options();
    let namespace = QuotaSubject::Namespace(Namespace::new("default").unwrap());
    let quota = Quota {
        max_ipus: Some(16),
        max_partitions: None,
    };
    options.policy.quotas.insert(namespace, quota);
    let bed = Bed::with(options).await;
    let (one, two) = (request("one", 8), request("two", 16));
    bed.ensure(&one).await;
    let queued = bed.ensure_until(&two, Instant::now()).await;
    assert_eq!(queued.phase, Phase::Queued);
    let view = bed.allocator.fresh_view().await.unwrap();
    assert_eq!(view.get(&one.id).unwrap().id, one.id);
    assert!(view.get(&PartitionId::new("other").unwrap()).is_none());
    assert_eq!(view.queue().len(), 1);
    let reason = bed.allocator.reason(&queued).unwrap();
    assert_eq!(reason, view.queue()[&two.id].reason);
    assert_eq!(view.stats().available, 8);
    assert_eq!(view.stats_by_controller()[&name()].available, 8);
    assert_eq!(view.capacity_by_size()[0].0, name());
    let (controller, capacity) = &view.free_capacity(&one.spec)[0];
    assert_eq!(*controller, name());
    assert_eq!(capacity.as_ref().unwrap().fit_count, 1);
    assert_eq!(view.map()[0].name, name());
    assert_eq!(view.quota_usage().len(), 1);
    let plan = view.dry_run(std::slice::from_ref(&two.spec), std::slice::from_ref(&one.id));
    assert_eq!(plan.len(), 1);
    assert!(format!("{view:?}").starts_with("View { generation: "));
    bed.allocator.release(Release::of(&one), soon()).await.unwrap();
    assert_eq!(bed.ensure(&two).await.phase, Phase::Active);
    assert_eq!(bed.allocator.reason(&queued), None, "it has started since");
}

#[tokio::test(start_paused = true)]
async fn a_view_is_shared_until_something_changes_or_a_second_has_passed() {
    let seconds = Arc::new(AtomicU64::new(100));
    let read = Arc::clone(&seconds);
    let mut options = options();
    options.clock = Arc::new(move || Timestamp::from_millis(read.load(Ordering::Relaxed) * 1_000));
    let bed = Bed::with(options).await;
    let first = bed.allocator.view().await.unwrap();
    assert!(Arc::ptr_eq(&first, &bed.allocator.view().await.unwrap()));
    seconds.fetch_add(1, Ordering::Relaxed);
    let second = bed.allocator.view().await.unwrap();
    assert_eq!(
        (first.now().as_millis(), second.now().as_millis()),
        (100_000, 101_000)
    );
    assert!(Arc::ptr_eq(&second, &bed.allocator.view().await.unwrap()));
    bed.ensure(&request("one", 4)).await;
    assert!(!Arc::ptr_eq(&second, &bed.allocator.view().await.unwrap()));
}

#[tokio::test(start_paused = true)]
async fn an_idle_allocator_looks_at_its_state_once_a_second() {
    let reads = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&reads);
    let mut options = options();
    options.clock = Arc::new(move || Timestamp::from_millis(counted.fetch_add(1, Ordering::Relaxed)));
    let bed = Bed::with(options).await;
    bed.allocator.check_ready().await.unwrap();
    let before = reads.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let looked = reads.load(Ordering::Relaxed) - before;
    assert!((8..=15).contains(&looked), "{looked}");
}

#[tokio::test(start_paused = true)]
async fn the_state_is_published_for_each_change_and_only_then() {
    let mut options = options();
    options.listing_interval = Duration::from_secs(5);
    let bed = Bed::with(options).await;
    bed.allocator.check_ready().await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut published = bed.allocator.published();
    published.mark_unchanged();
    // Nothing happens in these batches.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!published.has_changed().unwrap());
    bed.allocator.set_policy(Policy::default()).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(published.has_changed().unwrap());
    published.mark_unchanged();
    bed.allocator.pool().set_same_as(&name(), Some(name()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(published.has_changed().unwrap());
}

#[tokio::test(start_paused = true)]
async fn each_change_of_an_entry_is_sent_once_and_in_order() {
    let bed = Bed::with(options()).await;
    bed.allocator.check_ready().await.unwrap();
    let mut changes = bed.allocator.changes();
    let one = request("one", 4);
    bed.ensure(&one).await;
    bed.allocator.release(Release::of(&one), soon()).await.unwrap();
    let cordon = CordonId::new("c").unwrap();
    let owner = CordonOwner::new("admin").unwrap();
    let cordon = Cordon::new(cordon, name(), CordonTarget::Controller, owner, "repair");
    let effect = bed.allocator.cordon(cordon.clone()).await.unwrap();
    assert!(effect.holders.is_empty());
    let mut last = None;
    let mut seen = Vec::new();
    while let Ok(change) = changes.try_recv() {
        assert_eq!(change.seq, seen.len() as u64 + 1);
        assert_eq!((&change.id, &change.from), (&one.id, &last));
        assert_ne!(change.from, change.to);
        last.clone_from(&change.to);
        seen.push(change.to.map(|entry| entry.phase.as_str()));
    }
    let expected = [Some("creating"), Some("active"), Some("releasing"), None];
    assert!(seen.ends_with(&expected), "{seen:?}");
    let lifted = bed.allocator.uncordon(&cordon.id, &cordon.owner).await.unwrap();
    assert_eq!(lifted.unwrap().id, cordon.id);
    assert!(
        bed.allocator
            .uncordon(&cordon.id, &cordon.owner)
            .await
            .unwrap()
            .is_none()
    );
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_is_asked_to_release_is_counted_once_for_each_request() {
    let mut options = options();
    options.policy.preemption = true;
    let bed = Bed::with(options).await;
    let mut holder = request("holder", 16);
    holder.preemptible = true;
    bed.ensure(&holder).await;
    assert_eq!(bed.allocator.preemption_count(), 0);
    bed.ensure_until(&request("urgent", 16).with_priority(10), Instant::now())
        .await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(bed.allocator.preemption_count(), 1);
    let entry = bed.allocator.get(&holder.id).await.unwrap().unwrap();
    assert_eq!(entry.preemption.as_ref().unwrap().by, request("urgent", 16).id);
    // A renewed holder is the same one.
    bed.ensure(&holder.clone().with_holder("b")).await;
    assert_eq!(bed.allocator.preemption_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_ended_hold_is_in_the_log_from_the_position_of_a_page_on() {
    let bed = Bed::with(options()).await;
    for name in ["one", "two"] {
        bed.ensure(&request(name, 4)).await;
        bed.allocator
            .release(Release::of(&request(name, 4)), soon())
            .await
            .unwrap();
    }
    let zero = Timestamp::from_millis(0);
    let page = async |after: Option<&UsagePosition>| bed.allocator.usage(zero, after, 1).await.unwrap();
    let first = page(None).await;
    assert_eq!(first.len(), 1);
    let position = UsagePosition::from(&first[0]);
    let text = position.to_string();
    assert_eq!(text.parse::<UsagePosition>().unwrap(), position);
    assert!(text.ends_with(first[0].id.as_str()), "{text}");
    let second = page(Some(&position)).await;
    assert_ne!(second[0].id, first[0].id);
    assert!(page(Some(&UsagePosition::from(&second[0]))).await.is_empty());
    for text in ["", "1.2.3", "1.2.x.a", "1.2.3.", "a"] {
        let error = text.parse::<UsagePosition>().unwrap_err().to_string();
        assert_eq!(
            error,
            "must be RELEASED.TICKET.HELD.ID, as the page before returned it"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_plan_of_a_job_observes_each_phase_of_a_partition() {
    let bed = Bed::with(options()).await;
    let facts = async |id: &PartitionId| bed.allocator.view().await.unwrap().partition_facts(id);
    let (one, two) = (request("one", 16).with_attempt(3), request("two", 16));
    assert_eq!(facts(&one.id).await, PartitionFacts::Absent);
    let entry = bed.ensure(&one).await;
    let controller = name();
    let active = PartitionFacts::Active {
        attempt: 3,
        since: entry.since,
        controller,
    };
    assert_eq!(facts(&one.id).await, active);
    bed.ensure_until(&two, Instant::now()).await;
    assert!(matches!(
        facts(&two.id).await,
        PartitionFacts::Waiting { attempt: 0, .. }
    ));
    bed.controller.silence("reset");
    bed.ensure_until(&one.clone().with_attempt(4), Instant::now())
        .await;
    assert_eq!(facts(&one.id).await, PartitionFacts::Pending { attempt: 4 });
    bed.allocator
        .release(Release::of(&one), Instant::now())
        .await
        .unwrap();
    assert_eq!(facts(&one.id).await, PartitionFacts::Releasing);
}
