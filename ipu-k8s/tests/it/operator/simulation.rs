//! Simulations of many jobs under an operator that crashes, receives events late and gets no responses:
//! invariants at every step, and the final state after faults have stopped.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use ipu_core::JobKey;
use ipu_k8s::controller::{PortError, Reconciler, Requeue};
use ipu_k8s::resources::InstallationDefaults;
use serde_json::{Value, json};

use super::fake_cluster::{ClusterState, Operators, World, key, time};
use super::random_events::Random;
use super::reconcile::block_on;

type Reconciliation = Pin<Box<dyn Future<Output = Result<Requeue, PortError>>>>;

/// Default number of simulations; `IPU_OPERATOR_CASES` overrides it.
const DEFAULT_CASES: u64 = 300;

/// Number of rounds in which watches still disconnect after all other faults have stopped.
const DISCONNECT_ROUNDS: u32 = 20;

/// Counts of events in all simulations.
#[derive(Debug, Default)]
struct Coverage(BTreeMap<String, u64>);

impl Coverage {
    fn count(&mut self, event: &str) {
        *self.0.entry(event.to_owned()).or_default() += 1;
    }
}

/// A simulation: its operators, and their running reconciliations by operator index and job name.
struct Simulation {
    world: World,
    operators: Vec<Arc<Reconciler>>,
    reconciliations: BTreeMap<(usize, String), Reconciliation>,
    random: Random,
}

