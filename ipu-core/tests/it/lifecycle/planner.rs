//! Properties of `plan`, over random jobs, observations and histories, and mutants that they detect.

mod mutants;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use ipu_core::job::{
    BrokenPlan, CleanPodPolicy, Exit, JobKind, JobPhase, JobSpec, Observation, PartitionFacts, Plan,
    RestartPolicy, check_plan, plan,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use ipu_testkit::strategies::{consistent_observations, job_dsl, observations};

use super::job_event::{EventEffect, JobEvent, ProcessEnd, job_events};
use super::world::{CapacityState, JobWorld, ProcessRole};
use mutants::MUTANTS;

/// Number of random histories, and of histories from a random state: enough to detect each mutant, most of
/// them in the first dozen.
const CASES: u32 = 200;
/// Number of random observations per history: they are cheaper by that factor.
const OBSERVATIONS: u32 = 5;
/// Fraction of the cases that run first.
const FIRST_ROUND_DIVISOR: u32 = 8;
/// Number of reconciliations after which a job will never quiesce: about ten times the longest history of the
/// default cases.
const MAX_RECONCILIATIONS: u32 = 200;
/// Number of reconciliations without events after which plans must be stable: stopping, deleting and
/// releasing everything takes less than ten.
const MAX_STABLE_RECONCILIATIONS: u32 = 40;

/// Property of a planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlannerProperty {
    /// The planner returns a plan for every job and observation.
    Total,
    /// The planner returns the same plan for the same input.
    Deterministic,
    /// `check_plan` finds no violation.
    Sound,
    /// No effect shares a device.
    NoSharedDevices,
    /// Applying the plans, with no other events, reaches a plan without changes.
    FixedPoint,
    /// Once the faults stop, a job runs or has finished.
    Quiesces,
    /// A job all of whose processes succeed finishes, or restarts if its restart policy is Always.
    Finishes,
    /// A job keeps its resources exactly as its clean-up policy requires.
    FollowsCleanupPolicy,
    /// A deleted job is finalized.
    Finalizes,
}

/// Smallest case found that violates a property.
#[derive(Clone, Debug)]
struct PlannerFailure {
    property: PlannerProperty,
    /// First invariant that `check_plan` found to be violated.
    broken: Option<std::mem::Discriminant<BrokenPlan>>,
    detail: String,
    /// Job, observation and, for the history of a new job, the script for a file of `testdata/plan`.
    case: String,
}

impl fmt::Display for PlannerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is violated: {}\n{}",
            self.property, self.detail, self.case
        )
    }
}

/// Checks every property of a planner in `cases` histories.
fn check_planner(
    planner: impl Fn(&JobSpec, &Observation) -> Plan,
    cases: u32,
    shrinks: u32,
) -> Result<(), Box<PlannerFailure>> {
    PlannerRun {
        planner: &planner,
        shrinks,
    }
    .run(cases)
}

#[test]
fn the_planner_of_the_core_has_every_property() {
    if let Err(failure) = check_planner(plan, CASES, CASES) {
        panic!("{failure}");
    }
}

#[test]
fn every_planner_mutant_is_detected_by_the_intended_property() {
    let mut undetected = Vec::new();
    for case in &MUTANTS {
        let message = match check_planner(case.planner, CASES, 10) {
            Ok(()) => "no failure".to_owned(),
            Err(failure) => failure.to_string(),
        };
        if !case.expected.split('|').any(|text| message.contains(text)) {
            undetected.push(format!("{}: {}: {message}", case.rule, case.mutation));
        }
    }
    assert!(undetected.is_empty(), "{}", undetected.join("\n"));
}

#[test]
fn every_rule_has_a_planner_mutant() {
    let index = include_str!("../../../src/job/rules.rs");
    let rules: BTreeSet<&str> = index
        .lines()
        .filter_map(|line| line.strip_prefix("pub(crate) mod ")?.strip_suffix(';'))
        .collect();
    assert!(rules.len() >= 12, "{rules:?}");
    let broken: BTreeSet<&str> = MUTANTS.iter().map(|case| case.rule).collect();
    let missing: Vec<_> = rules.difference(&broken).collect();
    assert!(missing.is_empty(), "no planner mutant for {missing:?}");
}

#[test]
fn the_job_model_rejects_effects_that_share_a_device() {
    let mut world = JobWorld::new(["workers=1"]).unwrap();
    world.capacity = CapacityState::Full;
    for _ in 0..3 {
        world.reconcile(&plan(&world.job, &world.observation)).unwrap();
        world.progress();
    }
    let worker = ProcessRole::Worker(0);
    assert!(world.process(0, worker).is_none(), "no capacity is available");
    world.capacity = CapacityState::Free;
    for _ in 0..3 {
        world.reconcile(&plan(&world.job, &world.observation)).unwrap();
        world.progress();
    }
    assert!(world.process(0, worker).is_some());
    let before = world.observation.clone();
    let release = ipu_core::job::Effect::ReleasePartition {
        instance: 0,
        attempt: 0,
        partition: world.job.partition_id(0),
    };
    let rejected = world.apply(&release).unwrap_err();
    assert!(
        rejected.contains("processes of the instance are alive"),
        "{rejected}"
    );
    assert_eq!(world.observation, before);
}

