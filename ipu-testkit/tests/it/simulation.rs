//! The simulator: many seeds, determinism, and detection of defective schedulers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use ipu_core::{Effect, JobSpec, Observation, PartitionFacts, Plan, ProcessPhase, plan};
use ipu_testkit::{
    Fault, PlanCheck, RepairPolicy, RuleVerdict, SimOptions, SimReport, replay_simulation, rules_reached,
    simulate_many,
};

/// Default number of simulations: about two minutes without optimization.
const CASES: u64 = 400;

/// Seeds of earlier failures.
const SEEDS: &str = include_str!("../../testdata/sim-seeds.txt");

fn cases() -> u64 {
    std::env::var("IPU_SIM_CASES").map_or(CASES, |text| text.parse().unwrap())
}

/// Returns the seeds of earlier failures, then `IPU_SIM_CASES` seeds from `IPU_SIM_FIRST` on.
fn seeds() -> impl Iterator<Item = u64> {
    let lines = SEEDS.lines().filter(|line| !line.starts_with('#'));
    let earlier = lines.map(|line| line.split_whitespace().next().unwrap().parse().unwrap());
    let first: u64 = std::env::var("IPU_SIM_FIRST").map_or(0, |text| text.parse().unwrap());
    earlier.chain(first..first + cases())
}

/// Coverage of the default simulations.
struct Coverage {
    report: SimReport,
    /// Number of plans that reached each rule verdict.
    rules: BTreeMap<RuleVerdict, u64>,
}

/// Returns the coverage of the default simulations, which run once for all tests.
fn coverage() -> &'static Coverage {
    static COVERAGE: OnceLock<Coverage> = OnceLock::new();
    COVERAGE.get_or_init(|| {
        let rules: Arc<Mutex<BTreeMap<RuleVerdict, u64>>> = Arc::default();
        let counts = Arc::clone(&rules);
        let mut options = SimOptions::default();
        options.on_plan = Some(Arc::new(
            move |job: &JobSpec, observation: &Observation, plan: &Plan| {
                let reached = rules_reached(job, observation, plan);
                let mut counts = counts.lock().unwrap();
                for verdict in reached {
                    *counts.entry(verdict).or_default() += 1;
                }
            },
        ));
        let report = match simulate_many(seeds(), &options) {
            Ok(report) => report,
            Err(failure) => panic!("{failure}"),
        };
        let rules = rules.lock().unwrap().clone();
        Coverage { report, rules }
    })
}

fn default_report() -> &'static SimReport {
    &coverage().report
}

/// Returns the number of plans of the default simulations that reached each rule verdict.
pub(crate) fn simulated_rules() -> &'static BTreeMap<RuleVerdict, u64> {
    &coverage().rules
}

#[test]
fn simulated_schedulers_never_double_book_or_leak() {
    if let Ok(seed) = std::env::var("IPU_SIM_SEED") {
        let replay = replay_simulation(seed.parse().unwrap(), &SimOptions::default());
        println!("{}", replay.log);
        match replay.outcome {
            Ok(report) => println!("{report:#?}"),
            Err(failure) => panic!("{failure}"),
        }
        return;
    }
    println!("{}", default_report());
}

#[test]
fn every_hold_of_many_simulations_matches_its_record() {
    let report = default_report();
    assert!(report.holds > 2 * report.cases, "{} holds", report.holds);
}

#[test]
fn a_seed_determines_the_log_of_a_simulation() {
    for seed in 0..6 {
        let options = SimOptions::default();
        let (one, other) = (
            replay_simulation(seed, &options),
            replay_simulation(seed, &options),
        );
        assert_eq!(one.log, other.log, "seed {seed}");
        assert_eq!(one.outcome, other.outcome, "seed {seed}");
    }
}

/// Document with the coverage table, between these two lines.
const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/dev/simulation.md");
const BEGIN: &str = "<!-- coverage: UPDATE=1 cargo test -p ipu-testkit --test it simulat -->\n";
const END: &str = "<!-- end of coverage -->\n";

/// Returns the order of magnitude of a count, so that small changes of the simulator do not change the table.
fn magnitude(count: u64) -> String {
    format!("~{}", 10_u64.pow(count.max(1).ilog10()))
}

