//! Tests of the rules against the case files in `testdata/rules/<rule>`.
//!
//! The first line of a case names the rule. Each input line holds facts as `key=value`; each expected line
//! holds the verdict on one input line, in the same order. Omitted facts have neutral defaults.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt::Debug;
use core::str::FromStr;
use core::time::Duration;

use super::cleanup::{ResourceRole, Retention};
use super::datadriven;
use super::finalize::Processes;
use super::first_failure::Candidate;
use super::preempt::{Demand, Progress};
use super::reset::Usage;
use super::restart::AttemptEnd;
use super::suspend::RunIntent;
use super::{
    backoff, cleanup, deadline, finalize, first_failure, interactive, orphan, preempt, request, reset,
    restart, scale, start_deadline, suspend,
};
use crate::ids::ControllerName;
use crate::job::exit::Exit;
use crate::job::observation::PartitionFacts;
use crate::job::status::{FailedComponent, JobPhase};
use crate::job::{CleanPodPolicy, RestartPolicy};
use crate::reason::{Reason, ReasonCode};
use crate::units::Timestamp;

/// Returns the verdict on one line of facts.
type CaseFn = fn(CaseInput<'_>) -> String;

/// Every rule with the function that evaluates its cases.
const RULES: [(&str, CaseFn); 14] = [
    ("backoff", backoff),
    ("cleanup", cleanup),
    ("deadline", deadline),
    ("finalize", finalize),
    ("first_failure", first_failure),
    ("interactive", interactive),
    ("orphan", orphan),
    ("preempt", preempt),
    ("request", request),
    ("reset", reset),
    ("restart", restart),
    ("scale", scale),
    ("start_deadline", start_deadline),
    ("suspend", suspend),
];

#[test]
fn every_rule_returns_the_expected_verdicts() {
    for (rule, evaluate) in RULES {
        datadriven::run(&format!("rules/{rule}"), |case| {
            assert_eq!(case.command, [rule], "the first line of a case names the rule");
            let verdicts = case.input.lines().map(|line| evaluate(CaseInput(line)));
            verdicts.collect::<Vec<_>>().join("\n")
        });
    }
}

/// One line of `key=value` facts.
#[derive(Clone, Copy)]
struct CaseInput<'a>(&'a str);

impl<'a> CaseInput<'a> {
    fn text(self, key: &str) -> Option<&'a str> {
        let mut words = self.0.split_whitespace().filter_map(|word| word.split_once('='));
        words.find_map(|(name, value)| (name == key).then_some(value))
    }

    fn get<T: FromStr<Err: Debug>>(self, key: &str) -> Option<T> {
        self.text(key).map(|value| {
            value
                .parse()
                .unwrap_or_else(|error| panic!("{}: {key}: {error:?}", self.0))
        })
    }

    fn number(self, key: &str) -> u32 {
        self.get(key).unwrap_or(0)
    }

    fn seconds(self, key: &str) -> Option<Duration> {
        self.get(key).map(Duration::from_secs)
    }

    fn at(self, key: &str) -> Option<Timestamp> {
        self.seconds(key).map(|time| Timestamp::from_millis(0).plus(time))
    }

    fn now(self) -> Timestamp {
        self.at("now").unwrap_or_default()
    }

    fn is(self, key: &str) -> bool {
        self.text(key) == Some("yes")
    }

    fn partition(self) -> PartitionFacts {
        let text = self.text("partition").unwrap_or("absent");
        let (state, attempt) = text.split_once(':').unwrap_or((text, "0"));
        let attempt = attempt.parse().expect("the attempt of the partition");
        match state {
            "absent" => PartitionFacts::Absent,
            "waiting" => PartitionFacts::Waiting {
                reason: Reason::new(ReasonCode::NotEnoughFree, "2 IPUs are free"),
                attempt,
            },
            "pending" => PartitionFacts::Pending { attempt },
            "active" => PartitionFacts::Active {
                attempt,
                since: Timestamp::default(),
                controller: ControllerName::new("vipu:8090").expect("a controller name"),
            },
            "error" => PartitionFacts::Failed {
                attempt,
                errors: Vec::new(),
            },
            "releasing" => PartitionFacts::Releasing,
            other => panic!("no such partition: {other}"),
        }
    }

    fn phase(self) -> JobPhase {
        match self.text("phase") {
            None | Some("Running") => JobPhase::Running,
            Some("Pending") => JobPhase::Pending,
            Some("Completed") => JobPhase::Completed,
            Some("Failed") => JobPhase::Failed,
            Some(other) => panic!("no such phase: {other}"),
        }
    }
}

