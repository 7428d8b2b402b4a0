//! Records the partitions of the controllers continuously, and checks the quotas.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::history::{ListedPartition, Listing, Record};
use super::{Harness, NAMESPACES, QUOTA};

/// Interval between two queries of a controller: below the duration of a reset
/// ([`OPERATION_TIME`](super::processes::OPERATION_TIME)), so that each reset is seen.
const QUERY_INTERVAL: Duration = Duration::from_millis(10);
/// Longest interval between two records of unchanged partitions.
const RECORD_INTERVAL: Duration = Duration::from_millis(100);

/// Records the partitions of each controller, and checks the quotas, until all operations are done.
pub(super) async fn run(harness: Arc<Harness>) {
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..harness.simulators.len() {
        tasks.spawn(record_listings(Arc::clone(&harness), number));
    }
    tasks.spawn(check_quotas(Arc::clone(&harness)));
    tasks.join_all().await;
}

async fn record_listings(harness: Arc<Harness>, number: usize) {
    let (simulator, controller) = (&harness.simulators[number], &harness.controller_names[number]);
    let mut last: Option<(Vec<ListedPartition>, Instant)> = None;
    while harness.remaining.load(Ordering::SeqCst) > 0 {
        let invoked = harness.history.now();
        if let Some(partitions) = simulator.partitions().await {
            let returned = harness.history.now();
            let is_known = last
                .as_ref()
                .is_some_and(|(same, at)| *same == partitions && at.elapsed() < RECORD_INTERVAL);
            if !is_known {
                last = Some((partitions.clone(), Instant::now()));
                harness.history.append(&Record::Listing(Listing {
                    controller: controller.clone(),
                    invoked,
                    returned,
                    partitions,
                }));
            }
        }
        tokio::time::sleep(QUERY_INTERVAL).await;
    }
}

async fn check_quotas(harness: Arc<Harness>) {
    while harness.remaining.load(Ordering::SeqCst) > 0 {
        if let Some(stats) = harness.proxy.stats().await {
            for number in 0..NAMESPACES {
                let used = stats[format!("ns{number}")]["used"].as_u64().unwrap_or(0);
                assert!(used <= u64::from(QUOTA), "ns{number} holds {used} IPUs: {stats}");
            }
        }
        tokio::time::sleep(RECORD_INTERVAL).await;
    }
}
