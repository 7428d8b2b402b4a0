//! The status of an IPUJob preserves everything that the core restores from it.

use ipu_core::job::JobStatus;
use ipu_k8s::crd::{IpuJobStatus, Time};
use ipu_testkit::strategies::statuses;
use proptest::prelude::*;

fn through_json(status: &IpuJobStatus) -> IpuJobStatus {
    serde_json::from_value(serde_json::to_value(status).unwrap()).unwrap()
}

proptest! {
    #[test]
    fn a_recorded_status_is_restored(first in statuses(), second in statuses()) {
        let mut status = IpuJobStatus::default();
        status.record(&first);
        prop_assert_eq!(through_json(&status).to_job_status(), first);
        status.record(&second);
        prop_assert_eq!(through_json(&status).to_job_status(), second);
    }
}

#[test]
fn an_empty_status_remembers_nothing() {
    assert_eq!(IpuJobStatus::default().to_job_status(), JobStatus::default());
    let read: IpuJobStatus = serde_json::from_str("{}").unwrap();
    assert_eq!(read, IpuJobStatus::default());
}

#[test]
fn timestamps_are_parsed_with_and_without_fractions_of_seconds() {
    for (text, written) in [
        ("2021-03-22T10:10:31Z", "2021-03-22T10:10:31.000Z"),
        ("2021-03-22T11:10:31.5+01:00", "2021-03-22T10:10:31.500Z"),
    ] {
        let time: Time = text.parse().unwrap();
        assert_eq!(time.to_string(), written);
    }
    for bad in ["", "now", "1969-01-01T00:00:00Z", "2021-03-22"] {
        assert!(bad.parse::<Time>().is_err(), "{bad}");
    }
}