fn operator(world: &World, index: usize) -> Arc<Reconciler> {
    let cache = world.restart(index);
    let port = world.port();
    let mut installation = InstallationDefaults::default();
    // The limit is effective in some simulations.
    installation.max_requested = 1 + world.state().capacity / 4;
    Arc::new(Reconciler::new(
        port.clone(),
        port,
        cache,
        installation,
        world.clock(),
    ))
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let operators = if seed.is_multiple_of(4) {
            Operators::Two
        } else {
            Operators::One
        };
        let world = World::new(seed, operators);
        let count = world.state().operator_watches.len();
        Self {
            operators: (0..count).map(|index| operator(&world, index)).collect(),
            world,
            reconciliations: BTreeMap::new(),
            random: Random(seed ^ 0x5eed),
        }
    }

    fn job(&mut self) -> Option<String> {
        let jobs: Vec<String> = self.world.state().jobs.keys().cloned().collect();
        let count = u64::try_from(jobs.len()).unwrap();
        (count > 0).then(|| jobs[usize::try_from(self.random.below(count)).unwrap()].clone())
    }

    /// Submits a job unless its name exists; returns the number of submitted jobs.
    fn submit(&mut self) -> u64 {
        let name = format!("job{}", self.random.below(5));
        if self.world.state().jobs.contains_key(&name) {
            return 0;
        }
        let random = &mut self.random;
        let policies = [
            json!({"type": "Never"}),
            json!({"type": "OnFailure", "backOffLimit": 2, "backOffSeconds": 1}),
            json!({"type": "ExitCode", "exitCodes": "100-255", "backOffLimit": 2, "backOffSeconds": 1}),
        ];
        let policy = usize::try_from(random.below(3)).unwrap();
        let clean = ["None", "Workers", "All"][usize::try_from(random.below(3)).unwrap()];
        let ipus = 1_u64 << random.below(3);
        let workers = 1 << random.below(2).min(ipus / 2);
        let mut spec = json!({
            "jobInstances": 1 + random.below(3),
            "ipusPerJobInstance": ipus.to_string(),
            "cleanPodPolicy": clean,
            "restartPolicy": policies[policy],
            "workers": {
                "replicas": workers,
                "template": {"spec": {"containers": [{"name": "main", "image": "i", "command": ["run", "it", "now"]}]}},
            },
        });
        if random.one_in(2) {
            if random.one_in(4) {
                spec["interactive"] = json!({"ttl": 1 + random.below(60)});
            } else {
                spec["launcher"] = json!({"command": ["mpirun"]});
            }
            spec["workers"]["template"]["spec"]["containers"][0]
                .as_object_mut()
                .unwrap()
                .remove("command");
        }
        if random.one_in(3) {
            spec["startDeadlineSeconds"] = (1 + random.below(8)).into();
        }
        if random.one_in(6) {
            spec["activeDeadlineSeconds"] = (5 + random.below(60)).into();
        }
        if random.one_in(3) {
            spec["ttlSecondsAfterFinished"] = random.below(20).into();
        }
        self.world.submit(&name, spec);
        1
    }

    /// Starts a reconciliation of a job, or advances it by a few calls.
    fn run_reconciliation(&mut self, coverage: &mut Coverage) {
        let Some(job) = self.job() else { return };
        let index = usize::try_from(self.random.below(self.operators.len() as u64)).unwrap();
        let key = (index, job);
        if !self.reconciliations.contains_key(&key) {
            let operator = Arc::clone(&self.operators[index]);
            let object = {
                let state = self.world.state();
                let of = super::fake_cluster::key(&state.jobs[&key.1]);
                state.operator_watches[index].jobs.get(&of).cloned()
            };
            let Some(object) = object else { return };
            self.reconciliations.insert(
                key.clone(),
                Box::pin(async move { operator.reconcile(&object).await }),
            );
        }
        for _ in 0..=self.random.below(6) {
            let Some(reconciliation) = self.reconciliations.get_mut(&key) else {
                return;
            };
            if let Poll::Ready(outcome) = reconciliation
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
            {
                self.reconciliations.remove(&key);
                coverage.count(match outcome {
                    Ok(Requeue::AwaitChange) => "reconciliations that await a change",
                    Ok(Requeue::After(_)) => "reconciliations with a requeue",
                    Err(PortError::Conflict(_)) => "conflicts",
                    Err(_) => "failed reconciliations",
                });
            }
            self.world.state().check();
        }
    }

    fn crash(&mut self) {
        let index = usize::try_from(self.random.below(self.operators.len() as u64)).unwrap();
        self.reconciliations.retain(|(operator, _), _| *operator != index);
        self.operators[index] = operator(&self.world, index);
    }

    fn change(&mut self) {
        let Some(job) = self.job() else { return };
        let suspend = self.random.one_in(2);
        let instances = self.random.below(4);
        let change = self.random.below(6);
        let number = self.random.below(40);
        self.world.state().change_job(&job, |job| {
            let generation = job["metadata"]["generation"].as_u64().unwrap() + 1;
            job["metadata"]["generation"] = generation.into();
            match change {
                0 | 1 => job["spec"]["suspend"] = suspend.into(),
                2 if job["status"]["phase"]
                    .as_str()
                    .is_none_or(|phase| phase == "Pending") =>
                {
                    job["spec"]["priority"] = number.into();
                }
                3 => job["spec"]["activeDeadlineSeconds"] = (20 + number).into(),
                4 => {
                    job["spec"]["cleanPodPolicy"] =
                        ["None", "Workers", "All"][instances.min(2) as usize].into()
                }
                _ => job["spec"]["jobInstances"] = instances.into(),
            }
        });
    }

    fn run_with_faults(&mut self, coverage: &mut Coverage) {
        let mut submitted = 0;
        for _ in 0..700 {
            match self.random.below(60) {
                0 if submitted < 8 => submitted += self.submit(),
                1 => {
                    coverage.count("crashes");
                    self.crash();
                }
                2 => self.change(),
                3 if self.random.one_in(3) => {
                    if let Some(job) = self.job() {
                        self.world.delete(&job);
                    }
                }
                4 if self.random.one_in(3) => {
                    coverage.count("Pods deleted by other clients");
                    self.world.delete_pod();
                }
                5 if self.random.one_in(6) => {
                    let is_down = !self.world.state().proxy_is_down;
                    self.world.set_proxy_down(is_down);
                }
                6 if self.random.one_in(10) => {
                    if let Some(job) = self.job() {
                        coverage.count("jobs deleted by force");
                        self.world.force_delete_job(&job);
                    }
                }
                7 if self.random.one_in(6) => {
                    let job = format!("job{}", self.random.below(5));
                    self.world.create_foreign_pod(&job);
                }
                4..=30 => self.world.step(),
                _ => self.run_reconciliation(coverage),
            }
            self.world.state().check();
        }
    }

    /// Stops all faults, and reconciles all jobs until nothing changes.
    fn run_without_faults(&mut self) {
        self.world.state().fault_rate = 0;
        self.world.state().quota = usize::MAX;
        self.world.set_proxy_down(false);
        self.world.remove_foreign_pods();
        let jobs: Vec<String> = self.world.state().jobs.keys().cloned().collect();
        for job in jobs {
            self.world.state().change_job(&job, |job| {
                job["spec"]["suspend"] = false.into();
                job["spec"]["startDeadlineSeconds"] = 600.into();
            });
        }
        let reconciliations = std::mem::take(&mut self.reconciliations);
        if self.random.one_in(2) {
            for index in 0..self.operators.len() {
                self.operators[index] = operator(&self.world, index);
            }
        } else {
            // The operators continue with their present state.
            reconciliations
                .into_values()
                .for_each(|reconciliation| drop(block_on(reconciliation)));
            let mut state = self.world.state();
            let all: Vec<JobKey> = state.jobs.values().map(key).collect();
            state.operator_watches[0].due.extend(all);
        }
        self.run_until_idle();
    }

    /// Reconciles jobs with events or due requeues, as the controller does, until nothing changes. No job
    /// may be missed.
    fn run_until_idle(&mut self) {
        let mut requeued: BTreeMap<JobKey, u64> = BTreeMap::new();
        let mut idle_rounds = 0;
        for round in 0..400 {
            let (before, now) = {
                let mut state = self.world.state();
                if round == DISCONNECT_ROUNDS {
                    state.disconnect_rate = 0;
                }
                let now = state.now;
                let due_jobs = requeued.iter().filter(|(_, at)| **at <= now);
                state.operator_watches[0]
                    .due
                    .extend(due_jobs.map(|(job, _)| job.clone()));
                (state.version, now)
            };
            for _ in 0..40 {
                let due = self.world.state().operator_watches[0].due.pop_first();
                let Some(job) = due else { break };
                match self.reconcile_latest(&job) {
                    None | Some(Ok(Requeue::AwaitChange)) => requeued.remove(&job),
                    Some(Ok(Requeue::After(pause))) => {
                        let pause = u64::try_from(pause.as_millis()).unwrap();
                        requeued.insert(job, now + pause)
                    }
                    Some(Err(_)) => requeued.insert(job, now),
                };
                for _ in 0..self.random.below(4) {
                    self.world.state().deliver_event();
                }
            }
            self.world.settle();
            self.world.state().check();
            let idle = {
                let state = self.world.state();
                state.version == before
                    && state.operator_watches[0].due.is_empty()
                    && state.operator_watches[0].is_drained()
                    && !state.jobs.values().any(|job| is_backing_off(job, state.now))
            };
            idle_rounds = if idle { idle_rounds + 1 } else { 0 };
            // Longer than the longest back-off between attempts.
            if idle_rounds > 4 {
                return;
            }
        }
        panic!("the simulation does not become idle");
    }

    /// Reconciles the last observed version of a job while unobserved changes happen; returns `None` if the
    /// job does not exist.
    fn reconcile_latest(&self, job: &JobKey) -> Option<Result<Requeue, PortError>> {
        let job = self.world.state().operator_watches[0].jobs.get(job).cloned()?;
        let operator = Arc::clone(&self.operators[0]);
        let mut reconciliation = Box::pin(async move { operator.reconcile(&job).await });
        loop {
            if let Poll::Ready(outcome) = reconciliation
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
            {
                return Some(outcome);
            }
            self.world.step_unobserved();
        }
    }
}

