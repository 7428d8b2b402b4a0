//! Cases about concurrent calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ipu_core::PartitionId;
use ipu_core::hardware::Topology;
use ipu_vipu_client::{VipuController, VipuError};
use tokio::task::JoinSet;

use super::harness::{Fixture, Harness, Removal, check_error, id, listed, remove, request, wait_active};
use super::{Setup, cases};
use crate::conformance::{CaseError, CaseOutcome, broken, check_eq, check_ok};

cases![
    concurrent_partitions_never_share_an_ipu,
    one_of_many_creates_of_an_id_succeeds,
    the_last_block_is_granted_once,
    partition_churn_leaves_nothing,
    the_listing_is_consistent_during_partition_churn,
    concurrent_removals_remove_a_partition,
    concurrent_resets_restore_a_partition,
];

/// Number of concurrent calls: more than a controller has reason to queue, fewer than any limit.
const CONCURRENT_CALLS: u32 = 16;

type Results = BTreeMap<String, Result<PartitionId, VipuError>>;

/// Creates all requested partitions concurrently.
async fn create_all(fixture: &Fixture, requests: impl IntoIterator<Item = (String, String, u32)>) -> Results {
    let mut calls = JoinSet::new();
    for (key, name, size) in requests {
        let controller = Arc::clone(&fixture.controller);
        calls.spawn(async move { (key, controller.create_partition(request(&name, size)).await) });
    }
    calls.join_all().await.into_iter().collect()
}

/// "No IPU in two partitions" is the purpose of partitions; a Pod64 has capacity for 64 partitions of one
/// IPU.
async fn concurrent_partitions_never_share_an_ipu(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod64())).await;
    let requests = (0..64).map(|n| (n.to_string(), format!("p{n}"), 1));
    for (_, answer) in create_all(&fixture, requests).await {
        check_ok(
            "a partition that fits is created despite concurrent calls",
            answer,
        )?;
    }
    // Also checks that no IPU is in two partitions.
    let found = fixture.listed().await?.len();
    check_eq(
        "the listing contains exactly the existing partitions",
        &found,
        &64,
    )?;
    let rule = "a full system has no capacity";
    check_error(rule, fixture.create("one-more", 1).await, &["no_capacity"]).map(drop)
}

/// "`AlreadyExists` if the id is taken" (`create_partition`), even by a concurrent call.
async fn one_of_many_creates_of_an_id_succeeds(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    for _ in 0..4 {
        // Of different sizes: none of them may pass for a repetition.
        let requests = (0..CONCURRENT_CALLS).map(|n| (n.to_string(), "p1".to_owned(), 1 << (n % 2)));
        let answers = create_all(&fixture, requests).await;
        check_one_success(
            &answers,
            "already_exists",
            "one of many creates of an id succeeds",
        )?;
        fixture.check_listing(&["p1"]).await?;
        fixture.remove("p1", Removal::Forced).await?;
    }
    fixture.check_all_free(16).await
}

/// "`NoCapacity` if it does not fit" (`create_partition`), also because of a concurrent call.
async fn the_last_block_is_granted_once(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod4())).await;
    for round in 0..4 {
        let requests = (0..CONCURRENT_CALLS).map(|n| (format!("r{round}-{n}"), format!("r{round}-{n}"), 4));
        let answers = create_all(&fixture, requests).await;
        let winner = check_one_success(
            &answers,
            "no_capacity",
            "one of many requests for the last block succeeds",
        )?;
        fixture.check_listing(&[&winner]).await?;
        fixture.remove(&winner, Removal::Forced).await?;
    }
    fixture.check_all_free(4).await
}

/// Returns the key of the only success; all other results are errors with this label.
fn check_one_success(answers: &Results, others: &str, rule: &str) -> Result<String, CaseError> {
    let (won, lost): (Vec<_>, Vec<_>) = answers.iter().partition(|(_, answer)| answer.is_ok());
    for (_, answer) in lost {
        check_error(rule, answer.clone(), &[others])?;
    }
    match won.as_slice() {
        [(key, _)] => Ok((*key).clone()),
        several => {
            let actual = format!("{} successes", several.len());
            Err(broken(rule, "one success", actual))
        }
    }
}

