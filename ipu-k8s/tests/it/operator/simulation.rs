//! Lives of many jobs under an operator that crashes, is told late, and is not answered: what has to hold at any moment, and
//! what has to hold once nothing goes wrong any more.

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

use super::fake_cluster::{Operators, State, World, key, time};
use super::random_events::Random;
use super::reconcile::finish;

type Pass = Pin<Box<dyn Future<Output = Result<Requeue, PortError>>>>;

/// How many lives are simulated by default; `IPU_OPERATOR_CASES` says otherwise.
const CASES: u64 = 1000;

/// For how many rounds watches still break when nothing else goes wrong any more.
const GAPS: u32 = 20;

/// What all lives together came to.
#[derive(Debug, Default)]
struct Reached(BTreeMap<String, u64>);

impl Reached {
    fn count(&mut self, what: &str) {
        *self.0.entry(what.to_owned()).or_default() += 1;
    }
}

/// The operators of a life and what they are in the middle of, by the number of the operator and the name of the job.
struct Life {
    world: World,
    operators: Vec<Arc<Reconciler>>,
    passes: BTreeMap<(usize, String), Pass>,
    random: Random,
}

fn operator(world: &World, ear: usize) -> Arc<Reconciler> {
    let cache = world.restart(ear);
    let port = world.port();
    let mut installation = InstallationDefaults::default();
    // So that the limit matters in some worlds.
    installation.max_requested = 1 + world.state().capacity / 4;
    Arc::new(Reconciler::new(
        port.clone(),
        port,
        cache,
        installation,
        world.clock(),
    ))
}

impl Life {
    fn new(seed: u64) -> Self {
        let operators = if seed.is_multiple_of(4) {
            Operators::Two
        } else {
            Operators::One
        };
        let world = World::new(seed, operators);
        let many = world.state().ears.len();
        Self {
            operators: (0..many).map(|ear| operator(&world, ear)).collect(),
            world,
            passes: BTreeMap::new(),
            random: Random(seed ^ 0x5eed),
        }
    }

    fn job(&mut self) -> Option<String> {
        let jobs: Vec<String> = self.world.state().jobs.keys().cloned().collect();
        let many = u64::try_from(jobs.len()).unwrap();
        (many > 0).then(|| jobs[usize::try_from(self.random.below(many)).unwrap()].clone())
    }

    /// Submits a job, unless one of its name is there still; how many it has submitted.
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