/// Returns the table, and its unreached cells.
fn table(report: &SimReport) -> (String, Vec<String>) {
    let mut missing = Vec::new();
    let mut cell = |name: String, count: Option<&u64>| match count {
        Some(count) => magnitude(*count),
        None => {
            missing.push(name);
            "never".to_owned()
        }
    };
    let mut text = String::from("| move of an entry of the ledger | times |\n|---|---|\n");
    for (from, to) in SimReport::TRANSITIONS {
        let count = cell(format!("{from} to {to}"), report.transitions.get(&(from, to)));
        text += &format!("| {from} → {to} | {count} |\n");
    }
    let head = |title: &str, faults: &[&str]| {
        format!(
            "\n| {title} | {} |\n|---|{}\n",
            faults.join(" | "),
            "---|".repeat(faults.len())
        )
    };
    text += &head("effect", &SimReport::EFFECT_FAULTS);
    for effect in SimReport::EFFECTS {
        let faults = SimReport::EFFECT_FAULTS;
        let cells = faults.map(|fault| {
            cell(
                format!("{fault} at {effect}"),
                report.effect_faults.get(&(fault, effect)),
            )
        });
        text += &format!("| {effect} | {} |\n", cells.join(" | "));
    }
    text += &head("call", &Fault::LABELS);
    for call in SimReport::CALLS {
        let cells = Fault::LABELS.map(|fault| {
            cell(
                format!("{fault} at {call}"),
                report.call_faults.get(&(fault, call)),
            )
        });
        text += &format!("| {call} | {} |\n", cells.join(" | "));
    }
    (text, missing)
}

/// Returns the table without its numbers, which are not compared.
fn rows(table: &str) -> String {
    let digits = |c: &char| !c.is_ascii_digit();
    table.chars().filter(digits).collect()
}

#[test]
fn simulations_reach_every_ledger_transition_and_every_fault() {
    let (table, missing) = table(default_report());
    assert_eq!(missing, Vec::<String>::new(), "never reached");
    let docs = std::fs::read_to_string(DOCS).unwrap();
    let (before, rest) = docs.split_once(BEGIN).unwrap();
    let (current, after) = rest.split_once(END).unwrap();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(DOCS, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(rows(current), rows(&table), "UPDATE=1 writes the table");
}

/// Returns the invariant that `options` violate within the default seeds.
fn violated_invariant(options: &SimOptions) -> &'static str {
    match simulate_many(0..CASES, options) {
        Ok(report) => panic!("no invariant is violated: {report}"),
        Err(failure) => failure.invariant,
    }
}

/// Returns drivers that do not check plans, with a planner whose observations and plans `observe` and
/// `change` modify.
fn unchecked_planner(
    observe: impl Fn(&mut Observation) + Send + Sync + 'static,
    change: impl Fn(&JobSpec, &mut Plan) + Send + Sync + 'static,
) -> SimOptions {
    let mut options = SimOptions::default();
    options.plan_check = PlanCheck::Trust;
    options.planner = Arc::new(move |job: &JobSpec, observation: &Observation| {
        let mut own = observation.clone();
        observe(&mut own);
        let mut plan = plan(job, &own);
        change(job, &mut plan);
        plan
    });
    options
}

/// Modifies the partitions of `observation`, each with the recorded attempt of its instance.
fn each_partition(observation: &mut Observation, change: impl Fn(u32, &mut PartitionFacts)) {
    for facts in &mut observation.instances {
        let recorded = observation
            .status
            .instances
            .iter()
            .find(|earlier| earlier.index == facts.index);
        change(
            recorded.map_or(0, |earlier| earlier.attempt),
            &mut facts.partition,
        );
    }
}

#[test]
fn a_scheduler_that_releases_before_its_workers_end_is_detected() {
    let options = unchecked_planner(
        |_| {},
        |job, plan| {
            let stopped = plan.effects.iter().find_map(|effect| match effect {
                Effect::StopWorker {
                    instance, attempt, ..
                } => Some((*instance, *attempt)),
                _ => None,
            });
            let release = stopped.map(|(instance, attempt)| Effect::ReleasePartition {
                instance,
                attempt,
                partition: job.partition_id(instance),
            });
            plan.effects.extend(release);
        },
    );
    assert_eq!(
        violated_invariant(&options),
        "no_partition_is_disturbed_under_workers"
    );
}

