//! Observation of controllers and owners. Time passes only while all tasks wait.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use ipu_allocator::{Allocator, AllocatorError, Liveness, MemoryStore, ReleaseOutcome};
use ipu_core::allocator::{Claim, Entry, MachinesError, OwnerLiveness, Phase, Release, RepairAction};
use ipu_core::hardware::{IpuPlace, Topology};
use ipu_core::{AgentId, ControllerName, ReasonCode};
use ipu_vipu_client::{ControllerEndpoint, ControllerPool, VipuController, VipuError};
use serde_json::json;
use tokio::time::Instant;

use crate::bed::{Bed, FakeController, name, options, request, soon};

fn lost() -> VipuError {
    VipuError::Unreachable {
        endpoint: "fake".into(),
        detail: "gone".into(),
    }
}

/// The jobs of another system: their claims, and whether they live.
struct Jobs(Mutex<(Vec<Claim>, OwnerLiveness)>);

#[async_trait]
impl Liveness for Jobs {
    async fn liveness_of(&self, _: &Entry) -> OwnerLiveness {
        self.0.lock().unwrap().1
    }

    async fn claims(&self) -> Vec<Claim> {
        self.0.lock().unwrap().0.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn partitions_that_are_not_recorded_are_adopted_by_claims_and_quarantined_without() {
    let (claimed, unclaimed) = (request("claimed", 4), request("unclaimed", 4));
    let jobs = Arc::new(Jobs(Mutex::new((
        vec![claimed.clone().into()],
        OwnerLiveness::Live,
    ))));
    let mut options = options();
    let shared: Arc<dyn Liveness> = Arc::clone(&jobs) as _;
    options.liveness = Arc::new(shared);
    let bed = Bed::with(options).await;
    bed.allocator.check_ready().await.unwrap();
    bed.controller.create_by_hand(&claimed.id, 4);
    let comparison = bed.allocator.compare().await.unwrap();
    assert_eq!(comparison.actions, [(RepairAction::Adopt, claimed.id.clone())]);
    assert_eq!((comparison.quarantined, comparison.unavailable), (0, vec![]));
    bed.controller.create_by_hand(&unclaimed.id, 4);
    // A listing of this moment would be new enough.
    tokio::time::advance(Duration::from_millis(1)).await;
    let comparison = bed.allocator.compare().await.unwrap();
    assert_eq!(
        comparison.actions,
        [(RepairAction::Quarantine, unclaimed.id.clone())]
    );
    assert_eq!(comparison.quarantined, 1);
    bed.controller.silence("remove");
    jobs.0.lock().unwrap().1 = OwnerLiveness::Dead;
    jobs.0.lock().unwrap().0.clear();
    let comparison = bed.allocator.compare().await.unwrap();
    assert_eq!(comparison.actions, [(RepairAction::Release, claimed.id.clone())]);
    assert_eq!(comparison.quarantined, 1);
    assert_eq!(comparison.unfinished[0].0, claimed.id);
}

#[tokio::test(start_paused = true)]
async fn the_first_comparison_waits_for_the_listing_of_each_controller() {
    let bed = Bed::with(options()).await;
    let first = Arc::new(Mutex::new(None));
    let (noted, begun) = (Arc::clone(&first), Instant::now());
    bed.allocator.observe_comparisons(move |comparison| {
        noted
            .lock()
            .unwrap()
            .get_or_insert((comparison.clone(), begun.elapsed()));
    });
    bed.allocator.check_ready().await.unwrap();
    let (comparison, duration) = first.lock().unwrap().clone().unwrap();
    assert_eq!(comparison.unavailable, []);
    assert!(duration < Duration::from_millis(100), "{duration:?}");
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_controller_is_compared_again_sooner() {
    for (is_lost, expected) in [(false, 30), (true, 5)] {
        let mut options = options();
        options.compare_interval = Duration::from_secs(30);
        let bed = Bed::with(options).await;
        bed.allocator.check_ready().await.unwrap();
        if is_lost {
            bed.controller.fail("list", lost());
        }
        bed.allocator.compare_soon();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (times, begun) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
        let noted = Arc::clone(&times);
        bed.allocator.observe_comparisons(move |comparison| {
            let unavailable = comparison.unavailable.first().map(|(name, _)| name.to_string());
            noted
                .lock()
                .unwrap()
                .push((begun.elapsed().as_secs_f64().round() as u64, unavailable));
        });
        tokio::time::sleep(Duration::from_secs(31)).await;
        let (first, unavailable) = times.lock().unwrap()[0].clone();
        assert_eq!(unavailable.is_some(), is_lost);
        assert!(first.abs_diff(expected) <= 1, "{is_lost}: {first}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_controller_is_unavailable_until_it_replies() {
    let mut options = options();
    options.listing_interval = Duration::from_secs(1);
    let bed = Bed::with(options).await;
    bed.allocator.check_ready().await.unwrap();
    bed.controller.silence("list");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let begun = Instant::now();
    let view = bed.allocator.fresh_view().await.unwrap();
    assert!(
        begun.elapsed() <= Duration::from_millis(1_100),
        "{:?}",
        begun.elapsed()
    );
    let reason = view.hardware().controllers[0].listing.as_ref().err().unwrap();
    assert_eq!(reason.message, "controller fake has not replied within 1s");
    // The next view does not wait for it.
    let begun = Instant::now();
    bed.allocator.fresh_view().await.unwrap();
    assert!(
        begun.elapsed() < Duration::from_millis(100),
        "{:?}",
        begun.elapsed()
    );
    bed.controller.resume("list");
    tokio::time::sleep(Duration::from_secs(15)).await;
    let view = bed.allocator.fresh_view().await.unwrap();
    assert!(view.hardware().controllers[0].listing.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_controller_whose_client_panics_is_listed_again() {
    let mut options = options();
    options.listing_interval = Duration::from_secs(1);
    let bed = Bed::with(options).await;
    for method in ["list", "attributes"] {
        *bed.controller.panics.lock().unwrap() = Some(method);
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(*bed.controller.panics.lock().unwrap(), None, "{method}");
        let by_hand = format!("hand-{method}").parse().unwrap();
        bed.controller.create_by_hand(&by_hand, 8);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let view = bed.allocator.view().await.unwrap();
        assert!(view.hardware().find(&by_hand).is_some(), "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_was_requested_before_a_removal_does_not_bring_the_partition_back() {
    // The removal comes after the request of the listing or with it, and the listing is late or not.
    for (millis, seconds) in [(0, 0), (0, 2), (10, 0), (10, 2)] {
        let (fake, second) = (
            Arc::new(FakeController::default()),
            ControllerName::new("second").unwrap(),
        );
        let mut options = options();
        options
            .topologies
            .insert(second.clone(), "pod16".parse().unwrap());
        let other = Arc::new(FakeController::default());
        let members = [(name(), Arc::clone(&fake)), (second, Arc::clone(&other))];
        let pool = ControllerPool::new(members.map(|(name, one)| (name, one as Arc<dyn VipuController>)));
        let allocator = Allocator::start(options, Arc::new(MemoryStore::default()), pool);
        allocator.leading().wait_for(|leading| *leading).await.unwrap();
        let mut one = request("one", 4);
        one.pin.controller = Some(name());
        allocator.ensure(one.clone(), soon()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        fake.silence("list");
        let release = async {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            let released = allocator.release(Release::of(&one), soon()).await.unwrap();
            assert_eq!(released, ReleaseOutcome::Gone);
            // The other controller is listed again meanwhile.
            tokio::time::sleep(Duration::from_millis(300)).await;
            let view = tokio::time::timeout(Duration::from_millis(300), allocator.fresh_view());
            assert!(view.await.is_err());
            assert_eq!((fake.count("list"), other.count("list")), (2, 3));
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            // A newer listing would repair an old one.
            fake.reply("list");
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let (listed, ()) = tokio::join!(allocator.fresh_view(), release);
        listed.unwrap();
        let stats = allocator.view().await.unwrap().stats();
        assert_eq!((stats.available, stats.foreign), (32, 0), "{millis} {seconds}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_hardware_is_read_again_at_its_age() {
    let mut options = options();
    options.listing_interval = Duration::from_secs(1);
    let bed = Bed::with(options).await;
    bed.allocator.check_ready().await.unwrap();
    tokio::time::sleep(Duration::from_millis(9_500)).await;
    assert_eq!(bed.controller.count("attributes"), 1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(bed.controller.count("attributes"), 2);
    assert!(bed.controller.count("list") >= 10);
}

#[tokio::test(start_paused = true)]
async fn a_configured_topology_counts_and_the_reported_health_if_they_match() {
    let pod16: Topology = "pod16".parse().unwrap();
    let pod64: Topology = "pod64".parse().unwrap();
    // Configured, reported, total, unhealthy.
    let cases = [
        (None, Some(&pod16), 16, 1),
        (Some(&pod16), None, 16, 0),
        (Some(&pod16), Some(&pod16), 16, 1),
        (Some(&pod64), Some(&pod16), 64, 0),
    ];
    for (configured, reported, total, unhealthy) in cases {
        let mut options = options();
        options.topologies = configured
            .map(|topology| (name(), topology.clone()))
            .into_iter()
            .collect();
        let controller = Arc::new(FakeController::default());
        if let Some(topology) = reported {
            controller.report(topology);
        }
        let pool = ControllerPool::single(name(), controller as Arc<dyn VipuController>);
        let allocator = Allocator::start(options, Arc::new(MemoryStore::default()), pool);
        allocator.leading().wait_for(|leading| *leading).await.unwrap();
        let stats = allocator.fresh_view().await.unwrap().stats();
        assert_eq!((stats.ipus, stats.unhealthy), (total, unhealthy));
    }
}

#[tokio::test(start_paused = true)]
async fn controllers_that_are_added_and_removed_are_listed_and_forgotten() {
    let bed = Bed::with(options()).await;
    bed.allocator.check_ready().await.unwrap();
    let (first, second): (ControllerEndpoint, ControllerEndpoint) =
        ("localhost:1".parse().unwrap(), "localhost:2".parse().unwrap());
    let controllers = Mutex::new(BTreeMap::new());
    let connect = |endpoint: &ControllerEndpoint| {
        let one = Arc::new(FakeController::default());
        controllers
            .lock()
            .unwrap()
            .insert(endpoint.name().clone(), Arc::clone(&one));
        Ok::<_, VipuError>(one as Arc<dyn VipuController>)
    };
    let pool = bed.allocator.pool().clone();
    pool.replace(&[first.clone(), second.clone()], connect).unwrap();
    pool.forget(&name());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let names = |view: &ipu_allocator::View| -> Vec<(ControllerName, bool)> {
        let views = view.hardware().controllers.iter();
        views
            .map(|view| (view.name.clone(), view.listing.is_ok()))
            .collect()
    };
    let view = bed.allocator.fresh_view().await.unwrap();
    let (one, two) = (first.name().clone(), second.name().clone());
    assert_eq!(names(&view), [(one.clone(), true), (two.clone(), true)]);
    let before = bed.controller.count("list");
    pool.replace(&[first], connect).unwrap();
    pool.forget(&two);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(
        names(&bed.allocator.fresh_view().await.unwrap()),
        [(one.clone(), true)]
    );
    assert_eq!(bed.controller.count("list"), before);
    // A second name of a controller takes no partitions.
    pool.set_same_as(&one, Some(two));
    let view = bed.allocator.fresh_view().await.unwrap();
    assert_eq!(names(&view), [(one, false)]);
}

// Machines.

fn agents(numbers: &[usize]) -> Vec<AgentId> {
    let topology: Topology = "pod16".parse().unwrap();
    let all: Vec<AgentId> = topology.agents().map(|(agent, _)| agent.clone()).collect();
    numbers.iter().map(|number| all[*number].clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_request_for_machines_keeps_its_recorded_constraint() {
    let bed = Bed::with(options()).await;
    let mut one = request("one", 4);
    let pin = bed.allocator.pin_to_machines(&one, &agents(&[1])).await.unwrap();
    assert_eq!(pin.controller, Some(name()));
    assert_eq!(
        pin.ipus,
        (4..8)
            .map(|ipu| IpuPlace { link_domain: 0, ipu })
            .collect::<Vec<_>>()
    );
    one.pin = pin.clone();
    let entry = bed.ensure(&one).await;
    assert_eq!((entry.phase.clone(), &entry.places), (Phase::Active, &pin.ipus));
    let again = async |machines: &[usize]| bed.allocator.pin_to_machines(&one, &agents(machines)).await;
    assert_eq!(again(&[1]).await.unwrap(), pin);
    assert!(matches!(
        again(&[2]).await,
        Err(AllocatorError::OtherMachines { .. })
    ));
    // The recorded one stands while the controller is unavailable, but there is none for another request.
    bed.controller.fail("list", lost());
    bed.allocator.fresh_view().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    bed.allocator.fresh_view().await.unwrap();
    assert_eq!(again(&[1]).await.unwrap(), pin);
    let other = bed
        .allocator
        .pin_to_machines(&request("two", 4), &agents(&[1]))
        .await;
    let is_unavailable = matches!(
        other,
        Err(AllocatorError::Machines(MachinesError::Unavailable { .. }))
    );
    assert!(is_unavailable, "{other:?}");
    // Another owner is not bound by the record.
    let mut stranger = one.clone();
    stranger.owner = request("stranger", 4).owner;
    let pinned = bed.allocator.pin_to_machines(&stranger, &agents(&[1])).await;
    assert!(matches!(pinned, Err(AllocatorError::Machines(_))), "{pinned:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_without_machines_cannot_get_some_later() {
    let bed = Bed::with(options()).await;
    let one = request("one", 4);
    bed.ensure(&one).await;
    let pinned = bed.allocator.pin_to_machines(&one, &agents(&[0])).await;
    assert!(
        matches!(pinned, Err(AllocatorError::OtherMachines { .. })),
        "{pinned:?}"
    );
    bed.controller.fail("list", lost());
    tokio::time::sleep(Duration::from_secs(1)).await;
    bed.allocator.fresh_view().await.unwrap();
    let pinned = bed.allocator.pin_to_machines(&one, &agents(&[0])).await;
    assert!(matches!(pinned, Err(AllocatorError::Machines(_))), "{pinned:?}");
}

#[tokio::test(start_paused = true)]
async fn a_quarantined_partition_is_given_only_to_a_request_for_its_machines() {
    let bed = Bed::with(options()).await;
    bed.allocator.check_ready().await.unwrap();
    let one = request("one", 4);
    bed.controller.create_by_hand(&one.id, 4);
    bed.allocator.compare().await.unwrap();
    let entry = bed.allocator.get(&one.id).await.unwrap().unwrap();
    assert_eq!(entry.phase, Phase::Quarantined);
    let pin = bed.allocator.pin_to_machines(&one, &agents(&[0])).await.unwrap();
    assert_eq!(pin.ipus, entry.places);
    let elsewhere = bed.allocator.pin_to_machines(&one, &agents(&[1])).await;
    assert!(
        matches!(elsewhere, Err(AllocatorError::OtherMachines { .. })),
        "{elsewhere:?}"
    );
}

// Reasons.

fn entry(phase: serde_json::Value, controller: Option<&str>) -> Entry {
    let mut entry = json!({"id": "a", "spec": {"size": 1}, "phase": phase, "ticket": 1, "since": 1});
    if let Some(controller) = controller {
        entry["controller"] = controller.into();
    }
    serde_json::from_value(entry).unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_partition_that_is_not_ready_has_its_reason() {
    let bed = Bed::with(options()).await;
    bed.allocator.check_ready().await.unwrap();
    let is = |phase: &str| json!({ "is": phase });
    let failed = json!({"is": "failed", "errors": ["one", "two"]});
    let cases = [
        (entry(is("active"), Some("fake")), None),
        (entry(is("queued"), None), None),
        (
            entry(failed, Some("fake")),
            Some((ReasonCode::PartitionFailed, "one; two")),
        ),
        (
            entry(is("quarantined"), Some("fake")),
            Some((
                ReasonCode::Quarantined,
                "the partition was found and has no known owner",
            )),
        ),
        (
            entry(is("creating"), Some("fake")),
            Some((
                ReasonCode::Creating,
                "controller fake has not confirmed that the partition is created",
            )),
        ),
        (
            entry(is("resetting"), Some("fake")),
            Some((
                ReasonCode::Resetting,
                "controller fake has not confirmed that the partition is reset",
            )),
        ),
        (
            entry(is("releasing"), None),
            Some((ReasonCode::Releasing, "the partition is being removed")),
        ),
        (
            entry(is("releasing"), Some("other")),
            Some((
                ReasonCode::UnknownController,
                "controller other is no longer configured",
            )),
        ),
    ];
    for (entry, expected) in cases {
        let reason = bed.allocator.reason(&entry);
        let expected = expected.map(|(code, message)| (code, message.to_owned()));
        assert_eq!(reason.map(|reason| (reason.code, reason.message)), expected);
    }
    let mut unconfirmed = entry(is("active"), Some("fake"));
    unconfirmed.unconfirmed = true;
    assert_eq!(
        bed.allocator.reason(&unconfirmed).unwrap().code.as_str(),
        "NotConfirmed"
    );
    // The failed listing, and then the failed call.
    bed.controller.silence("list");
    tokio::time::sleep(Duration::from_secs(1)).await;
    bed.allocator.fresh_view().await.unwrap();
    let creating = entry(is("creating"), Some("fake"));
    let silent = "controller fake has not replied within 1s";
    assert_eq!(bed.allocator.reason(&creating).unwrap().message, silent);
    bed.allocator.pool().record(&name(), &Err::<(), _>(lost()));
    let unavailable = "controller fake is unavailable: no reply from fake: gone";
    assert_eq!(bed.allocator.reason(&creating).unwrap().message, unavailable);
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_is_not_answered_is_unfinished_with_its_reason() {
    let bed = Bed::with(options()).await;
    bed.allocator.check_ready().await.unwrap();
    bed.controller.silence("create");
    let one = request("one", 4);
    let begun = Instant::now();
    let entry = bed.ensure_until(&one, begun + Duration::from_secs(3)).await;
    assert_eq!(
        (entry.phase.clone(), begun.elapsed().as_secs()),
        (Phase::Creating, 3)
    );
    let comparison = bed.allocator.compare().await.unwrap();
    let [(id, reason)] = &comparison.unfinished[..] else {
        panic!("{comparison:?}")
    };
    assert_eq!((id, reason.code.as_str()), (&one.id, "Creating"));
    // After its deadline, the call counts against the controller.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let health = bed.allocator.pool().member(&name()).unwrap().health;
    assert_eq!(health.consecutive_failures, 1);
    let error = health.last_error.unwrap().to_string();
    assert_eq!(
        error,
        "no reply from fake within 10s; the operation may have been done"
    );
    let reason = bed.allocator.reason(&entry).unwrap();
    assert_eq!(reason.message, format!("controller fake is unavailable: {error}"));
}