    /// Lets a pass over a job begin, or get on by one call.
    fn work(&mut self, reached: &mut Reached) {
        let Some(job) = self.job() else { return };
        let which = usize::try_from(self.random.below(self.operators.len() as u64)).unwrap();
        let key = (which, job);
        if !self.passes.contains_key(&key) {
            let operator = Arc::clone(&self.operators[which]);
            let object = {
                let state = self.world.state();
                let of = super::fake_cluster::key(&state.jobs[&key.1]);
                state.ears[which].jobs.get(&of).cloned()
            };
            let Some(object) = object else { return };
            self.passes.insert(
                key.clone(),
                Box::pin(async move { operator.reconcile(&object).await }),
            );
        }
        for _ in 0..=self.random.below(6) {
            let Some(pass) = self.passes.get_mut(&key) else {
                return;
            };
            if let Poll::Ready(outcome) = pass.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                self.passes.remove(&key);
                reached.count(match outcome {
                    Ok(Requeue::AwaitChange) => "passes that wait to be told",
                    Ok(Requeue::After(_)) => "passes that look again",
                    Err(PortError::Conflict(_)) => "conflicts",
                    Err(_) => "passes that failed",
                });
            }
            self.world.state().check();
        }
    }

    fn crash(&mut self) {
        let which = usize::try_from(self.random.below(self.operators.len() as u64)).unwrap();
        self.passes.retain(|(operator, _), _| *operator != which);
        self.operators[which] = operator(&self.world, which);
    }

    fn change(&mut self) {
        let Some(job) = self.job() else { return };
        let suspend = self.random.one_in(2);
        let instances = self.random.below(4);
        let what = self.random.below(6);
        let number = self.random.below(40);
        self.world.state().change_job(&job, |job| {
            let generation = job["metadata"]["generation"].as_u64().unwrap() + 1;
            job["metadata"]["generation"] = generation.into();
            match what {
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

    fn wild(&mut self, reached: &mut Reached) {
        let mut submitted = 0;
        for _ in 0..700 {
            match self.random.below(60) {
                0 if submitted < 8 => submitted += self.submit(),
                1 => {
                    reached.count("crashes");
                    self.crash();
                }
                2 => self.change(),
                3 if self.random.one_in(3) => {
                    if let Some(job) = self.job() {
                        self.world.delete(&job);
                    }
                }
                4 if self.random.one_in(3) => {
                    reached.count("Kubernetes Pods that others delete");
                    self.world.delete_pod();
                }
                5 if self.random.one_in(6) => {
                    let is_away = !self.world.state().proxy_is_away;
                    self.world.turn_proxy(is_away);
                }
                6 if self.random.one_in(10) => {
                    if let Some(job) = self.job() {
                        reached.count("jobs that others let go of");
                        self.world.take_job_by_force(&job);
                    }
                }
                7 if self.random.one_in(6) => {
                    let job = format!("job{}", self.random.below(5));
                    self.world.take_name(&job);
                }
                4..=30 => self.world.step(),
                _ => self.work(reached),
            }
            self.world.state().check();
        }
    }

    /// Nothing goes wrong any more. Works on all jobs until nothing changes.
    fn calm(&mut self) {
        self.world.state().trouble = 0;
        self.world.state().quota = usize::MAX;
        self.world.turn_proxy(false);
        self.world.give_names_back();
        let jobs: Vec<String> = self.world.state().jobs.keys().cloned().collect();
        for job in jobs {
            self.world.state().change_job(&job, |job| {
                job["spec"]["suspend"] = false.into();
                job["spec"]["startDeadlineSeconds"] = 600.into();
            });
        }
        let passes = std::mem::take(&mut self.passes);
        if self.random.one_in(2) {
            for which in 0..self.operators.len() {
                self.operators[which] = operator(&self.world, which);
            }
        } else {
            // What the operators have heard and done so far counts from here on.
            passes.into_values().for_each(|pass| drop(finish(pass)));
            let mut state = self.world.state();
            let all: Vec<JobKey> = state.jobs.values().map(key).collect();
            state.ears[0].due.extend(all);
        }
        self.rest();
    }

    /// Looks at whoever was told of, or said when, as the loop does, until nothing changes any more: nobody may be forgotten.
    fn rest(&mut self) {
        let mut again: BTreeMap<JobKey, u64> = BTreeMap::new();
        let mut quiet = 0;
        for round in 0..400 {
            let (before, now) = {
                let mut state = self.world.state();
                if round == GAPS {
                    state.gaps = 0;
                }
                let now = state.now;
                let late = again.iter().filter(|(_, at)| **at <= now);
                state.ears[0].due.extend(late.map(|(job, _)| job.clone()));
                (state.version, now)
            };
            for _ in 0..40 {
                let due = self.world.state().ears[0].due.pop_first();
                let Some(job) = due else { break };
                match self.pass(&job) {
                    None | Some(Ok(Requeue::AwaitChange)) => again.remove(&job),
                    Some(Ok(Requeue::After(pause))) => {
                        let pause = u64::try_from(pause.as_millis()).unwrap();
                        again.insert(job, now + pause)
                    }
                    Some(Err(_)) => again.insert(job, now),
                };
                for _ in 0..self.random.below(4) {
                    self.world.state().tell();
                }
            }
            self.world.settle();
            self.world.state().check();
            let idle = {
                let state = self.world.state();
                state.version == before
                    && state.ears[0].due.is_empty()
                    && state.ears[0].has_heard_all()
                    && !state.jobs.values().any(|job| pauses(job, state.now))
            };
            quiet = if idle { quiet + 1 } else { 0 };
            // Longer than the longest pause between attempts.
            if quiet > 4 {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    /// A pass over a job as it was heard of last, while things happen of which nobody is told meanwhile; none if there is no such job.
    fn pass(&self, job: &JobKey) -> Option<Result<Requeue, PortError>> {
        let job = self.world.state().ears[0].jobs.get(job).cloned()?;
        let operator = Arc::clone(&self.operators[0]);
        let mut pass = Box::pin(async move { operator.reconcile(&job).await });
        loop {
            if let Poll::Ready(outcome) = pass.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return Some(outcome);
            }
            self.world.stir();
        }
    }
}

/// Whether an instance of the job waits for the end of a pause.
fn pauses(job: &Value, now: u64) -> bool {
    let instances = job["status"]["instances"].as_array().into_iter().flatten();
    let mut until = instances.filter_map(|instance| instance["retryTime"].as_str());
    until.any(|until| until > time(now).as_str())
}

/// Whether a job that cannot be finished any further says what became of it, or why it waits.
fn check_settled(job: &Value, state: &State) {
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
            let by_itself = status["firstFailure"]["exitCode"]
                .as_u64()
                .is_some_and(|code| code != 0);
            assert!(!by_itself || status["firstFailure"]["log"] == "the end", "{job}");
        }
        Some("Running") if job["spec"]["jobInstances"] == 0 => {}
        Some("Pending" | "Restarting") => {
            assert!(message.starts_with("partition not ready yet!"), "{job}");
            // Others that have finished may keep what they had; but nobody waits for what is free.
            let held = state.holds.values().filter(|hold| hold.state != "waiting");
            let held: u32 = held.map(|hold| hold.wanted.size).sum();
            let mut waiting = state
                .holds
                .values()
                .filter(|hold| hold.state == "waiting" && job["metadata"]["uid"] == hold.wanted.owner.uid)
                .peekable();
            assert!(waiting.peek().is_some(), "it waits for nothing: {job}");
            for hold in waiting {
                assert!(
                    held + hold.wanted.size > state.capacity,
                    "it would fit: {hold:?}, {job}"
                );
            }
        }
        other => panic!("a job is {other:?} for ever: {job}"),
    }
}

fn live(seed: u64, reached: &mut Reached) {
    let mut life = Life::new(seed);
    life.wild(reached);
    life.calm();
    let jobs = life.world.state().jobs.clone();
    life.world.state().check_rights_at_rest();
    for job in jobs.values() {
        check_settled(job, &life.world.state());
        reached.count(&format!(
            "jobs that are {} at last",
            job["status"]["phase"].as_str().unwrap()
        ));
    }
    for job in jobs.keys() {
        life.world.delete(job);
    }
    life.rest();
    let state = life.world.state();
    assert!(state.jobs.is_empty(), "not let go of: {:?}", state.jobs);
    assert!(state.pods.is_empty(), "left behind: {:?}", state.pods.keys());
    assert!(state.holds.is_empty(), "leaked: {:?}", state.holds);
    reached.count("lives");
    *reached.0.entry("faults".into()).or_default() += state.faults;
    *reached.0.entry("writes".into()).or_default() += state.writes;
}

#[test]
fn an_operator_that_crashes_and_is_not_answered_holds_nothing_twice_and_leaks_nothing() {
    let variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match variable("IPU_OPERATOR_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("IPU_OPERATOR_CASES").unwrap_or(CASES),
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let next = std::sync::atomic::AtomicU64::new(seeds.start);
    let all = std::thread::scope(|scope| {
        let work = || {
            let mut reached = Reached::default();
            loop {
                let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if seed >= seeds.end {
                    return reached;
                }
                let lived = catch_unwind(AssertUnwindSafe(|| live(seed, &mut reached)));
                assert!(
                    lived.is_ok(),
                    "seed {seed}; again: IPU_OPERATOR_SEED={seed} cargo test -p ipu-k8s --test it operator::simulation"
                );
            }
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect::<Vec<_>>()
    });
    let mut reached = Reached::default();
    for (what, times) in all.into_iter().flat_map(|reached| reached.0) {
        *reached.0.entry(what).or_default() += times;
    }
    println!("{:?}", reached.0);
    if reached.0["lives"] >= CASES {
        for what in [
            "crashes",
            "Kubernetes Pods that others delete",
            "conflicts",
            "passes that failed",
            "faults",
            "jobs that are Failed at last",
            "jobs that others let go of",
        ] {
            assert!(
                reached.0.contains_key(what),
                "no life had any {what}: {reached:?}"
            );
        }
    }
}