/// Formats a verdict as its variant name.
fn verdict_text(verdict: impl Debug) -> String {
    format!("{verdict:?}")
}

fn time_text(word: &str, at: Timestamp) -> String {
    format!("{word} {}", at.as_millis() / 1000)
}

fn backoff(facts: CaseInput<'_>) -> String {
    let base = facts.seconds("base").unwrap_or_default();
    verdict_text(backoff::decide(base, facts.number("used")))
}

fn cleanup(facts: CaseInput<'_>) -> String {
    let policy = match facts.text("policy") {
        None | Some("None") => CleanPodPolicy::None,
        Some("Workers") => CleanPodPolicy::Workers,
        Some("All") => CleanPodPolicy::All,
        Some(other) => panic!("no such policy: {other}"),
    };
    let retention = cleanup::retention(facts.seconds("keep"), facts.at("finished"), facts.now());
    let verdict = |role| verdict_text(cleanup::decide(policy, role, facts.phase(), retention));
    let retention_text = match retention {
        Retention::UntilDeleted => "until deleted".to_string(),
        Retention::Until(end) => time_text("until", end),
        Retention::Over => "over".to_string(),
    };
    format!(
        "workers {}, launcher {}, partition {}; {retention_text}",
        verdict(ResourceRole::Worker),
        verdict(ResourceRole::Launcher),
        verdict(ResourceRole::Partition)
    )
}

fn deadline(facts: CaseInput<'_>) -> String {
    match deadline::decide(facts.seconds("limit"), facts.at("started"), facts.now()) {
        deadline::DeadlineStatus::Until(end) => time_text("until", end),
        other @ (deadline::DeadlineStatus::Unlimited | deadline::DeadlineStatus::Exceeded) => {
            verdict_text(other)
        }
    }
}

fn finalize(facts: CaseInput<'_>) -> String {
    let processes = match facts.text("processes") {
        None | Some("none") => Processes::None,
        Some("ended") => Processes::Ended,
        Some("alive") => Processes::Alive,
        Some(other) => panic!("no such processes: {other}"),
    };
    verdict_text(finalize::decide(processes, &facts.partition()))
}

/// Parses candidates of the form `COMPONENT:END@TIME`: `worker1:exit3@5`, `launcher:signal9@7`,
/// `partition:lost@5`, `worker2:oom@5`. A final `!` means that the process left output. `blur=TIME` is the
/// timestamp resolution in milliseconds.
fn first_failure(facts: CaseInput<'_>) -> String {
    let resolution = core::time::Duration::from_millis(facts.get("blur").unwrap_or(0));
    let words = facts
        .0
        .split_whitespace()
        .filter(|word| !word.starts_with("blur="));
    let candidates = words.map(|word| {
        let (word, last_lines) = match word.strip_suffix('!') {
            Some(word) => (word, "the end"),
            None => (word, ""),
        };
        let (component_name, rest) = word.split_once(':').expect("COMPONENT:END@TIME");
        let (end, at) = rest.split_once('@').expect("END@TIME");
        let component = match component_name {
            "partition" => FailedComponent::Partition,
            "launcher" => FailedComponent::Launcher,
            worker => FailedComponent::Worker {
                worker: worker
                    .trim_start_matches("worker")
                    .parse()
                    .expect("the number of a worker"),
            },
        };
        let code = |text: &str| text.parse::<u8>().expect("a number");
        let exit = end
            .strip_prefix("exit")
            .map(|text| Exit::Code(code(text)))
            .or_else(|| end.strip_prefix("signal").map(|text| Exit::Signal(code(text))))
            .or_else(|| (end == "oom").then_some(Exit::Signal(9)));
        Candidate {
            component,
            exit,
            at: Timestamp::from_millis(at.parse().expect("a time")),
            cause: if end == "oom" {
                crate::job::observation::ProcessPhase::OUT_OF_MEMORY
            } else {
                ""
            },
            last_lines,
        }
    });
    first_failure::decide(candidates, resolution)
        .map_or("none".to_string(), |first| first.component.to_string())
}

