//! Many calls at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ipu_core::{PartitionId, Topology};
use ipu_vipu_client::{Removal, VipuController, VipuError, ensure_absent, wait_active};
use tokio::task::JoinSet;

use super::harness::{Harness, Pod, id, listed, patience, refused, request};
use super::{Setup, cases};
use crate::conformance::{CaseOutcome, Stop, broken, ok, same};

cases![
    many_at_once_never_share_an_ipu,
    of_many_creations_of_one_id_one_is_done,
    the_last_block_goes_to_one,
    whoever_comes_and_goes_leaves_nothing,
    the_listing_is_true_while_partitions_come_and_go,
    many_removals_of_one_partition_remove_it,
    many_resets_of_one_partition_lead_back_to_it,
];

/// How many call at once: more than any controller has reason to queue, fewer than anybody limits.
const CROWD: u32 = 16;

type Answers = BTreeMap<String, Result<PartitionId, VipuError>>;

/// Creates all of these at once.
async fn create_all(pod: &Pod, wishes: impl IntoIterator<Item = (String, String, u32)>) -> Answers {
    let mut calls = JoinSet::new();
    for (key, name, size) in wishes {
        let controller = Arc::clone(&pod.controller);
        calls.spawn(async move { (key, controller.create_partition(request(&name, size)).await) });
    }
    calls.join_all().await.into_iter().collect()
}

/// "No IPU in two partitions" is what partitions are for; 64 partitions of one IPU are what a Pod64 has room for.
async fn many_at_once_never_share_an_ipu(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod64())).await;
    let wishes = (0..64).map(|n| (n.to_string(), format!("p{n}"), 1));
    for (_, answer) in create_all(&pod, wishes).await {
        ok("what fits is made, whoever asks at the same time", answer)?;
    }
    // Which looks whether an IPU is in two.
    let found = pod.listed().await?.len();
    same("the listing has every partition, and no other", &found, &64)?;
    let rule = "a full Pod has no room";
    refused(rule, pod.create("one-more", 1).await, &["no_capacity"]).map(drop)
}

/// "`AlreadyExists` if the id is taken" (`create_partition`): also by somebody who came at the same time.
async fn of_many_creations_of_one_id_one_is_done(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    for _ in 0..4 {
        // Of different sizes: none of them may be taken for a repetition.
        let wishes = (0..CROWD).map(|n| (n.to_string(), "p1".to_owned(), 1 << (n % 2)));
        let answers = create_all(&pod, wishes).await;
        one_wins(
            &answers,
            "already_exists",
            "of many creations of one id one is done",
        )?;
        pod.lists_exactly(&["p1"]).await?;
        pod.remove("p1", Removal::Forced).await?;
    }
    pod.is_all_free(16).await
}

/// "`NoCapacity` if it does not fit" (`create_partition`): also because of somebody who came at the same time.
async fn the_last_block_goes_to_one(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod4())).await;
    for round in 0..4 {
        let wishes = (0..CROWD).map(|n| (format!("r{round}-{n}"), format!("r{round}-{n}"), 4));
        let answers = create_all(&pod, wishes).await;
        let winner = one_wins(
            &answers,
            "no_capacity",
            "of many who want the last block one gets it",
        )?;
        pod.lists_exactly(&[&winner]).await?;
        pod.remove(&winner, Removal::Forced).await?;
    }
    pod.is_all_free(4).await
}

/// The key of the one answer that is a success; all others are errors with this label.
fn one_wins(answers: &Answers, others: &str, rule: &str) -> Result<String, Stop> {
    let (won, lost): (Vec<_>, Vec<_>) = answers.iter().partition(|(_, answer)| answer.is_ok());
    for (_, answer) in lost {
        refused(rule, answer.clone(), &[others])?;
    }
    match won.as_slice() {
        [(key, _)] => Ok((*key).clone()),
        several => {
            let seen = format!("{} successes", several.len());
            Err(broken(rule, "one success", seen))
        }
    }
}

