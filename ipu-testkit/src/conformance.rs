//! Shared parts of the conformance suites: named cases, their outcomes and the report.

use std::fmt;
use std::time::Duration;

/// Time limit of a case: far more than any case needs, and a hang still ends in a report.
pub(crate) const CASE_TIMEOUT: Duration = Duration::from_secs(120);

/// Report of a conformance suite.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SuiteReport {
    /// Name of the suite.
    pub suite: &'static str,
    /// Cases that ran and passed, in order.
    pub ran: Vec<&'static str>,
    /// Cases that could not run.
    pub skipped: Vec<SkippedCase>,
}

/// Case that could not run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SkippedCase {
    /// Name of the case.
    pub case: &'static str,
    /// Capability that the case requires.
    pub reason: String,
}

/// Rule that an implementation breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BrokenRule {
    /// Case that found it.
    pub case: &'static str,
    /// Rule, as a condition that must hold.
    pub rule: String,
    /// Expected value.
    pub expected: String,
    /// Actual value.
    pub actual: String,
}

/// Failure of a conformance suite: all broken rules, not only the first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SuiteFailure {
    /// Cases that passed, and cases that could not run.
    pub report: SuiteReport,
    /// Broken rules, at most one per case, in the order of the cases.
    pub broken: Vec<BrokenRule>,
}

impl SuiteFailure {
    /// Returns whether `case` found a broken rule.
    #[must_use]
    pub fn is_broken(&self, case: &str) -> bool {
        self.broken.iter().any(|broken| broken.case == case)
    }
}

impl fmt::Display for SuiteReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ran, skipped) = (self.ran.len(), self.skipped.len());
        write!(f, "{}: {ran} cases ran, {skipped} could not", self.suite)?;
        for one in &self.skipped {
            write!(f, "\n  could not run: {}: {}", one.case, one.reason)?;
        }
        Ok(())
    }
}

impl fmt::Display for SuiteFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for broken in &self.broken {
            let BrokenRule {
                case,
                rule,
                expected,
                actual,
            } = broken;
            writeln!(
                f,
                "broken: {case}\n  rule:     {rule}\n  expected: {expected}\n  actual:   {actual}"
            )?;
        }
        self.report.fmt(f)
    }
}

impl std::error::Error for SuiteFailure {}

/// Reason for which a case ended early.
#[derive(Debug)]
pub(crate) enum CaseError {
    /// A rule is broken. The runner names the case.
    Broken(BrokenRule),
    /// The implementation under test does not offer a capability that the case needs.
    Unsupported(String),
}

#[cfg(feature = "simulator")]
impl CaseError {
    /// Adds to a broken rule the steps that led to it.
    pub(crate) fn after(mut self, steps: &str) -> Self {
        if let Self::Broken(broken) = &mut self {
            broken.actual = format!("{}\n  after:    {steps}", broken.actual);
        }
        self
    }
}

/// Result of a case.
pub(crate) type CaseOutcome = Result<(), CaseError>;

/// Returns the error for a broken rule.
pub(crate) fn broken(rule: &str, expected: impl fmt::Display, actual: impl fmt::Display) -> CaseError {
    CaseError::Broken(BrokenRule {
        case: "",
        rule: rule.to_owned(),
        expected: expected.to_string(),
        actual: actual.to_string(),
    })
}

/// Checks `rule`: the actual value equals the expected one.
pub(crate) fn check_eq<T: fmt::Debug + PartialEq>(rule: &str, actual: &T, expected: &T) -> CaseOutcome {
    if actual == expected {
        Ok(())
    } else {
        Err(broken(
            rule,
            format_args!("{expected:?}"),
            format_args!("{actual:?}"),
        ))
    }
}

/// Checks `rule`: the operation succeeds.
pub(crate) fn check_ok<T, E: fmt::Debug + fmt::Display>(
    rule: &str,
    answer: Result<T, E>,
) -> Result<T, CaseError> {
    answer.map_err(|error| broken(rule, "success", format_args!("{error} ({error:?})")))
}

/// Runs cases in sequence and records their outcomes.
#[derive(Debug)]
pub(crate) struct Runner {
    report: SuiteReport,
    broken: Vec<BrokenRule>,
}

impl Runner {
    pub(crate) const fn new(suite: &'static str) -> Self {
        Self {
            report: SuiteReport {
                suite,
                ran: Vec::new(),
                skipped: Vec::new(),
            },
            broken: Vec::new(),
        }
    }

    /// Runs a case in its own task and records a panic as a broken rule.
    pub(crate) async fn run(
        &mut self,
        case: &'static str,
        work: impl Future<Output = CaseOutcome> + Send + 'static,
    ) {
        self.run_within(CASE_TIMEOUT, case, work).await;
    }

    /// Like [`run`](Self::run), for a case with another time limit.
    pub(crate) async fn run_within(
        &mut self,
        limit: Duration,
        case: &'static str,
        work: impl Future<Output = CaseOutcome> + Send + 'static,
    ) {
        let mut task = tokio::spawn(work);
        let joined = async {
            match (&mut task).await {
                Ok(outcome) => outcome,
                Err(error) => Err(panicked(&panic_message_of(error))),
            }
        };
        let outcome = tokio::time::timeout(limit, joined).await.unwrap_or_else(|_| {
            let actual = format!("still running after {limit:?}");
            Err(broken("every call returns", "a result", actual))
        });
        // Only a hanging task is still running here.
        task.abort();
        match outcome {
            Ok(()) => self.report.ran.push(case),
            Err(CaseError::Unsupported(reason)) => self.report.skipped.push(SkippedCase { case, reason }),
            Err(CaseError::Broken(broken)) => self.broken.push(BrokenRule { case, ..broken }),
        }
    }

    /// Ends the suite. Exactly the cases in `unsupported` must be those that could not run.
    pub(crate) fn finish(mut self, unsupported: &[&str]) -> Result<SuiteReport, SuiteFailure> {
        for skipped in &self.report.skipped {
            if !unsupported.contains(&skipped.case) {
                self.broken.push(BrokenRule {
                    case: skipped.case,
                    rule: "a case that cannot run is named as unsupported".to_owned(),
                    expected: "the case runs".to_owned(),
                    actual: skipped.reason.clone(),
                });
            }
        }
        for case in self.report.ran.iter().filter(|ran| unsupported.contains(ran)) {
            self.broken.push(BrokenRule {
                case,
                rule: "only a case that cannot run is named as unsupported".to_owned(),
                expected: "the case cannot run".to_owned(),
                actual: "it ran".to_owned(),
            });
        }
        if self.broken.is_empty() {
            return Ok(self.report);
        }
        Err(SuiteFailure {
            report: self.report,
            broken: self.broken,
        })
    }
}

fn panicked(message: &str) -> CaseError {
    broken(
        "nothing panics",
        "a value or an error",
        format_args!("panic: {message}"),
    )
}

/// Returns the panic message of a task.
fn panic_message_of(error: tokio::task::JoinError) -> String {
    let Ok(payload) = error.try_into_panic() else {
        return "the case was cancelled".to_owned();
    };
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no panic message".to_owned())
}
