//! Conformance suite of controllers: the fake one passes, and every mutant is detected.

mod broken;
mod caught;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::PartitionId;
use ipu_testkit::{
    CallFault, CallKind, ControllerBench, FakeController, Fault, FaultSupport, Setup, SuiteReport,
    controller_suite,
};
use ipu_vipu_client::VipuController;

/// The example of the guide: a minimal fixture.
mod least {
    use super::*;

    struct Mine(FakeController);

    #[async_trait]
    impl ControllerBench for Mine {
        async fn start(setup: Setup) -> Self {
            let controller = FakeController::new(&setup.topology, 1);
            controller.set_operation_time(setup.operation);
            Self(controller)
        }

        fn controller(&self) -> Arc<dyn VipuController> {
            Arc::new(self.0.clone())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_fixture_with_two_methods_runs_all_cases_that_need_no_more() {
        let report = controller_suite::<Mine>().await;
        let skipped = names_of_skipped(&report);
        assert_eq!(skipped.len(), 15, "{report}");
        assert!(report.ran.len() > 40, "{report}");
        assert!(report.skipped.iter().all(|one| one.reason.contains("fixture")));
    }
}

/// Fake controller with every capability of a fixture.
struct Fake(FakeController);

fn names_of_skipped(report: &SuiteReport) -> Vec<&'static str> {
    report.skipped.iter().map(|one| one.case).collect()
}

fn inject(controller: &FakeController, kind: CallKind, fault: CallFault) -> FaultSupport {
    let fault = match fault {
        CallFault::LostRequest | CallFault::Unavailable => Fault::Broken,
        CallFault::LostReply => Fault::LostReply,
        CallFault::Twice => Fault::Duplicate,
        CallFault::Delayed(by) => Fault::Slow(by),
        _ => return FaultSupport::Unsupported,
    };
    controller.inject(kind, fault);
    FaultSupport::Done
}

#[async_trait]
impl ControllerBench for Fake {
    async fn start(setup: Setup) -> Self {
        let controller = FakeController::new(&setup.topology, 1);
        controller.set_operation_time(setup.operation);
        Self(controller)
    }

    fn controller(&self) -> Arc<dyn VipuController> {
        Arc::new(self.0.clone())
    }

    async fn inject(&self, kind: CallKind, fault: CallFault) -> FaultSupport {
        inject(&self.0, kind, fault)
    }

    async fn set_operation_time(&self, operation: Duration) -> FaultSupport {
        self.0.set_operation_time(operation);
        FaultSupport::Done
    }

    async fn break_partition(&self, id: &PartitionId) -> FaultSupport {
        self.0.break_partition(id);
        FaultSupport::Done
    }

    async fn restart(&self) -> FaultSupport {
        self.0.start_outage();
        self.0.end_outage();
        FaultSupport::Done
    }

    async fn stop(&self) -> FaultSupport {
        self.0.start_outage();
        FaultSupport::Done
    }
}

#[tokio::test(start_paused = true)]
async fn the_fake_controller_conforms() {
    let report = controller_suite::<Fake>().await;
    // The suite calls it without a transport, so only its reply ends a call.
    let deadlines = [
        "silence_is_an_ambiguous_timeout",
        "a_late_reply_is_an_ambiguous_timeout",
    ];
    assert_eq!(names_of_skipped(&report), deadlines, "{report}");
}
