//! The conformance suite of a [`VipuController`]: what every controller and every transport to one must do.
//!
//! Whoever brings a transport, a wrapper or a controller of his own implements [`ControllerBench`] and calls
//! [`controller_suite`] in a test. The suite asks for nothing that the trait and the reference of the V-IPU user API do not
//! promise, or mark as an assumption there; the comment of each case says what it rests on.

mod concurrency;
mod crashes;
mod errors;
mod fault_injection;
mod harness;
mod ledger_on_controller;
mod lifecycle;
mod listing;
mod lost_replies;
mod transport;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::{PartitionId, Topology};
use ipu_vipu_client::VipuController;

use crate::conformance::{Runner, SuiteFailure, SuiteReport};
use harness::Harness;

/// How long one call may take unless a case is about that: nothing in a test takes so long.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The controller that a case starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Setup {
    /// The Pod: all of it free and healthy.
    pub topology: Topology,
    /// How long create, reset and remove take. Zero means as fast as may be; an hour means that they do not end within
    /// the case.
    pub operation: Duration,
    /// The deadline that a transport is to give each call. Who has none ignores it.
    pub deadline: Duration,
    /// Whether [`ControllerBench::restart`] is going to be called.
    pub memory: Persistence,
}

/// What becomes of a controller's knowledge when it is restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Persistence {
    /// The case does not restart it: the quickest will do.
    Volatile,
    /// The case restarts it, and it has to know its partitions afterwards.
    Durable,
}

impl Setup {
    /// A controller of `topology` whose operations take `operation`.
    fn new(topology: Topology, operation: Duration) -> Self {
        Self {
            topology,
            operation,
            deadline: TIMEOUT,
            memory: Persistence::Volatile,
        }
    }

    /// Operations take no time.
    fn quick(topology: Topology) -> Self {
        Self::new(topology, Duration::ZERO)
    }

    /// Operations take so long that they are seen under way, and end.
    fn steady(topology: Topology) -> Self {
        Self::new(topology, Duration::from_millis(20))
    }

    /// Operations never end within a case.
    fn slow(topology: Topology) -> Self {
        Self::new(topology, Duration::from_secs(3600))
    }
}

/// A call of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallKind {
    /// [`VipuController::create_partition`].
    Create,
    /// [`VipuController::reset_partition`].
    Reset,
    /// [`VipuController::remove_partition`].
    Remove,
    /// [`VipuController::partition_status`].
    Status,
    /// [`VipuController::list_partitions`].
    List,
    /// Any other.
    Other,
}

/// What happens to a call on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallFault {
    /// It is not done, and the connection breaks.
    LostRequest,
    /// It is done, and the connection breaks before the reply.
    LostReply,
    /// It is done twice, one after the other; either reply is heard.
    Twice,
    /// It is not done, and the answer is that the controller is unavailable (gRPC UNAVAILABLE).
    Unavailable,
    /// It is not done, and never answered.
    Silence,
    /// It is done and answered this much later.
    Delayed(Duration),
}

/// Whether a bench could do what a case asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultSupport {
    /// It is done.
    Done,
    /// This bench cannot do that: the case is reported as one that could not run.
    Unsupported,
}

/// Starts the controllers that [`controller_suite`] looks at.
///
/// [`start`](Self::start) and [`controller`](Self::controller) are all that is needed. The suite loses, repeats and delays
/// calls between itself and the controller by its own means; the other methods let it also do so behind a transport, where
/// the transport has to tell what became of a call.
#[async_trait]
pub trait ControllerBench: Send + Sync + 'static {
    /// A fresh controller as `setup` says, without partitions. It ends when the bench is dropped.
    ///
    /// # Panics
    ///
    /// If it cannot be started: that is reported with the case.
    async fn start(setup: Setup) -> Self
    where
        Self: Sized;

    /// The way to the controller, the same for every call of this method.
    fn controller(&self) -> Arc<dyn VipuController>;

    /// `fault` strikes the next call of `kind`, once. What is injected for the same kind strikes in order.
    async fn inject(&self, _kind: CallKind, _fault: CallFault) -> FaultSupport {
        FaultSupport::Unsupported
    }

    /// Create, reset and remove take this long from now on.
    async fn set_operation_time(&self, _operation: Duration) -> FaultSupport {
        FaultSupport::Unsupported
    }

    /// The partition, which is active, goes into error, and stays there for some time.
    async fn break_partition(&self, _id: &PartitionId) -> FaultSupport {
        FaultSupport::Unsupported
    }

    /// The controller ends, and starts again at the same place with what it knew ([`Persistence::Durable`] was asked for).
    /// [`controller`](Self::controller) reaches it as before.
    async fn restart(&self) -> FaultSupport {
        FaultSupport::Unsupported
    }

    /// The controller ends, and there is nothing in its place.
    async fn stop(&self) -> FaultSupport {
        FaultSupport::Unsupported
    }

    /// The longest that one call takes before it is answered with a timeout: [`Setup::deadline`] if it was passed on;
    /// none if a call may take for ever.
    fn deadline(&self) -> Option<Duration> {
        None
    }
}

/// Runs all cases over controllers that `B` starts, one after another.
///
/// On tokio's multi-threaded runtime crowds of calls are really at the same time; on the single-threaded one they still
/// meet wherever the controller waits.
///
/// ```
/// use std::sync::Arc;
///
/// use ipu_testkit::{ControllerBench, FakeController, Setup, controller_suite};
/// use ipu_vipu_client::VipuController;
///
/// // Here stands the controller that comes with this crate where yours would.
/// struct Mine(FakeController);
///
/// #[async_trait::async_trait]
/// impl ControllerBench for Mine {
///     async fn start(setup: Setup) -> Self {
///         let controller = FakeController::new(&setup.topology, 1);
///         controller.operation(setup.operation);
///         Self(controller)
///     }
///
///     fn controller(&self) -> Arc<dyn VipuController> {
///         Arc::new(self.0.clone())
///     }
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime").block_on(async {
/// // In a test of yours, under `#[tokio::test]`:
/// let report = controller_suite::<Mine>().await;
/// println!("{report}");
/// # });
/// ```
///
/// # Panics
///
/// If a rule is broken: after the last case, with all that was found.
pub async fn controller_suite<B: ControllerBench>() -> SuiteReport {
    match try_controller_suite::<B>().await {
        Ok(report) => report,
        Err(failure) => panic!("this is no V-IPU controller\n{failure}"),
    }
}

/// The same as [`controller_suite`], with what is broken as a value.
///
/// # Errors
///
/// [`SuiteFailure`] with every case that found a broken rule.
pub async fn try_controller_suite<B: ControllerBench>() -> Result<SuiteReport, SuiteFailure> {
    let mut runner = Runner::new("controller_suite");
    let lab = Harness::of::<B>();
    lifecycle::run(&mut runner, lab).await;
    listing::run(&mut runner, lab).await;
    errors::run(&mut runner, lab).await;
    concurrency::run(&mut runner, lab).await;
    crashes::run(&mut runner, lab).await;
    lost_replies::run(&mut runner, lab).await;
    transport::run(&mut runner, lab).await;
    ledger_on_controller::run(&mut runner, lab).await;
    runner.finish()
}

/// Runs the named cases of a module, in order.
macro_rules! cases {
    ($($case:ident,)*) => {
        pub(super) async fn run(runner: &mut crate::conformance::Runner, harness: super::harness::Harness) {
            $(runner.run(stringify!($case), $case(harness)).await;)*
        }
    };
}
use cases;
