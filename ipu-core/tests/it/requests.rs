//! How many instances of a job request their partition at once.

use ipu_core::{
    Effect, InstanceFacts, InstanceOutcome, InstanceStatus, Limits, Observation, PartitionFacts, RawJob,
    Reason, Timestamp, check_plan, plan,
};

#[test]
fn an_instance_that_has_ended_leaves_its_request_to_the_others() {
    let raw: RawJob = serde_json::from_str(
        r#"{"metadata": {"name": "a", "uid": "1"}, "spec": {"ipusPerJobInstance": "4", "jobInstances": 2}}"#,
    )
    .unwrap();
    let job = raw.parse(&Limits::default().with_max_requested(1)).unwrap().spec;
    let mut seen = Observation::for_new_job(Timestamp::from_millis(0));
    // A copy of the ledger was restored that does not know the owner of the first partition.
    let mut first = InstanceFacts::empty(0);
    first.partition = PartitionFacts::Waiting {
        reason: Reason::new("Quarantined", "the ledger does not know its owner"),
        attempt: 0,
    };
    seen.instances = [first, InstanceFacts::empty(1)].into();
    let requests = |seen: &Observation| {
        let plan = plan(&job, seen);
        assert_eq!(check_plan(&job, seen, &plan), []);
        let second = |effect: &&Effect| matches!(effect, Effect::EnsurePartition { instance: 1, .. });
        plan.effects.iter().filter(second).count()
    };
    assert_eq!(requests(&seen), 0);
    let mut ended = InstanceStatus::new(0);
    ended.outcome = Some(InstanceOutcome::Failed(1));
    seen.status.instances = [ended, InstanceStatus::new(1)].into();
    assert_eq!(requests(&seen), 1);
}
