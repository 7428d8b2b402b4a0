//! The random cases, and the smallest of those that fail.

use std::cell::RefCell;
use std::fmt;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use ipu_core::{
    BrokenPlan, CleanPodPolicy, Exit, JobKind, JobPhase, JobSpec, Observation, PartitionFacts, Plan,
    RestartPolicy, check_plan,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use super::PlannerOptions;
use super::failure::{PlannerFailure, PlannerProperty};
use super::job_event::{EventEffect, JobEvent, ProcessEnd, happenings};
use super::report::PlannerReport;
use super::world::{CapacityState, JobWorld, ProcessRole, SafetyViolation};
use crate::strategies::{consistent_observations, job_dsl, observations};

/// How many random observations for each life: they are that much cheaper.
const OBSERVATIONS: u32 = 5;
/// Which part of the cases is tried first.
const FEW: u32 = 8;
/// After how many passes a job that has not come to rest never will: about ten times of what the longest life of the
/// default cases takes.
const PASSES: u32 = 200;
/// After how many passes without anything happening plans must have stopped changing things: everything is stopped,
/// forgotten and released in less than ten.
const STILL_PASSES: u32 = 40;

/// Something that happens in a life.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Pass,
    /// A pass whose first effects are applied, and nothing recorded.
    CrashAfter(usize),
    Happening(JobEvent),
}

/// A planner and what was tried of it.
pub(super) struct PlannerRun<'a, P> {
    planner: &'a P,
    report: RefCell<PlannerReport>,
}

type Checked<T> = Result<T, Box<PlannerFailure>>;

impl<'a, P: Fn(&JobSpec, &Observation) -> Plan> PlannerRun<'a, P> {
    pub(super) fn new(planner: &'a P) -> Self {
        Self {
            planner,
            report: RefCell::default(),
        }
    }

    pub(super) fn all(self, options: PlannerOptions) -> Checked<PlannerReport> {
        // A few of each kind first: what breaks often is found at once, whichever kind finds it.
        let few = options.cases.div_ceil(FEW);
        self.some(options.with_cases(few), 0)?;
        self.some(options.with_cases(options.cases - few), 1)?;
        Ok(self.report.into_inner())
    }

    fn some(&self, options: PlannerOptions, round: u8) -> Checked<()> {
        let cases = options.cases;
        let many = PlannerOptions::with_cases(options, cases.saturating_mul(OBSERVATIONS));
        search(many, round, &(job_dsl(), observations()), |(words, seen)| {
            self.report.borrow_mut().observations += 1;
            let mut world = world(words);
            world.seen = seen;
            self.plan(&world).map(drop)
        })?;
        let lives = (job_dsl(), vec(events(), 0..50));
        search(options, round, &lives, |(words, events)| {
            self.report.borrow_mut().lives += 1;
            self.life(words, &events.concat())
        })?;
        let states = (job_dsl(), consistent_observations());
        search(options, round, &states, |(words, seen)| {
            self.report.borrow_mut().states += 1;
            self.life_from(words, seen)
        })
    }