#[test]
fn a_plan_explains_at_most_32_instances_and_counts_the_others() {
    for (instances, last) in [
        (
            "instances=32",
            "the partition of instance 31 is being made ready for attempt 0",
        ),
        ("instances=35", "3 more instances are not running yet"),
    ] {
        let world = JobWorld::new([instances]).unwrap();
        let plan = plan(&world.job, &world.observation);
        assert_eq!(plan.reasons.last().unwrap().message, last);
    }
}

/// Step of a history.
#[derive(Clone, Debug)]
enum EventStep {
    Reconcile,
    /// Reconciliation that applies its first effects and crashes before it records the status.
    CrashAfter(usize),
    Job(JobEvent),
}

/// Planner under test, and the limit on attempts to shrink a failing case.
struct PlannerRun<'a, P> {
    planner: &'a P,
    shrinks: u32,
}

type Checked<T> = Result<T, Box<PlannerFailure>>;

impl<P: Fn(&JobSpec, &Observation) -> Plan> PlannerRun<'_, P> {
    fn run(self, cases: u32) -> Checked<()> {
        // A few cases of each kind first, so that frequent failures are found early.
        let few = cases.div_ceil(FIRST_ROUND_DIVISOR);
        self.run_round(few, 0)?;
        self.run_round(cases - few, 1)
    }

    fn run_round(&self, cases: u32, round: u8) -> Checked<()> {
        let shrinks = self.shrinks;
        search(
            cases * OBSERVATIONS,
            shrinks,
            round,
            &(job_dsl(), observations()),
            |(fields, observation)| {
                let mut world = world(fields);
                world.observation = observation;
                self.plan(&world).map(drop)
            },
        )?;
        let histories = (job_dsl(), vec(events(), 0..50));
        search(cases, shrinks, round, &histories, |(fields, events)| {
            self.run_new_job(fields, &events.concat())
        })?;
        let states = (job_dsl(), consistent_observations());
        search(cases, shrinks, round, &states, |(fields, observation)| {
            self.run_from_state(fields, observation)
        })
    }

    /// Returns a checked plan.
    fn plan(&self, world: &JobWorld) -> Checked<Plan> {
        let (job, observation) = (&world.job, &world.observation);
        let call = || catch_unwind(AssertUnwindSafe(|| (self.planner)(job, observation)));
        let plan = call().map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            failure(world, PlannerProperty::Total, text.unwrap_or_default())
        })?;
        if call().ok().as_ref() != Some(&plan) {
            return Err(failure(world, PlannerProperty::Deterministic, String::new()));
        }
        let broken = check_plan(job, observation, &plan);
        if let Some(first) = broken.first() {
            let details: Vec<_> = broken.iter().map(ToString::to_string).collect();
            let mut failure = failure(world, PlannerProperty::Sound, details.join("; "));
            failure.broken = Some(std::mem::discriminant(first));
            return Err(failure);
        }
        Ok(plan)
    }

    fn reconcile(&self, world: &mut JobWorld) -> Checked<Plan> {
        let plan = self.plan(world)?;
        let before = world.clone();
        world
            .reconcile(&plan)
            .map_err(|violation| shared_device(&before, &violation))?;
        Ok(plan)
    }

    /// Runs a history from a random state.
    fn run_from_state(&self, fields: Vec<String>, observation: Observation) -> Checked<()> {
        let mut world = world(fields);
        change(&mut world, "suspend=no");
        world.observation = observation;
        self.check_fixed_point(&world)?;
        if !world.observation.deleted {
            self.quiesce(&mut world)?;
            self.check_cleanup_policy(&mut world)?;
        }
        self.check_finalization(&mut world)
    }

    /// Runs the history of a new job; a failure contains its script.
    fn run_new_job(&self, fields: Vec<String>, events: &[EventStep]) -> Checked<()> {
        let mut script = vec![format!("job {}", fields.join(" "))];
        self.run_steps(world(fields), events, &mut script)
            .map_err(|mut failure| {
                failure.case += &format!("\nscript:\n{}\n----\n", script.join("\n"));
                failure
            })
    }

    fn run_steps(&self, mut world: JobWorld, events: &[EventStep], script: &mut Vec<String>) -> Checked<()> {
        for event in events {
            script.push(event.to_string());
            match event {
                EventStep::Reconcile => drop(self.reconcile(&mut world)?),
                EventStep::CrashAfter(applied) => {
                    let plan = self.plan(&world)?;
                    for effect in plan.effects.iter().take(*applied) {
                        let done = world.apply(effect);
                        done.map_err(|violation| shared_device(&world, &violation))?;
                    }
                }
                EventStep::Job(event) => inject_next(&mut world, event),
            }
        }
        self.check_fixed_point(&world)
            .inspect_err(|_| script.push("pass".into()))?;
        script.extend(["change suspend=no", "room", "settle"].map(String::from));
        change(&mut world, "suspend=no");
        world.capacity = CapacityState::Free;
        let phase = self.quiesce(&mut world)?;
        if !phase.is_finished() && world.job.instances() > 0 {
            script.extend(succeed_all(&mut world));
            script.push("settle".into());
            let ends = !matches!(world.job.restart(), RestartPolicy::Always { .. });
            // Time advances while a job restarts, and may end it.
            let timed = world.job.max_runtime().is_some();
            if self.quiesce(&mut world)?.is_finished() != ends && (ends || !timed) {
                return Err(failure(&world, PlannerProperty::Finishes, String::new()));
            }
        }
        self.check_cleanup_policy(&mut world)?;
        script.extend(["delete", "settle"].map(String::from));
        self.check_finalization(&mut world)
    }

    /// Checks that reconciliations without events reach a plan without changes.
    fn check_fixed_point(&self, world: &JobWorld) -> Checked<()> {
        let mut world = world.clone();
        let mut last = None;
        for _ in 0..MAX_STABLE_RECONCILIATIONS {
            let before = world.observation.clone();
            let plan = self.reconcile(&mut world)?;
            if world.finalized || (before == world.observation && last.as_ref() == Some(&plan)) {
                return Ok(());
            }
            last = Some(plan);
        }
        Err(failure(&world, PlannerProperty::FixedPoint, String::new()))
    }

    /// Reconciles, completes operations in progress, and advances time when nothing else happens, until only
    /// an event could cause changes. The job must then run or have finished.
    fn quiesce(&self, world: &mut JobWorld) -> Checked<JobPhase> {
        let mut quiet = 0;
        for _ in 0..MAX_RECONCILIATIONS {
            let before = world.observation.clone();
            let plan = self.reconcile(world)?;
            world.progress();
            let changed = before != world.observation;
            // A deadline of a running job is not awaited: the job is quiescent.
            let rests = plan.status.phase == JobPhase::Running || plan.status.phase.is_finished();
            if world.finalized || (quiet == 3 && rests && plan.effects.is_empty()) {
                return Ok(plan.status.phase);
            }
            quiet = if changed { 0 } else { quiet + 1 };
            if changed || rests {
                continue;
            }
            match plan.requeue_after {
                Some(wake) => world.after(wake),
                None if quiet > 3 => break,
                None => {}
            }
        }
        let message = world.observation.status.message.clone();
        Err(failure(world, PlannerProperty::Quiesces, message))
    }

    fn check_cleanup_policy(&self, world: &mut JobWorld) -> Checked<()> {
        let violation = |world: &JobWorld, detail: &str| {
            Err(failure(
                world,
                PlannerProperty::FollowsCleanupPolicy,
                detail.into(),
            ))
        };
        let finished = world.observation.status.phase.is_finished();
        for facts in &world.observation.instances {
            let nothing = facts.partition == PartitionFacts::Absent
                && facts.workers.is_empty()
                && facts.launcher.is_none();
            if facts.index >= world.job.instances() && !nothing {
                return violation(world, "a surplus instance keeps resources");
            }
            if finished && world.job.clean_pod_policy() == CleanPodPolicy::All && !nothing {
                return violation(world, "policy All leaves resources");
            }
            if finished
                && world.job.clean_pod_policy() == CleanPodPolicy::Workers
                && !facts.workers.is_empty()
            {
                return violation(world, "policy Workers leaves a worker");
            }
        }
        if finished && world.observation.status.exit_code.is_none() {
            return violation(world, "the job has finished without an exit code");
        }
        let Some(ttl) = world.job.ttl_after_finished().filter(|_| finished) else {
            return Ok(());
        };
        // A random state may have a finish time in the future.
        world.observation.now = world
            .observation
            .now
            .max(world.observation.status.finished.unwrap_or_default());
        world.after(ttl + Duration::from_secs(1));
        self.quiesce(world)?;
        if world.is_empty() {
            Ok(())
        } else {
            violation(world, "resources are left after ttlSecondsAfterFinished")
        }
    }

    fn check_finalization(&self, world: &mut JobWorld) -> Checked<()> {
        world.observation.deleted = true;
        let settled = self.quiesce(world);
        match settled {
            Ok(_) if world.finalized && world.is_empty() => Ok(()),
            Err(other) if other.property != PlannerProperty::Quiesces => Err(other),
            Ok(_) | Err(_) => Err(failure(world, PlannerProperty::Finalizes, String::new())),
        }
    }
}

