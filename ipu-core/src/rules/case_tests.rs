//! The case files of `testdata/rules/<rule>`: one line of facts, as `key=value`, one line of verdict.
//!
//! The first line of a case names the rule; each line of its input is a question, and each line that is expected the
//! answer to it. What is left out has the value that matters least.

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
use super::reset::Usage;
use super::restart::End;
use super::suspend::RunIntent;
use super::{
    backoff, cleanup, deadline, finalize, first_failure, interactive, orphan, request, reset, restart, scale,
    start_deadline, suspend,
};
use crate::exit_status::Exit;
use crate::ids::ControllerName;
use crate::job::{CleanPodPolicy, RestartPolicy};
use crate::observation::PartitionFacts;
use crate::plan::{FailedComponent, JobPhase};
use crate::reason::Reason;
use crate::units::Timestamp;

/// Answers a line of facts.
type CaseFn = fn(CaseInput<'_>) -> String;

/// Every rule, and what answers its cases.
const RULES: [(&str, CaseFn); 13] = [
    ("backoff", backoff),
    ("cleanup", cleanup),
    ("deadline", deadline),
    ("finalize", finalize),
    ("first_failure", first_failure),
    ("interactive", interactive),
    ("orphan", orphan),
    ("request", request),
    ("reset", reset),
    ("restart", restart),
    ("scale", scale),
    ("start_deadline", start_deadline),
    ("suspend", suspend),
];

#[test]
fn every_rule_answers_its_cases() {
    for (rule, answer) in RULES {
        datadriven::run(&format!("rules/{rule}"), |case| {
            assert_eq!(case.command, [rule], "the first line of a case names the rule");
            let answers = case.input.lines().map(|line| answer(CaseInput(line)));
            answers.collect::<Vec<_>>().join("\n")
        });
    }
}

/// One line of `key=value` words.
#[derive(Clone, Copy)]
struct CaseInput<'a>(&'a str);