    /// One answer, checked.
    fn plan(&self, world: &JobWorld) -> Checked<Plan> {
        let (job, seen) = (&world.job, &world.seen);
        let ask = || catch_unwind(AssertUnwindSafe(|| (self.planner)(job, seen)));
        let plan = ask().map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            failure(world, PlannerProperty::Total, text.unwrap_or_default())
        })?;
        if ask().ok().as_ref() != Some(&plan) {
            return Err(failure(world, PlannerProperty::Deterministic, String::new()));
        }
        let broken = check_plan(job, seen, &plan);
        if !broken.is_empty() {
            let mut failure = failure(world, PlannerProperty::Sound, String::new());
            failure.broken = broken;
            return Err(failure);
        }
        self.report.borrow_mut().note(job, seen, &plan);
        Ok(plan)
    }

    fn pass(&self, world: &mut JobWorld) -> Checked<Plan> {
        let plan = self.plan(world)?;
        let before = world.clone();
        world
            .reconcile(&plan)
            .map_err(|trespass| shared(&before, &trespass))?;
        Ok(plan)
    }

    /// A life that begins in any state.
    fn life_from(&self, words: Vec<String>, seen: Observation) -> Checked<()> {
        let mut world = world(words);
        change(&mut world, "suspend=no");
        world.seen = seen;
        self.becomes_still(&world)?;
        if !world.seen.deleted {
            self.comes_to_rest(&mut world)?;
            self.holds_what_its_policy_says(&mut world)?;
        }
        self.lets_go(&mut world)
    }

    /// The life of a new job; a failure tells its story.
    fn life(&self, words: Vec<String>, events: &[Event]) -> Checked<()> {
        let mut story = vec![format!("job {}", words.join(" "))];
        self.live(world(words), events, &mut story)
            .map_err(|mut failure| {
                failure.story = Some(story);
                failure
            })
    }

    fn live(&self, mut world: JobWorld, events: &[Event], story: &mut Vec<String>) -> Checked<()> {
        for event in events {
            story.push(event.to_string());
            match event {
                Event::Pass => drop(self.pass(&mut world)?),
                Event::CrashAfter(applied) => {
                    let plan = self.plan(&world)?;
                    for effect in plan.effects.iter().take(*applied) {
                        let done = world.apply(effect);
                        done.map_err(|trespass| shared(&world, &trespass))?;
                    }
                }
                Event::Happening(happening) => inject_next(&mut world, happening),
            }
        }
        self.becomes_still(&world)
            .inspect_err(|_| story.push("pass".into()))?;
        story.extend(["change suspend=no", "room", "settle"].map(String::from));
        change(&mut world, "suspend=no");
        world.capacity = CapacityState::Free;
        let phase = self.comes_to_rest(&mut world)?;
        if !phase.is_finished() && world.job.instances() > 0 {
            story.extend(everything_succeeds(&mut world));
            story.push("settle".into());
            let ends = !matches!(world.job.restart(), RestartPolicy::Always { .. });
            // Time goes on while a job restarts, and may end it.
            let timed = world.job.max_runtime().is_some();
            if self.comes_to_rest(&mut world)?.is_finished() != ends && (ends || !timed) {
                return Err(failure(&world, PlannerProperty::Finishes, String::new()));
            }
        }
        self.holds_what_its_policy_says(&mut world)?;
        story.extend(["delete", "settle"].map(String::from));
        self.lets_go(&mut world)
    }

    /// Passes with nothing else happening come to one that changes nothing.
    fn becomes_still(&self, world: &JobWorld) -> Checked<()> {
        let mut world = world.clone();
        let mut last = None;
        for _ in 0..STILL_PASSES {
            let before = world.seen.clone();
            let plan = self.pass(&mut world)?;
            if world.finalized || (before == world.seen && last.as_ref() == Some(&plan)) {
                return Ok(());
            }
            last = Some(plan);
        }
        Err(failure(&world, PlannerProperty::FixedPoint, String::new()))
    }

    /// Passes, with everything under way coming to its end and time passing when nothing else does, until only an event
    /// could change anything: then the job runs, or is over.
    fn comes_to_rest(&self, world: &mut JobWorld) -> Checked<JobPhase> {
        let mut quiet = 0;
        for pass in 1..=PASSES {
            let before = world.seen.clone();
            let plan = self.pass(world)?;
            world.progress();
            let moved = before != world.seen;
            // Time that only ends what runs is left alone: the job has come to rest.
            let rests = plan.status.phase == JobPhase::Running || plan.status.phase.is_finished();
            if world.finalized || (quiet == 3 && rests && plan.effects.is_empty()) {
                let mut report = self.report.borrow_mut();
                report.longest = report.longest.max(pass);
                return Ok(plan.status.phase);
            }
            quiet = if moved { 0 } else { quiet + 1 };
            if moved || rests {
                continue;
            }
            match plan.requeue_after {
                Some(wake) => world.after(wake),
                None if quiet > 3 => break,
                None => {}
            }
        }
        let why = world.seen.status.message.clone();
        Err(failure(world, PlannerProperty::ComesToRest, why))
    }

    fn holds_what_its_policy_says(&self, world: &mut JobWorld) -> Checked<()> {
        let wrong = |world: &JobWorld, what: &str| {
            Err(failure(
                world,
                PlannerProperty::HoldsWhatItsPolicySays,
                what.into(),
            ))
        };
        let finished = world.seen.status.phase.is_finished();
        for facts in &world.seen.instances {
            let nothing = facts.partition == PartitionFacts::Absent
                && facts.workers.is_empty()
                && facts.launcher.is_none();
            if facts.index >= world.job.instances() && !nothing {
                return wrong(world, "a surplus instance has something");
            }
            if finished && world.job.clean_pod_policy() == CleanPodPolicy::All && !nothing {
                return wrong(world, "policy All leaves something");
            }
            if finished
                && world.job.clean_pod_policy() == CleanPodPolicy::Workers
                && !facts.workers.is_empty()
            {
                return wrong(world, "policy Workers leaves a worker");
            }
        }
        if finished && world.seen.status.exit_code.is_none() {
            return wrong(world, "it has finished without an exit code");
        }
        let Some(ttl) = world.job.ttl_after_finished().filter(|_| finished) else {
            return Ok(());
        };
        // A random state may have finished in the future.
        world.seen.now = world.seen.now.max(world.seen.status.finished.unwrap_or_default());
        world.after(ttl + Duration::from_secs(1));
        self.comes_to_rest(world)?;
        if world.is_empty() {
            Ok(())
        } else {
            wrong(world, "something is left after ttlSecondsAfterFinished")
        }
    }

    fn lets_go(&self, world: &mut JobWorld) -> Checked<()> {
        world.seen.deleted = true;
        let settled = self.comes_to_rest(world);
        match settled {
            Ok(_) if world.finalized && world.is_empty() => Ok(()),
            Err(other) if other.property != PlannerProperty::ComesToRest => Err(other),
            Ok(_) | Err(_) => Err(failure(world, PlannerProperty::LetsGo, String::new())),
        }
    }
}