/// Runs the requested number of cases; returns the smallest case that fails in the same way as the first
/// failure.
fn search<S: Strategy<Value: Clone + Debug>>(
    cases: u32,
    shrinks: u32,
    round: u8,
    strategy: &S,
    case: impl Fn(S::Value) -> Checked<()>,
) -> Checked<()> {
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: shrinks,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[0] = round;
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let smallest: RefCell<Option<Box<PlannerFailure>>> = RefCell::default();
    let tried = TestRunner::new_with_rng(config, rng).run(strategy, |value| {
        let Err(failure) = case(value) else {
            return Ok(());
        };
        // A failing case must not turn into a different failure while it shrinks.
        let mut smallest = smallest.borrow_mut();
        let other = |current: &PlannerFailure| {
            (current.property, current.broken) != (failure.property, failure.broken)
        };
        if smallest.as_deref().is_some_and(other) {
            return Ok(());
        }
        *smallest = Some(failure);
        Err(TestCaseError::fail("broken"))
    });
    match (tried, smallest.into_inner()) {
        (Ok(()), _) => Ok(()),
        (Err(TestError::Fail(..)), Some(failure)) => Err(failure),
        (Err(error), _) => panic!("cannot generate random cases: {error}"),
    }
}

fn failure(world: &JobWorld, property: PlannerProperty, detail: String) -> Box<PlannerFailure> {
    Box::new(PlannerFailure {
        property,
        broken: None,
        detail,
        case: format!("job {}\n{:#?}", world.text().join(" "), world.observation),
    })
}

