//! What the conformance suites share: cases with names, what each found, and the report of it all.

use std::any::Any;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// No case waits longer than this in all: far more than any case needs, and a hang still ends in a report.
const CASE_LIMIT: Duration = Duration::from_secs(120);

/// What a conformance suite did with an implementation that keeps all rules.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SuiteReport {
    /// Which suite.
    pub suite: &'static str,
    /// The cases that ran and found nothing, in order.
    pub ran: Vec<&'static str>,
    /// The cases that could not run.
    pub skipped: Vec<SkippedCase>,
}

/// A case that could not run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SkippedCase {
    /// Which.
    pub case: &'static str,
    /// What it would have needed.
    pub reason: String,
}

/// A rule that an implementation breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BrokenRule {
    /// The case that found it.
    pub case: &'static str,
    /// What has to be true.
    pub rule: String,
    /// What was expected.
    pub expected: String,
    /// What was seen.
    pub seen: String,
}

/// What a conformance suite found wrong: every broken rule, not only the first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SuiteFailure {
    /// The cases that found nothing, and those that could not run.
    pub report: SuiteReport,
    /// The rules that are broken, one a case, in the order of the cases.
    pub broken: Vec<BrokenRule>,
}

impl SuiteFailure {
    /// Whether `case` found a broken rule.
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
                seen,
            } = broken;
            writeln!(
                f,
                "broken: {case}\n  rule:     {rule}\n  expected: {expected}\n  seen:     {seen}"
            )?;
        }
        self.report.fmt(f)
    }
}

impl std::error::Error for SuiteFailure {}

/// Why a case ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A rule is broken.
    Broken {
        rule: String,
        expected: String,
        seen: String,
    },
    /// What is under test does not offer what the case needs.
    Unable(String),
}

/// What a case comes to.
pub(crate) type CaseOutcome = Result<(), Stop>;

/// A broken rule.
pub(crate) fn broken(rule: &str, expected: impl fmt::Display, seen: impl fmt::Display) -> Stop {
    Stop::Broken {
        rule: rule.to_owned(),
        expected: expected.to_string(),
        seen: seen.to_string(),
    }
}

/// `rule`: what was seen is what was expected.
pub(crate) fn same<T: fmt::Debug + PartialEq>(rule: &str, seen: &T, expected: &T) -> CaseOutcome {
    if seen == expected {
        Ok(())
    } else {
        Err(broken(
            rule,
            format_args!("{expected:?}"),
            format_args!("{seen:?}"),
        ))
    }
}

/// `rule`: what was asked for succeeds.
pub(crate) fn ok<T, E: fmt::Debug + fmt::Display>(rule: &str, answer: Result<T, E>) -> Result<T, Stop> {
    answer.map_err(|error| broken(rule, "success", format_args!("{error} ({error:?})")))
}

/// Runs cases one after another and keeps what they found.
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

    /// Runs one case in a task of its own, so that what panics in it is a finding like any other.
    pub(crate) async fn run(
        &mut self,
        case: &'static str,
        work: impl Future<Output = CaseOutcome> + Send + 'static,
    ) {
        let mut task = tokio::spawn(work);
        let joined = async {
            match (&mut task).await {
                Ok(outcome) => outcome,
                Err(error) => Err(panicked(&told_by_panic(error))),
            }
        };
        self.limited(case, joined).await;
        // Only what hangs is still there to be aborted.
        task.abort();
    }

    /// Runs one case in the caller's task, because it borrows what is under test. What panics in it is a finding, too.
    pub(crate) async fn run_here(&mut self, case: &'static str, work: impl Future<Output = CaseOutcome>) {
        let mut work = pin!(work);
        let caught =
            poll_fn(
                |context| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
                    Ok(poll) => poll,
                    Err(payload) => Poll::Ready(Err(panicked(&words(&*payload)))),
                },
            );
        self.limited(case, caught).await;
    }

    async fn limited(&mut self, case: &'static str, work: impl Future<Output = CaseOutcome>) {
        let outcome = tokio::time::timeout(CASE_LIMIT, work).await.unwrap_or_else(|_| {
            let seen = format!("it was still at it after {CASE_LIMIT:?}");
            Err(broken("every call ends", "an answer", seen))
        });
        match outcome {
            Ok(()) => self.report.ran.push(case),
            Err(Stop::Unable(reason)) => self.report.skipped.push(SkippedCase { case, reason }),
            Err(Stop::Broken { rule, expected, seen }) => self.broken.push(BrokenRule {
                case,
                rule,
                expected,
                seen,
            }),
        }
    }

    pub(crate) fn finish(self) -> Result<SuiteReport, SuiteFailure> {
        if self.broken.is_empty() {
            return Ok(self.report);
        }
        Err(SuiteFailure {
            report: self.report,
            broken: self.broken,
        })
    }
}

fn panicked(words: &str) -> Stop {
    broken(
        "nothing panics",
        "a value or an error",
        format_args!("panic: {words}"),
    )
}

/// What a task said when it panicked.
pub(crate) fn told_by_panic(error: tokio::task::JoinError) -> String {
    error.try_into_panic().map_or_else(
        |_| "the case was cancelled".to_owned(),
        |payload| words(&*payload),
    )
}

fn words(payload: &(dyn Any + Send)) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "without words".to_owned())
}