/// Tries as many cases as asked for; gives the smallest that was found of those that fail as the first did.
fn search<S: Strategy<Value: Clone + Debug>>(
    options: PlannerOptions,
    round: u8,
    strategy: &S,
    case: impl Fn(S::Value) -> Checked<()>,
) -> Checked<()> {
    let config = Config {
        cases: options.cases,
        failure_persistence: None,
        max_shrink_iters: options.shrinks,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&options.seed.to_le_bytes());
    bytes[8] = round;
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let smallest: RefCell<Option<Box<PlannerFailure>>> = RefCell::default();
    let tried = TestRunner::new_with_rng(config, rng).run(strategy, |value| {
        let Err(failure) = case(value) else {
            return Ok(());
        };
        // While a case is made smaller it goes on failing in the same way, and does not turn into another.
        let mut smallest = smallest.borrow_mut();
        let other = |known: &PlannerFailure| kind(known) != kind(&failure);
        if smallest.as_deref().is_some_and(other) {
            return Ok(());
        }
        *smallest = Some(failure);
        Err(TestCaseError::fail("broken"))
    });
    match (tried, smallest.into_inner()) {
        (Ok(()), _) => Ok(()),
        (Err(TestError::Fail(..)), Some(failure)) => Err(failure),
        (Err(error), _) => panic!("random cases could not be made: {error}"),
    }
}

/// What tells two failures apart: the property, and the invariant.
fn kind(failure: &PlannerFailure) -> (PlannerProperty, Option<std::mem::Discriminant<BrokenPlan>>) {
    let broken = failure.broken.first().map(std::mem::discriminant);
    (failure.property, broken)
}

fn failure(world: &JobWorld, property: PlannerProperty, detail: String) -> Box<PlannerFailure> {
    Box::new(PlannerFailure {
        property,
        broken: Vec::new(),
        detail,
        job: world.text().to_vec(),
        seen: world.seen.clone(),
        story: None,
    })
}

fn shared(world: &JobWorld, trespass: &SafetyViolation) -> Box<PlannerFailure> {
    failure(world, PlannerProperty::NothingShared, trespass.to_string())
}

fn world(words: Vec<String>) -> JobWorld {
    JobWorld::new(words).expect("any small job can run")
}

fn change(world: &mut JobWorld, word: &str) {
    world.change([word]).expect("any small job can run");
}

fn inject_next(world: &mut JobWorld, happening: &JobEvent) {
    happening.inject(world).expect("any small job can run");
}

/// Every process that does the job's work ends well; gives the lines of the story.
fn everything_succeeds(world: &mut JobWorld) -> Vec<String> {
    let numbers = match world.job.shape() {
        JobKind::Workers => (0..world.job.workers_per_instance())
            .map(ProcessRole::Worker)
            .collect(),
        _ => vec![ProcessRole::Launcher],
    };
    let mut story = Vec::new();
    for instance in 0..world.job.instances() {
        for who in &numbers {
            let ends = JobEvent::Process(instance, *who, ProcessEnd::Ends(Exit::Code(0)));
            if ends.inject(world) == Ok(EventEffect::Found) {
                story.push(ends.to_string());
            }
        }
    }
    story
}

/// One event, or several that nothing comes between.
fn events() -> impl Strategy<Value = Vec<Event>> {
    let one = |event| vec![event];
    let together = vec(happenings().prop_map(Event::Happening), 2..4);
    prop_oneof![
        12 => Just(one(Event::Pass)),
        3 => (0_usize..6).prop_map(Event::CrashAfter).prop_map(one),
        18 => happenings().prop_map(Event::Happening).prop_map(one),
        4 => Just([const { [Event::Pass, Event::Happening(JobEvent::Progress)] }; 3].concat()),
        2 => together,
        2 => cascade(),
    ]
}

/// The processes of an instance fail, one after the other.
fn cascade() -> impl Strategy<Value = Vec<Event>> {
    let codes = vec(select(vec![1_u8, 3, 130, 143]), 3);
    (0_u32..3, vec(0_u64..2, 3), codes).prop_map(|(instance, pauses, codes)| {
        let who = [
            ProcessRole::Worker(0),
            ProcessRole::Launcher,
            ProcessRole::Worker(1),
        ];
        let fall = who
            .into_iter()
            .zip(pauses)
            .zip(codes)
            .flat_map(|((who, pause), code)| {
                let ends = JobEvent::Process(instance, who, ProcessEnd::Ends(Exit::Code(code)));
                [JobEvent::After(pause), ends]
            });
        fall.map(Event::Happening).collect()
    })
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass => f.write_str("pass"),
            Self::CrashAfter(applied) => write!(f, "crash {applied}"),
            Self::Happening(happening) => fmt::Display::fmt(happening, f),
        }
    }
}