/// Returns whether an instance of the job is in back-off.
fn is_backing_off(job: &Value, now: u64) -> bool {
    let instances = job["status"]["instances"].as_array().into_iter().flatten();
    let mut until = instances.filter_map(|instance| instance["retryTime"].as_str());
    until.any(|until| until > time(now).as_str())
}

/// Checks that a job that makes no more progress has a result or a reason to wait.
fn check_settled(job: &Value, state: &ClusterState) {
    let status = &job["status"];
    let message = status["lastMessage"].as_str().unwrap_or_default();
    match status["phase"].as_str() {
        Some("Completed") => assert_eq!(message, "All instances done"),
        Some("Failed") if status["conclusion"]["code"] == "DeadlineExceeded" => {
            assert!(!job["spec"]["activeDeadlineSeconds"].is_null(), "{job}");
            assert_eq!(status["exitCode"], 124, "{job}");
        }
        Some("Failed") => {
            assert!(message.contains("failed:"), "{job}");
            assert!(
                status["firstFailure"]["name"]
                    .as_str()
                    .is_some_and(|name| !name.is_empty()),
                "{job}"
            );
            let has_exit_code = status["firstFailure"]["exitCode"]
                .as_u64()
                .is_some_and(|code| code != 0);
            assert!(
                !has_exit_code || status["firstFailure"]["log"] == "the end",
                "{job}"
            );
        }
        Some("Running") if job["spec"]["jobInstances"] == 0 => {}
        Some("Pending" | "Restarting") => {
            assert!(message.starts_with("partition not ready yet!"), "{job}");
            // Finished jobs may keep their partitions, but no job waits for free capacity.
            let held = state.holds.values().filter(|hold| hold.state != "waiting");
            let held: u32 = held.map(|hold| hold.wanted.size).sum();
            let mut waiting = state
                .holds
                .values()
                .filter(|hold| hold.state == "waiting" && job["metadata"]["uid"] == hold.wanted.owner.uid)
                .peekable();
            assert!(
                waiting.peek().is_some(),
                "no partition is queued for the job: {job}"
            );
            for hold in waiting {
                assert!(
                    held + hold.wanted.size > state.capacity,
                    "the queued partition fits: {hold:?}, {job}"
                );
            }
        }
        other => panic!("a job stays in phase {other:?}: {job}"),
    }
}

