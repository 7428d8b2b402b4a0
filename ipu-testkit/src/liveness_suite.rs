//! Conformance suite for [`Liveness`]: what the allocator relies on.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use ipu_allocator::Liveness;
use ipu_core::allocator::{Entry, OwnerLiveness, Request};
use serde_json::json;

use crate::conformance::{CaseError, CaseOutcome, Runner, SuiteReport, broken, check_eq};

/// Time limit for the end of an owner to be observed.
const OBSERVED_WITHIN: Duration = Duration::from_secs(30);

/// Pause between two questions.
const PAUSE: Duration = Duration::from_millis(5);

/// The system under test: it starts and ends owners, and reports which are alive.
#[async_trait]
pub trait LivenessBench: Send + Sync + 'static {
    /// Returns the liveness under test.
    fn liveness(&self) -> Arc<dyn Liveness>;

    /// Starts an owner with this name. Returns the request for its partition as it sends it, with
    /// [`holder`](Request::holder).
    async fn start_owner(&self, name: &str) -> Request;

    /// Ends the owner that sent `request`, as the worst failure does: without any clean-up.
    async fn end_owner(&self, request: &Request);
}

/// Runs all cases in sequence. `start` is called once for each case.
///
/// # Panics
///
/// If a rule is broken: after the last case, with all broken rules.
pub async fn liveness_suite<B, F>(start: impl Fn() -> F) -> SuiteReport
where
    B: LivenessBench,
    F: Future<Output = B> + Send + 'static,
{
    let mut runner = Runner::new("liveness_suite");
    macro_rules! run {
        ($($case:ident),* $(,)?) => {
            $({
                let started = start();
                let case = async move { $case(&started.await).await };
                runner.run(stringify!($case), case).await;
            })*
        };
    }
    run![
        a_running_owner_is_live,
        an_ended_owner_becomes_and_stays_dead,
        the_end_of_an_owner_leaves_another_live,
        a_successor_of_the_same_name_is_another_owner,
        concurrent_questions_get_the_same_answer,
    ];
    match runner.finish(&[]) {
        Ok(report) => report,
        Err(failure) => panic!("the liveness does not conform\n{failure}"),
    }
}

async fn a_running_owner_is_live(bench: &dyn LivenessBench) -> CaseOutcome {
    let entry = entry(&bench.start_owner("a").await);
    for _ in 0..20 {
        check_live(bench, &entry).await?;
    }
    Ok(())
}

async fn an_ended_owner_becomes_and_stays_dead(bench: &dyn LivenessBench) -> CaseOutcome {
    let request = bench.start_owner("a").await;
    bench.end_owner(&request).await;
    let entry = entry(&request);
    wait_until_dead(bench, &entry).await?;
    for _ in 0..20 {
        let liveness = bench.liveness().liveness_of(&entry).await;
        check_eq("a dead owner stays dead", &liveness, &OwnerLiveness::Dead)?;
    }
    let claims = bench.liveness().claims().await;
    let is_claimed = claims
        .iter()
        .any(|claim| claim.request.id == request.id && claim.request.owner == request.owner);
    check_eq("a dead owner claims no partition", &is_claimed, &false)
}

async fn the_end_of_an_owner_leaves_another_live(bench: &dyn LivenessBench) -> CaseOutcome {
    let (ended, running) = (bench.start_owner("a").await, bench.start_owner("b").await);
    bench.end_owner(&ended).await;
    wait_until_dead(bench, &entry(&ended)).await?;
    check_live(bench, &entry(&running)).await
}

async fn a_successor_of_the_same_name_is_another_owner(bench: &dyn LivenessBench) -> CaseOutcome {
    let ended = bench.start_owner("a").await;
    bench.end_owner(&ended).await;
    let successor = bench.start_owner("a").await;
    check_live(bench, &entry(&successor)).await?;
    wait_until_dead(bench, &entry(&ended)).await?;
    check_live(bench, &entry(&successor)).await
}

async fn concurrent_questions_get_the_same_answer(bench: &dyn LivenessBench) -> CaseOutcome {
    let entry = entry(&bench.start_owner("a").await);
    join_all((0..50).map(|_| check_live(bench, &entry)))
        .await
        .into_iter()
        .collect()
}

async fn check_live(bench: &dyn LivenessBench, entry: &Entry) -> CaseOutcome {
    let liveness = bench.liveness().liveness_of(entry).await;
    check_eq("a running owner is live", &liveness, &OwnerLiveness::Live)
}

async fn wait_until_dead(bench: &dyn LivenessBench, entry: &Entry) -> CaseOutcome {
    let poll = async {
        while bench.liveness().liveness_of(entry).await != OwnerLiveness::Dead {
            tokio::time::sleep(PAUSE).await;
        }
    };
    let expected = format!("within {OBSERVED_WITHIN:?}");
    let waited = tokio::time::timeout(OBSERVED_WITHIN, poll).await;
    waited.map_err(|_| -> CaseError { broken("an ended owner becomes dead", expected, "it is not") })
}

/// Returns the entry of an active partition of this request.
fn entry(request: &Request) -> Entry {
    let entry = json!({
        "id": request.id, "owner": request.owner, "instance": request.instance, "attempt": request.attempt,
        "spec": request.spec, "holder": request.holder, "phase": {"is": "active"}, "ticket": 1, "since": 1, "heldSince": 1,
    });
    serde_json::from_value(entry).expect("the form of an entry")
}
