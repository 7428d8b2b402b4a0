//! Conformance suite for [`VipuController`]: requirements on every controller and transport.
//!
//! To test a transport, pass a function that connects it to [`transport_suite`]. To test another controller,
//! implement [`ControllerBench`] and call [`controller_suite`]. The suite requires only what the trait and
//! the reference of the V-IPU user API promise, or mark as an assumption. The comment of each case names its
//! source.

mod concurrency;
mod crashes;
mod errors;
mod harness;
mod lifecycle;
mod listing;
#[cfg(feature = "simulator")]
mod simulator_bench;
mod transport;

#[cfg(feature = "simulator")]
pub use simulator_bench::transport_suite;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::PartitionId;
use ipu_core::hardware::Topology;
use ipu_vipu_client::VipuController;

use crate::conformance::{Runner, SuiteFailure, SuiteReport};
use harness::Harness;

/// Deadline of a call unless a case tests deadlines: no call in a test takes that long.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Initial controller of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Setup {
    /// Hardware, all of it free and healthy.
    pub topology: Topology,
    /// Duration of create, reset and remove. Zero means as fast as possible; an hour means that they do not
    /// end within the case.
    pub operation: Duration,
    /// Deadline of each call of a transport. An implementation without deadlines ignores it.
    pub deadline: Duration,
    /// Whether the case calls [`ControllerBench::restart`].
    pub persistence: Persistence,
}

/// Persistence of partitions across a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// The case does not restart the controller: the fastest setup is enough.
    Volatile,
    /// The case restarts the controller, which must keep its partitions.
    Durable,
}

impl Setup {
    /// Creates a setup of `topology` whose operations take `operation`.
    fn new(topology: Topology, operation: Duration) -> Self {
        Self {
            topology,
            operation,
            deadline: TIMEOUT,
            persistence: Persistence::Volatile,
        }
    }

    /// Creates a setup whose operations take no time.
    fn quick(topology: Topology) -> Self {
        Self::new(topology, Duration::ZERO)
    }

    /// Creates a setup whose operations take long enough to be observed, and end.
    fn steady(topology: Topology) -> Self {
        Self::new(topology, Duration::from_millis(20))
    }

    /// Creates a setup whose operations never end within a case.
    fn slow(topology: Topology) -> Self {
        Self::new(topology, Duration::from_secs(3600))
    }
}

/// Kind of a controller call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// Any other call.
    Other,
}

/// Fault of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFault {
    /// The call has no effect, and the connection breaks.
    LostRequest,
    /// The call takes effect, and the connection breaks before the reply.
    LostReply,
    /// The call takes effect, and the connection breaks in the middle of the reply.
    CutReply,
    /// The call takes effect twice in sequence; the caller receives either reply.
    Twice,
    /// The call has no effect, and the controller is reported unavailable (gRPC UNAVAILABLE).
    Unavailable,
    /// The call has no effect and gets no reply.
    Silence,
    /// The call takes effect and is answered this much later.
    Delayed(Duration),
}

/// Support of a fixture for a request of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultSupport {
    /// The fixture did it.
    Done,
    /// The fixture cannot do it: the case cannot run.
    Unsupported,
}

/// A started controller under test.
///
/// Only [`controller`](Self::controller) is required. The other methods let the suite inject lost, repeated
/// and delayed calls behind a transport, which must report the result of a call.
#[async_trait]
pub trait ControllerBench: Send + Sync + 'static {
    /// Returns the controller, the same for every call of this method.
    fn controller(&self) -> Arc<dyn VipuController>;

    /// Injects `fault` into the next call of `kind`, once. Faults of one kind happen in order.
    async fn inject(&self, _kind: CallKind, _fault: CallFault) -> FaultSupport {
        FaultSupport::Unsupported
    }

    /// Sets the duration of create, reset and remove from now on.
    async fn set_operation_time(&self, _operation: Duration) -> FaultSupport {
        FaultSupport::Unsupported
    }

    /// Puts the active partition into the error state for some time.
    async fn break_partition(&self, _id: &PartitionId) -> FaultSupport {
        FaultSupport::Unsupported
    }

    /// Restarts the controller with its partitions ([`Persistence::Durable`] was requested).
    /// [`controller`](Self::controller) reaches it as before.
    async fn restart(&self) -> FaultSupport {
        FaultSupport::Unsupported
    }

    /// Stops the controller without a replacement.
    async fn stop(&self) -> FaultSupport {
        FaultSupport::Unsupported
    }

    /// Returns the deadline of a call: [`Setup::deadline`] if it was passed on; none if a call may take
    /// forever.
    fn deadline(&self) -> Option<Duration> {
        None
    }
}

/// Runs all cases in sequence, except those that need what the bench does not offer. These must be named in
/// `unsupported`.
///
/// `start` is called once for each case. It starts a fresh controller without partitions, which ends when the
/// bench is dropped.
///
/// On tokio's multi-threaded runtime the concurrent calls run in parallel; on the single-threaded one they
/// still interleave wherever the controller waits.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use ipu_testkit::{ControllerBench, Setup, controller_suite};
/// use ipu_vipu_client::VipuController;
///
/// struct Mine(Arc<dyn VipuController>);
///
/// impl ControllerBench for Mine {
///     fn controller(&self) -> Arc<dyn VipuController> {
///         Arc::clone(&self.0)
///     }
/// }
///
/// # async fn connect(_: Setup) -> Arc<dyn VipuController> { std::future::pending().await }
/// # async fn test() {
/// // In your test, under `#[tokio::test]`: start a controller of `setup` and connect to it.
/// let start = |setup: Setup| async { Mine(connect(setup).await) };
/// let report = controller_suite(start, &["a_stopped_controller_is_unreachable"]).await;
/// println!("{report}");
/// # }
/// ```
///
/// # Panics
///
/// If a rule is broken, or `unsupported` is not exactly the list of cases that cannot run: after the last
/// case, with all broken rules.
pub async fn controller_suite<B, F>(
    start: impl Fn(Setup) -> F + Send + Sync + 'static,
    unsupported: &[&str],
) -> SuiteReport
where
    B: ControllerBench,
    F: Future<Output = B> + Send + 'static,
{
    match try_controller_suite(start, unsupported).await {
        Ok(report) => report,
        Err(failure) => panic!("the controller does not conform\n{failure}"),
    }
}

/// Like [`controller_suite`], but returns the broken rules as an error.
///
/// # Errors
///
/// [`SuiteFailure`] with every case that found a broken rule.
pub async fn try_controller_suite<B, F>(
    start: impl Fn(Setup) -> F + Send + Sync + 'static,
    unsupported: &[&str],
) -> Result<SuiteReport, SuiteFailure>
where
    B: ControllerBench,
    F: Future<Output = B> + Send + 'static,
{
    run_cases(&Harness::new(start), unsupported).await
}

async fn run_cases(harness: &Harness, unsupported: &[&str]) -> Result<SuiteReport, SuiteFailure> {
    let mut runner = Runner::new("controller_suite");
    lifecycle::run(&mut runner, harness).await;
    listing::run(&mut runner, harness).await;
    errors::run(&mut runner, harness).await;
    concurrency::run(&mut runner, harness).await;
    crashes::run(&mut runner, harness).await;
    transport::run(&mut runner, harness).await;
    runner.finish(unsupported)
}

/// Runs the named cases of a module, in order.
macro_rules! cases {
    ($($case:ident,)*) => {
        pub(super) async fn run(runner: &mut crate::conformance::Runner, harness: &super::harness::Harness) {
            $(runner.run(stringify!($case), $case(harness.clone())).await;)*
        }
    };
}
use cases;