/// Creates and removes partitions of two IPUs repeatedly.
async fn churn_client(controller: Arc<dyn VipuController>, client: u32, rounds: u32) -> CaseOutcome {
    for round in 0..rounds {
        let name = format!("w{client}-{round}");
        let answer = controller.create_partition(request(&name, 2)).await;
        check_ok(
            "a partition that fits is created despite concurrent calls",
            answer,
        )?;
        wait_active(&*controller, &name).await?;
        remove(&*controller, &name, Removal::Regular).await?;
    }
    Ok(())
}

/// Starts eight clients that together need at most the sixteen IPUs, in blocks of one size, so that capacity
/// always suffices.
fn churn(fixture: &Fixture, rounds: u32) -> JoinSet<CaseOutcome> {
    let mut tasks = JoinSet::new();
    for client in 0..8 {
        tasks.spawn(churn_client(Arc::clone(&fixture.controller), client, rounds));
    }
    tasks
}

/// Returns the first failure, if any.
async fn join_all(tasks: JoinSet<CaseOutcome>) -> CaseOutcome {
    tasks.join_all().await.into_iter().collect()
}

/// The IPUs of a removed partition are free again (reference, Calls), independent of concurrent clients.
async fn partition_churn_leaves_nothing(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    join_all(churn(&fixture, 6)).await?;
    fixture.check_all_free(16).await
}

/// A listing is a consistent snapshot: no partition twice, no IPU in two, no existing partition missing.
async fn the_listing_is_consistent_during_partition_churn(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod64())).await;
    fixture.create_active("permanent", 16).await?;
    let listings = Arc::new(AtomicUsize::new(0));
    let mut tasks = churn(&fixture, 4);
    for _ in 0..2 {
        let (controller, listings) = (Arc::clone(&fixture.controller), Arc::clone(&listings));
        tasks.spawn(async move {
            for _ in 0..24 {
                let actual = listed(&*controller).await?;
                let listed = actual.iter().any(|partition| partition.id == id("permanent"));
                check_eq("a partition that always exists is always listed", &listed, &true)?;
                listings.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
    }
    join_all(tasks).await?;
    check_eq("every listing was made", &listings.load(Ordering::Relaxed), &48)?;
    fixture.check_listing(&["permanent"]).await
}

/// A remove starts the removal, finds it in progress (accepted or rejected: both occur), or finds the
/// partition gone.
async fn concurrent_removals_remove_a_partition(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::steady(Topology::pod16())).await;
    fixture.create_active("p1", 16).await?;
    let mut calls = JoinSet::new();
    for _ in 0..CONCURRENT_CALLS {
        let controller = Arc::clone(&fixture.controller);
        calls.spawn(async move { controller.remove_partition(&id("p1"), false).await });
    }
    let answers = calls.join_all().await;
    let rule = "a removal starts, is in progress or has ended";
    check_eq(
        "one of many removals succeeds",
        &answers.iter().any(Result::is_ok),
        &true,
    )?;
    for answer in answers.into_iter().filter(Result::is_err) {
        check_error(rule, answer, &["not_found", "refused"])?;
    }
    fixture.remove("p1", Removal::Regular).await?;
    fixture.check_all_free(16).await
}

/// A reset starts, or is rejected while another one is in progress (FAILED_PRECONDITION, an assumption).
async fn concurrent_resets_restore_a_partition(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::steady(Topology::pod16())).await;
    fixture.create_active("p1", 4).await?;
    let before = fixture.listed().await?;
    let mut calls = JoinSet::new();
    for _ in 0..CONCURRENT_CALLS {
        let controller = Arc::clone(&fixture.controller);
        calls.spawn(async move { controller.reset_partition(&id("p1")).await });
    }
    let answers = calls.join_all().await;
    check_eq(
        "one of many resets succeeds",
        &answers.iter().any(Result::is_ok),
        &true,
    )?;
    for answer in answers.into_iter().filter(Result::is_err) {
        check_error("a reset starts, or one is in progress", answer, &["refused"])?;
    }
    fixture.check_active("p1").await?;
    check_eq("a reset changes nothing else", &fixture.listed().await?, &before)
}