fn shared_device(world: &JobWorld, violation: &str) -> Box<PlannerFailure> {
    failure(world, PlannerProperty::NoSharedDevices, violation.to_owned())
}

fn world(fields: Vec<String>) -> JobWorld {
    JobWorld::new(fields).expect("every small job is valid")
}

fn change(world: &mut JobWorld, field: &str) {
    world.change([field]).expect("every small job is valid");
}

fn inject_next(world: &mut JobWorld, event: &JobEvent) {
    event.inject(world).expect("every small job is valid");
}

/// Lets every active process succeed and returns the script lines.
fn succeed_all(world: &mut JobWorld) -> Vec<String> {
    let numbers = match world.job.shape() {
        JobKind::Workers => (0..world.job.workers_per_instance())
            .map(ProcessRole::Worker)
            .collect(),
        _ => vec![ProcessRole::Launcher],
    };
    let mut script = Vec::new();
    for instance in 0..world.job.instances() {
        for role in &numbers {
            let ends = JobEvent::Process(instance, *role, ProcessEnd::Ends(Exit::Code(0)));
            if ends.inject(world) == Ok(EventEffect::Found) {
                script.push(ends.to_string());
            }
        }
    }
    script
}

/// Returns one event, or several in direct sequence.
fn events() -> impl Strategy<Value = Vec<EventStep>> {
    let one = |event| vec![event];
    let together = vec(job_events().prop_map(EventStep::Job), 2..4);
    prop_oneof![
        12 => Just(one(EventStep::Reconcile)),
        3 => (0_usize..6).prop_map(EventStep::CrashAfter).prop_map(one),
        18 => job_events().prop_map(EventStep::Job).prop_map(one),
        4 => Just([const { [EventStep::Reconcile, EventStep::Job(JobEvent::Progress)] }; 3].concat()),
        2 => together,
        2 => cascade(),
    ]
}

/// Returns failures of the processes of an instance, one after the other.
fn cascade() -> impl Strategy<Value = Vec<EventStep>> {
    let codes = vec(select(vec![1_u8, 3, 130, 143]), 3);
    (0_u32..3, vec(0_u64..2, 3), codes).prop_map(|(instance, pauses, codes)| {
        let role = [
            ProcessRole::Worker(0),
            ProcessRole::Launcher,
            ProcessRole::Worker(1),
        ];
        let failures = role
            .into_iter()
            .zip(pauses)
            .zip(codes)
            .flat_map(|((role, pause), code)| {
                let ends = JobEvent::Process(instance, role, ProcessEnd::Ends(Exit::Code(code)));
                [JobEvent::After(pause), ends]
            });
        failures.map(EventStep::Job).collect()
    })
}

impl fmt::Display for EventStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reconcile => f.write_str("pass"),
            Self::CrashAfter(applied) => write!(f, "crash {applied}"),
            Self::Job(event) => fmt::Display::fmt(event, f),
        }
    }
}