impl<'a> CaseInput<'a> {
    fn text(self, key: &str) -> Option<&'a str> {
        let mut words = self.0.split_whitespace().filter_map(|word| word.split_once('='));
        words.find_map(|(known, value)| (known == key).then_some(value))
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
                reason: Reason::new("NotEnoughFree", "2 IPUs are free"),
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

/// A verdict as it is written in the rule.
fn told(verdict: impl Debug) -> String {
    format!("{verdict:?}")
}

fn told_time(word: &str, at: Timestamp) -> String {
    format!("{word} {}", at.as_millis() / 1000)
}

fn backoff(facts: CaseInput<'_>) -> String {
    let base = facts.seconds("base").unwrap_or_default();
    told(backoff::decide(base, facts.number("used")))
}

fn cleanup(facts: CaseInput<'_>) -> String {
    let policy = match facts.text("policy") {
        None | Some("None") => CleanPodPolicy::None,
        Some("Workers") => CleanPodPolicy::Workers,
        Some("All") => CleanPodPolicy::All,
        Some(other) => panic!("no such policy: {other}"),
    };
    let retention = cleanup::retention(facts.seconds("keep"), facts.at("finished"), facts.now());
    let verdict = |role| told(cleanup::decide(policy, role, facts.phase(), retention));
    let left = match retention {
        Retention::UntilDeleted => "until deleted".to_string(),
        Retention::Until(end) => told_time("until", end),
        Retention::Over => "over".to_string(),
    };
    format!(
        "workers {}, launcher {}, partition {}; {left}",
        verdict(ResourceRole::Worker),
        verdict(ResourceRole::Launcher),
        verdict(ResourceRole::Partition)
    )
}

fn deadline(facts: CaseInput<'_>) -> String {
    match deadline::decide(facts.seconds("limit"), facts.at("started"), facts.now()) {
        deadline::DeadlineStatus::Until(end) => told_time("until", end),
        other @ (deadline::DeadlineStatus::Unlimited | deadline::DeadlineStatus::Exceeded) => told(other),
    }
}

fn finalize(facts: CaseInput<'_>) -> String {
    let processes = match facts.text("processes") {
        None | Some("none") => Processes::None,
        Some("ended") => Processes::Ended,
        Some("alive") => Processes::Alive,
        Some(other) => panic!("no such processes: {other}"),
    };
    told(finalize::decide(processes, &facts.partition()))
}

/// Candidates are words `WHO:HOW@TIME`: `worker1:exit3@5`, `launcher:signal9@7`, `partition:lost@5`, `worker2:oom@5`; one that
/// ends with `!` left some output. The word `blur=TIME` says how far apart times must be to be told apart.
fn first_failure(facts: CaseInput<'_>) -> String {
    let blur = core::time::Duration::from_millis(facts.get("blur").unwrap_or(0));
    let words = facts
        .0
        .split_whitespace()
        .filter(|word| !word.starts_with("blur="));
    let candidates = words.map(|word| {
        let (word, last_lines) = match word.strip_suffix('!') {
            Some(word) => (word, "the end"),
            None => (word, ""),
        };
        let (who, rest) = word.split_once(':').expect("WHO:HOW@TIME");
        let (how, at) = rest.split_once('@').expect("HOW@TIME");
        let culprit = match who {
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
        let exit = how
            .strip_prefix("exit")
            .map(|text| Exit::Code(code(text)))
            .or_else(|| how.strip_prefix("signal").map(|text| Exit::Signal(code(text))))
            .or_else(|| (how == "oom").then_some(Exit::Signal(9)));
        Candidate {
            culprit,
            exit,
            at: Timestamp::from_millis(at.parse().expect("a time")),
            cause: if how == "oom" {
                crate::observation::ProcessPhase::OUT_OF_MEMORY
            } else {
                ""
            },
            last_lines,
        }
    });
    first_failure::decide(candidates, blur).map_or("none".to_string(), |first| first.culprit.to_string())
}

fn interactive(facts: CaseInput<'_>) -> String {
    let ttl = facts.seconds("ttl").unwrap_or_default();
    match interactive::decide(ttl, facts.at("running"), facts.now()) {
        interactive::Session::Open(end) => told_time("open until", end),
        other @ (interactive::Session::NotBegun | interactive::Session::Over) => told(other),
    }
}

fn orphan(facts: CaseInput<'_>) -> String {
    told(orphan::decide(orphan::OrphanFacts {
        of_this_attempt: facts.is("current"),
        in_range: facts.is("known"),
        does_work: facts.is("works"),
        alive: facts.is("alive"),
        instance_ended: facts.is("ended"),
    }))
}

fn request(facts: CaseInput<'_>) -> String {
    let (requested, most) = (facts.number("requested"), facts.number("most"));
    told(request::decide(&facts.partition(), requested, most))
}

fn reset(facts: CaseInput<'_>) -> String {
    let usage = if facts.is("torn") {
        Usage::Torn
    } else if facts.is("used") {
        Usage::InUse
    } else {
        Usage::Unused
    };
    told(reset::decide(&facts.partition(), facts.number("attempt"), usage))
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
                .unwrap_or_else(crate::ExitCodeSet::default_retryable),
            back_off_limit,
        },
        other => panic!("no such policy: {other:?}"),
    };
    let end = match facts.text("end") {
        Some("success") => End::Success,
        Some("lost") => End::Failure(None),
        Some(code) => End::Failure(Some(code.parse().expect("an exit code"))),
        None => panic!("{}: end=success, end=lost or end=CODE", facts.0),
    };
    told(restart::decide(&policy, end, facts.number("used")))
}

fn scale(facts: CaseInput<'_>) -> String {
    told(scale::decide(facts.number("index"), facts.number("wanted")))
}

fn start_deadline(facts: CaseInput<'_>) -> String {
    let limit = facts.seconds("limit").unwrap_or_default();
    match start_deadline::decide(limit, facts.at("earliest"), facts.now()) {
        start_deadline::StartDeadlineStatus::Open(end) => told_time("open until", end),
        other @ (start_deadline::StartDeadlineStatus::Met | start_deadline::StartDeadlineStatus::Missed) => {
            told(other)
        }
    }
}

fn suspend(facts: CaseInput<'_>) -> String {
    let wish = if facts.is("suspend") {
        RunIntent::Suspend
    } else {
        RunIntent::Run
    };
    told(suspend::decide(wish, facts.phase()))
}