/// One who makes and removes partitions of two IPUs, again and again.
async fn come_and_go(controller: Arc<dyn VipuController>, who: u32, rounds: u32) -> CaseOutcome {
    for round in 0..rounds {
        let name = format!("w{who}-{round}");
        let answer = controller.create_partition(request(&name, 2)).await;
        ok("what fits is made, whoever asks at the same time", answer)?;
        let answer = wait_active(&*controller, &id(&name), &patience()).await;
        ok("a partition becomes active", answer)?;
        let answer = ensure_absent(&*controller, &id(&name), Removal::Regular, &patience()).await;
        ok("a partition is removed", answer)?;
    }
    Ok(())
}

/// Eight who never want more than the sixteen IPUs of the Pod, all blocks of one size, so that there is always room.
fn churn(pod: &Pod, rounds: u32) -> JoinSet<CaseOutcome> {
    let mut tasks = JoinSet::new();
    for who in 0..8 {
        tasks.spawn(come_and_go(Arc::clone(&pod.controller), who, rounds));
    }
    tasks
}

/// The first that stopped early, if any.
async fn all_end(tasks: JoinSet<CaseOutcome>) -> CaseOutcome {
    tasks.join_all().await.into_iter().collect()
}

/// What is removed is free again (reference, Calls), whatever others do meanwhile.
async fn whoever_comes_and_goes_leaves_nothing(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    all_end(churn(&pod, 6)).await?;
    pod.is_all_free(16).await
}

/// A listing is of one moment: no partition twice, no IPU in two, nobody left out who is there all the time.
async fn the_listing_is_true_while_partitions_come_and_go(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod64())).await;
    pod.make("stays", 16).await?;
    let looks = Arc::new(AtomicUsize::new(0));
    let mut tasks = churn(&pod, 4);
    for _ in 0..2 {
        let (controller, looks) = (Arc::clone(&pod.controller), Arc::clone(&looks));
        tasks.spawn(async move {
            for _ in 0..24 {
                let seen = listed(&*controller).await?;
                let there = seen.iter().any(|partition| partition.id == id("stays"));
                same("who is there all the time is always listed", &there, &true)?;
                looks.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
    }
    all_end(tasks).await?;
    same("every look was taken", &looks.load(Ordering::Relaxed), &48)?;
    pod.lists_exactly(&["stays"]).await
}

/// A remove starts it, finds it under way (accepted, or refused: both are known of controllers, and `ensure_absent` takes
/// both), or finds it gone.
async fn many_removals_of_one_partition_remove_it(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::steady(Topology::pod16())).await;
    pod.make("p1", 16).await?;
    let mut calls = JoinSet::new();
    for _ in 0..CROWD {
        let controller = Arc::clone(&pod.controller);
        calls.spawn(async move { controller.remove_partition(&id("p1"), false).await });
    }
    let answers = calls.join_all().await;
    let rule = "a removal is begun, under way or over";
    same(
        "one of many removals is done",
        &answers.iter().any(Result::is_ok),
        &true,
    )?;
    for answer in answers.into_iter().filter(Result::is_err) {
        refused(rule, answer, &["not_found", "refused"])?;
    }
    pod.remove("p1", Removal::Regular).await?;
    pod.is_all_free(16).await
}

/// A reset starts it, or is refused while one is under way (FAILED_PRECONDITION, an assumption).
async fn many_resets_of_one_partition_lead_back_to_it(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::steady(Topology::pod16())).await;
    pod.make("p1", 4).await?;
    let before = pod.listed().await?;
    let mut calls = JoinSet::new();
    for _ in 0..CROWD {
        let controller = Arc::clone(&pod.controller);
        calls.spawn(async move { controller.reset_partition(&id("p1")).await });
    }
    let answers = calls.join_all().await;
    same(
        "one of many resets is done",
        &answers.iter().any(Result::is_ok),
        &true,
    )?;
    for answer in answers.into_iter().filter(Result::is_err) {
        refused("a reset is begun, or one is under way", answer, &["refused"])?;
    }
    pod.is_active("p1").await?;
    same("a reset changes nothing else", &pod.listed().await?, &before)
}