fn interactive(facts: CaseInput<'_>) -> String {
    let ttl = facts.seconds("ttl").unwrap_or_default();
    match interactive::decide(ttl, facts.at("running"), facts.now()) {
        interactive::Session::Open(end) => time_text("open until", end),
        other @ (interactive::Session::NotStarted | interactive::Session::Over) => verdict_text(other),
    }
}

fn orphan(facts: CaseInput<'_>) -> String {
    verdict_text(orphan::decide(orphan::OrphanFacts {
        of_this_attempt: facts.is("current"),
        in_range: facts.is("known"),
        does_work: facts.is("works"),
        alive: facts.is("alive"),
        instance_ended: facts.is("ended"),
    }))
}

fn request(facts: CaseInput<'_>) -> String {
    let (requested, limit) = (facts.number("requested"), facts.number("most"));
    verdict_text(request::decide(&facts.partition(), requested, limit))
}

fn reset(facts: CaseInput<'_>) -> String {
    let usage = if facts.is("torn") {
        Usage::ProcessMissing
    } else if facts.is("used") {
        Usage::InUse
    } else {
        Usage::Unused
    };
    verdict_text(reset::decide(&facts.partition(), facts.number("attempt"), usage))
}

fn restart(facts: CaseInput<'_>) -> String {
    let back_off_limit = facts.get("limit").unwrap_or(3);
    let policy = match facts.text("policy") {
        Some("Never") => RestartPolicy::Never,
        Some("Always") => RestartPolicy::Always { back_off_limit },
        Some("OnFailure") => RestartPolicy::OnFailure { back_off_limit },
        Some("ExitCode") => RestartPolicy::ExitCode {
            retryable: facts
                .get("codes")
                .unwrap_or_else(crate::job::ExitCodeSet::default_retryable),
            back_off_limit,
        },
        other => panic!("no such policy: {other:?}"),
    };
    let end = match facts.text("end") {
        Some("success") => AttemptEnd::Success,
        Some("lost") => AttemptEnd::Failure(None),
        Some(code) => AttemptEnd::Failure(Some(code.parse().expect("an exit code"))),
        None => panic!("{}: end=success, end=lost or end=CODE", facts.0),
    };
    verdict_text(restart::decide(&policy, end, facts.number("used")))
}

fn scale(facts: CaseInput<'_>) -> String {
    verdict_text(scale::decide(facts.number("index"), facts.number("wanted")))
}

fn start_deadline(facts: CaseInput<'_>) -> String {
    let limit = facts.seconds("limit").unwrap_or_default();
    match start_deadline::decide(limit, facts.at("earliest"), facts.now()) {
        start_deadline::StartDeadlineStatus::Open(end) => time_text("open until", end),
        other @ (start_deadline::StartDeadlineStatus::Met | start_deadline::StartDeadlineStatus::Missed) => {
            verdict_text(other)
        }
    }
}

fn preempt(facts: CaseInput<'_>) -> String {
    let demand = if facts.is("preempted") {
        Demand::Preempted
    } else {
        Demand::None
    };
    let progress = if facts.is("ended") {
        Progress::Ended
    } else {
        Progress::Open
    };
    verdict_text(preempt::decide(demand, progress))
}

fn suspend(facts: CaseInput<'_>) -> String {
    let intent = if facts.is("suspend") {
        RunIntent::Suspend
    } else {
        RunIntent::Run
    };
    verdict_text(suspend::decide(intent, facts.phase()))
}
