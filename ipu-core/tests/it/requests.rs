//! The limit of concurrent partition requests of a job.

use ipu_core::job::{
    Effect, InstanceFacts, InstanceOutcome, InstanceStatus, Limits, Observation, PartitionFacts, RawJob,
    check_plan, plan,
};
use ipu_core::{Reason, ReasonCode, Timestamp};

#[test]
fn an_ended_instance_does_not_count_against_the_request_limit() {
    let raw: RawJob = serde_json::from_str(
        r#"{"metadata": {"name": "a", "uid": "1"}, "spec": {"ipusPerJobInstance": "4", "jobInstances": 2}}"#,
    )
    .unwrap();
    let job = raw.parse(&Limits::default().with_max_requested(1)).unwrap().spec;
    let mut observation = Observation::for_new_job(Timestamp::from_millis(0));
    // The restored ledger does not know the owner of the first partition.
    let mut first = InstanceFacts::empty(0);
    first.partition = PartitionFacts::Waiting {
        reason: Reason::new(ReasonCode::Quarantined, "the ledger does not know its owner"),
        attempt: 0,
    };
    observation.instances = [first, InstanceFacts::empty(1)].into();
    let requests = |observation: &Observation| {
        let plan = plan(&job, observation);
        assert_eq!(check_plan(&job, observation, &plan), []);
        let second = |effect: &&Effect| matches!(effect, Effect::EnsurePartition { instance: 1, .. });
        plan.effects.iter().filter(second).count()
    };
    assert_eq!(requests(&observation), 0);
    let mut ended = InstanceStatus::new(0);
    ended.outcome = Some(InstanceOutcome::Failed(1));
    observation.status.instances = [ended, InstanceStatus::new(1)].into();
    assert_eq!(requests(&observation), 1);
}
