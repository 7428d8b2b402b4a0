//! Answers to owners, while partitions change behind them.

use ipu_allocator::AllocatorError;
use ipu_core::allocator::{Phase, Release, Request};

use crate::bed::{Bed, request, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_request_for_a_lost_partition_is_answered_that_it_failed() {
    let bed = Bed::start().await;
    let request = request("one", 4);
    assert_eq!(bed.ensure(&request).await.phase, Phase::Active);
    bed.controller.partitions().clear();
    let answered = bed.ensure(&request).await;
    assert!(matches!(answered.phase, Phase::Failed { .. }), "{answered:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_ipuof_configuration_has_the_number_of_its_gcd() {
    let bed = Bed::start().await;
    let mut one = request("one", 4);
    let mut two = request("two", 4);
    (one.spec.replicas, two.spec.gcds, two.spec.replicas) = (2, 2, 2);
    let cases: [(&Request, Option<u32>, &[&str]); 5] = [
        (&one, None, &["0"]),
        (&one, Some(0), &["0"]),
        (&two, None, &["0", "1"]),
        (&two, Some(0), &["0"]),
        (&two, Some(1), &["1"]),
    ];
    for (request, gcd, expected) in cases {
        let entry = bed.ensure(request).await;
        let config = bed.allocator.ipuof_config(&entry, gcd).await.unwrap();
        let ids: Vec<&str> = config
            .gcds
            .iter()
            .map(|gcd| gcd.attributes["GCD Id"].as_str())
            .collect();
        assert_eq!(ids, expected, "{} {gcd:?}", request.id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_devices_of_a_partition_that_is_not_the_expected_one_any_more_are_not_answered() {
    // It is reset, released, or released and requested by the owner again, while the controller answers.
    for changes in 0..3 {
        let bed = Bed::start().await;
        let request = request("one", 4);
        let entry = bed.ensure(&request).await;
        let (allocator, runtime) = (bed.allocator.clone(), tokio::runtime::Handle::current());
        let during = move || {
            let (allocator, mut request) = (allocator.clone(), request.clone());
            let change = async move {
                if changes > 0 {
                    allocator.release(Release::of(&request), soon()).await.unwrap();
                }
                request.attempt += 1;
                if changes != 1 {
                    allocator.ensure(request, soon()).await.unwrap();
                }
            };
            tokio::task::block_in_place(|| runtime.block_on(change));
        };
        assert!(bed.controller.meanwhile.set(Box::new(during)).is_ok());
        let answer = bed.allocator.ipuof_config(&entry, None).await;
        let now = bed.allocator.cached(&entry.id);
        let is_refused = matches!(answer, Err(AllocatorError::NotActive { .. }));
        assert!(is_refused, "{changes}: {answer:?}, {entry:?}, then {now:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_devices_of_a_partition_that_is_reset_are_not_answered() {
    let bed = Bed::start().await;
    let request = request("one", 4);
    let entry = bed.ensure(&request).await;
    bed.controller.silence("reset");
    let (allocator, runtime) = (bed.allocator.clone(), tokio::runtime::Handle::current());
    let during = move || {
        let reset = allocator.ensure(request.clone().with_attempt(1), tokio::time::Instant::now());
        tokio::task::block_in_place(|| runtime.block_on(reset)).unwrap();
    };
    assert!(bed.controller.meanwhile.set(Box::new(during)).is_ok());
    let answer = bed.allocator.ipuof_config(&entry, None).await.unwrap_err();
    assert_eq!(
        answer.to_string(),
        format!("partition {} is resetting, not active", entry.id)
    );
}