#[test]
fn a_scheduler_that_never_repairs_is_detected() {
    let mut options = SimOptions::default();
    options.repair = RepairPolicy::Never;
    let found = violated_invariant(&options);
    let named = [
        "nothing_is_leaked",
        "every_job_settles",
        "no_request_waits_needlessly",
    ];
    assert!(named.contains(&found), "{found}");
}

#[test]
fn a_scheduler_that_reuses_a_partition_without_a_reset_is_detected() {
    let options = unchecked_planner(
        |observation| {
            each_partition(observation, |attempt, partition| {
                if let PartitionFacts::Active {
                    attempt: made_for, ..
                } = partition
                {
                    *made_for = attempt;
                }
            });
        },
        |_, _| {},
    );
    assert_eq!(
        violated_invariant(&options),
        "granted_partitions_are_active_and_fresh"
    );
}

#[test]
fn a_scheduler_that_starts_before_the_partition_is_ready_is_detected() {
    let options = unchecked_planner(
        |observation| {
            let since = observation.now;
            each_partition(observation, |_, partition| {
                if let PartitionFacts::Pending { attempt } = *partition {
                    *partition = PartitionFacts::Active {
                        attempt,
                        since,
                        controller: "c0:8090".parse().unwrap(),
                    };
                }
            });
        },
        |_, _| {},
    );
    assert_eq!(
        violated_invariant(&options),
        "granted_partitions_are_active_and_fresh"
    );
}

#[test]
fn a_scheduler_that_ignores_stopping_processes_is_detected() {
    let options = unchecked_planner(
        |observation| {
            for facts in &mut observation.instances {
                facts
                    .workers
                    .retain(|worker| worker.phase != ProcessPhase::Stopping);
                facts
                    .launcher
                    .take_if(|launcher| launcher.phase == ProcessPhase::Stopping);
            }
        },
        |_, _| {},
    );
    assert_eq!(
        violated_invariant(&options),
        "no_partition_is_disturbed_under_workers"
    );
}

#[test]
fn a_scheduler_that_never_releases_is_detected() {
    let keeps = |effect: &Effect| !matches!(effect, Effect::ReleasePartition { .. });
    let options = unchecked_planner(|_| {}, move |_, plan| plan.effects.retain(keeps));
    assert_eq!(violated_invariant(&options), "every_job_settles");
}

#[test]
fn a_scheduler_without_reasons_is_detected() {
    let options = unchecked_planner(|_| {}, |_, plan| plan.reasons.clear());
    assert_eq!(violated_invariant(&options), "every_plan_and_wait_has_a_reason");
}

#[test]
fn a_plan_that_breaks_its_own_invariants_is_not_applied() {
    let mut options = unchecked_planner(|_| {}, |_, plan| plan.effects.reverse());
    options.plan_check = PlanCheck::Check;
    assert_eq!(violated_invariant(&options), "plans_are_legal");
}

/// Invariants that break when the ledger records other IPUs than a partition has. The first one depends on
/// the seed.
const WRONG_IPUS: [&str; 3] = [
    "recorded_ipus_are_correct",
    "no_ipu_has_two_owners",
    "cordons_name_every_holder",
];

/// Reproduces a defect that assumed the owners of unknown IPUs at a free block chosen by the ledger.
#[test]
fn a_ledger_that_guesses_the_ipus_of_its_owners_is_detected() {
    let mut options = SimOptions::default();
    options.on_create = Some(Arc::new(|request, _| request.ipus.clear()));
    let found = violated_invariant(&options);
    assert!(WRONG_IPUS.contains(&found), "{found}");
}

/// Reproduces a defect that repeated an outstanding create without checking current users of the IPUs.
#[test]
fn a_ledger_that_leaves_the_ipus_of_a_repeated_create_to_the_controller_is_detected() {
    let mut options = SimOptions::default();
    options.on_create = Some(Arc::new(|request, before| {
        if before > 0 {
            request.ipus.clear();
        }
    }));
    let found = violated_invariant(&options);
    assert!(WRONG_IPUS.contains(&found), "{found}");
}

/// Reproduces a defect that reported a machine as drained while a create call was in flight there.
#[test]
fn a_cordon_that_names_only_the_owners_of_listed_partitions_is_detected() {
    let mut options = SimOptions::default();
    options.on_cordoned = Some(Arc::new(|answer, listed| {
        answer.holders.retain(|holder| listed.contains(&holder.id));
    }));
    assert_eq!(violated_invariant(&options), "cordons_name_every_holder");
}