fn simulate(seed: u64, coverage: &mut Coverage) {
    let mut simulation = Simulation::new(seed);
    simulation.run_with_faults(coverage);
    simulation.run_without_faults();
    let jobs = simulation.world.state().jobs.clone();
    simulation.world.state().check_rights_at_rest();
    for job in jobs.values() {
        check_settled(job, &simulation.world.state());
        coverage.count(&format!(
            "jobs that end {}",
            job["status"]["phase"].as_str().unwrap()
        ));
    }
    for job in jobs.keys() {
        simulation.world.delete(job);
    }
    simulation.run_until_idle();
    let state = simulation.world.state();
    assert!(state.jobs.is_empty(), "jobs not deleted: {:?}", state.jobs);
    assert!(state.pods.is_empty(), "Pods not deleted: {:?}", state.pods.keys());
    assert!(state.holds.is_empty(), "partitions leaked: {:?}", state.holds);
    coverage.count("simulations");
    *coverage.0.entry("faults".into()).or_default() += state.faults;
    *coverage.0.entry("writes".into()).or_default() += state.writes;
}

#[test]
fn an_operator_with_crashes_and_lost_responses_holds_no_partition_twice_and_leaks_none() {
    let variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match variable("IPU_OPERATOR_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("IPU_OPERATOR_CASES").unwrap_or(DEFAULT_CASES),
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let next = std::sync::atomic::AtomicU64::new(seeds.start);
    let all = std::thread::scope(|scope| {
        let run = || {
            let mut coverage = Coverage::default();
            loop {
                let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if seed >= seeds.end {
                    return coverage;
                }
                let outcome = catch_unwind(AssertUnwindSafe(|| simulate(seed, &mut coverage)));
                assert!(
                    outcome.is_ok(),
                    "seed {seed}; repeat with: IPU_OPERATOR_SEED={seed} cargo test -p ipu-k8s --test it operator::simulation"
                );
            }
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect::<Vec<_>>()
    });
    let mut coverage = Coverage::default();
    for (event, times) in all.into_iter().flat_map(|coverage| coverage.0) {
        *coverage.0.entry(event).or_default() += times;
    }
    println!("{:?}", coverage.0);
    if coverage.0["simulations"] >= DEFAULT_CASES {
        for event in [
            "crashes",
            "Pods deleted by other clients",
            "conflicts",
            "failed reconciliations",
            "faults",
            "jobs that end Failed",
            "jobs deleted by force",
        ] {
            assert!(
                coverage.0.contains_key(event),
                "no simulation had any {event}: {coverage:?}"
            );
        }
    }
}
