//! The simulator: many seeds, the same twice, and broken schedulers that are caught.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use ipu_core::{Effect, JobSpec, Observation, PartitionFacts, Plan, ProcessPhase, plan};
use ipu_testkit::{
    Fault, PlanCheck, RepairPolicy, RuleVerdict, SimOptions, SimReport, replay_simulation, rules_reached,
    simulate_many,
};

/// How many simulations are run by default: some seconds without optimisation.
const CASES: u64 = 200;

/// Seeds that once failed.
const SEEDS: &str = include_str!("../../testdata/sim-seeds.txt");

fn cases() -> u64 {
    std::env::var("IPU_SIM_CASES").map_or(CASES, |text| text.parse().unwrap())
}

/// The seeds that once failed, and then those that `IPU_SIM_CASES` asks for.
fn seeds() -> impl Iterator<Item = u64> {
    let lines = SEEDS.lines().filter(|line| !line.starts_with('#'));
    let known = lines.map(|line| line.split_whitespace().next().unwrap().parse().unwrap());
    known.chain(0..cases())
}

/// What the default simulations cover.
struct Covered {
    report: SimReport,
    /// How many plans showed each verdict of the rules.
    rules: BTreeMap<RuleVerdict, u64>,
}

/// The default simulations: run once for all tests that ask.
fn covered() -> &'static Covered {
    static COVERED: OnceLock<Covered> = OnceLock::new();
    COVERED.get_or_init(|| {
        let rules: Arc<Mutex<BTreeMap<RuleVerdict, u64>>> = Arc::default();
        let counts = Arc::clone(&rules);
        let mut options = SimOptions::default();
        options.on_plan = Some(Arc::new(move |job: &JobSpec, seen: &Observation, plan: &Plan| {
            let reached = rules_reached(job, seen, plan);
            let mut counts = counts.lock().unwrap();
            for verdict in reached {
                *counts.entry(verdict).or_default() += 1;
            }
        }));
        let report = match simulate_many(seeds(), &options) {
            Ok(report) => report,
            Err(failure) => panic!("{failure}"),
        };
        let rules = rules.lock().unwrap().clone();
        Covered { report, rules }
    })
}

fn default_report() -> &'static SimReport {
    &covered().report
}

/// How many plans of the default simulations showed each verdict of the rules.
pub(crate) fn simulated_rules() -> &'static BTreeMap<RuleVerdict, u64> {
    &covered().rules
}

#[test]
fn simulated_schedulers_share_nothing_and_leak_nothing() {
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
fn every_hold_of_many_lives_is_compared_with_its_record() {
    let report = default_report();
    assert!(report.holds > 2 * report.cases, "{} holds", report.holds);
}

#[test]
fn a_simulation_of_the_same_seed_is_the_same_to_the_byte() {
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

/// Where the table of what is covered stands, between these two lines.
const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/dev/simulation.md");
const BEGIN: &str = "<!-- coverage: UPDATE=1 cargo test -p ipu-testkit --test it simulat -->\n";
const END: &str = "<!-- end of coverage -->\n";

/// A count by its order of magnitude, so that the table does not change with every line of the simulator.
fn about(count: u64) -> String {
    format!("~{}", 10_u64.pow(count.max(1).ilog10()))
}

/// The table, and what of it was never reached.
fn table(report: &SimReport) -> (String, Vec<String>) {
    let mut missing = Vec::new();
    let mut cell = |name: String, count: Option<&u64>| match count {
        Some(count) => about(*count),
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
    let head = |what: &str, faults: &[&str]| {
        format!(
            "\n| {what} | {} |\n|---|{}\n",
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

/// The table without its numbers, which are not compared.
fn rows(table: &str) -> String {
    let digits = |c: &char| !c.is_ascii_digit();
    table.chars().filter(digits).collect()
}

#[test]
fn simulations_reach_every_move_of_the_ledger_and_every_fault_everywhere() {
    let (table, missing) = table(default_report());
    assert_eq!(missing, Vec::<String>::new(), "never reached");
    let docs = std::fs::read_to_string(DOCS).unwrap();
    let (before, rest) = docs.split_once(BEGIN).unwrap();
    let (stands, after) = rest.split_once(END).unwrap();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(DOCS, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(rows(stands), rows(&table), "UPDATE=1 writes it");
}

/// The invariant that breaks if `options` are used, within the default seeds.
fn found_with(options: &SimOptions) -> &'static str {
    match simulate_many(0..CASES, options) {
        Ok(report) => panic!("nothing was found: {report}"),
        Err(failure) => failure.invariant,
    }
}

/// Drivers that trust a planner, which sees and does what `see` and `change` make of the truth.
fn trusting(
    see: impl Fn(&mut Observation) + Send + Sync + 'static,
    change: impl Fn(&JobSpec, &mut Plan) + Send + Sync + 'static,
) -> SimOptions {
    let mut options = SimOptions::default();
    options.plan_check = PlanCheck::Trust;
    options.planner = Arc::new(move |job: &JobSpec, seen: &Observation| {
        let mut own = seen.clone();
        see(&mut own);
        let mut plan = plan(job, &own);
        change(job, &mut plan);
        plan
    });
    options
}

/// The partitions of `seen`, each with the attempt that is recorded of its instance.
fn each_partition(seen: &mut Observation, change: impl Fn(u32, &mut PartitionFacts)) {
    for facts in &mut seen.instances {
        let recorded = seen
            .status
            .instances
            .iter()
            .find(|known| known.index == facts.index);
        change(recorded.map_or(0, |known| known.attempt), &mut facts.partition);
    }
}

#[test]
fn a_scheduler_that_releases_before_its_workers_are_gone_is_caught() {
    let options = trusting(
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
    assert_eq!(found_with(&options), "nothing_is_taken_from_under_workers");
}

#[test]
fn a_scheduler_that_never_repairs_is_caught() {
    let mut options = SimOptions::default();
    options.repair = RepairPolicy::Never;
    let found = found_with(&options);
    let named = [
        "nothing_is_leaked",
        "every_job_settles",
        "nobody_waits_for_nothing",
    ];
    assert!(named.contains(&found), "{found}");
}

#[test]
fn a_scheduler_that_takes_a_used_partition_for_a_fresh_one_is_caught() {
    let options = trusting(
        |seen| {
            each_partition(seen, |attempt, partition| {
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
    assert_eq!(found_with(&options), "granted_partitions_are_active_and_fresh");
}

#[test]
fn a_scheduler_that_starts_before_the_partition_is_ready_is_caught() {
    let options = trusting(
        |seen| {
            let since = seen.now;
            each_partition(seen, |_, partition| {
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
    assert_eq!(found_with(&options), "granted_partitions_are_active_and_fresh");
}

#[test]
fn a_scheduler_that_takes_what_is_stopping_for_gone_is_caught() {
    let options = trusting(
        |seen| {
            for facts in &mut seen.instances {
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
    assert_eq!(found_with(&options), "nothing_is_taken_from_under_workers");
}

#[test]
fn a_scheduler_that_never_gives_back_is_caught() {
    let keeps = |effect: &Effect| !matches!(effect, Effect::ReleasePartition { .. });
    let options = trusting(|_| {}, move |_, plan| plan.effects.retain(keeps));
    assert_eq!(found_with(&options), "every_job_settles");
}

#[test]
fn a_scheduler_that_gives_no_reasons_is_caught() {
    let options = trusting(|_| {}, |_, plan| plan.reasons.clear());
    assert_eq!(found_with(&options), "everybody_is_told_why");
}

#[test]
fn a_plan_that_breaks_its_own_invariants_is_not_applied() {
    let mut options = trusting(|_| {}, |_, plan| plan.effects.reverse());
    options.plan_check = PlanCheck::Check;
    assert_eq!(found_with(&options), "plans_are_legal");
}

/// The invariants that break when the ledger records other IPUs than a partition has. Which breaks first is a matter of the
/// seed.
const WRONG_IPUS: [&str; 3] = [
    "recorded_ipus_are_true",
    "no_ipu_has_two_owners",
    "cordons_name_every_holder",
];

/// A copy of the defect that assumed the owners of unknown IPUs at a free block of the ledger's choice.
#[test]
fn a_ledger_that_guesses_the_ipus_of_its_owners_is_caught() {
    let mut options = SimOptions::default();
    options.on_create = Some(Arc::new(|request, _| request.ipus.clear()));
    let found = found_with(&options);
    assert!(WRONG_IPUS.contains(&found), "{found}");
}

/// A copy of the defect that repeated an outstanding create without regard to what others use by now.
#[test]
fn a_ledger_that_leaves_the_ipus_of_a_repeated_create_to_the_controller_is_caught() {
    let mut options = SimOptions::default();
    options.on_create = Some(Arc::new(|request, before| {
        if before > 0 {
            request.ipus.clear();
        }
    }));
    let found = found_with(&options);
    assert!(WRONG_IPUS.contains(&found), "{found}");
}

/// A copy of the defect that reported a machine as drained while a create call was under way there.
#[test]
fn a_cordon_that_names_only_the_owners_of_listed_partitions_is_caught() {
    let mut options = SimOptions::default();
    options.on_cordoned = Some(Arc::new(|answer, listed| {
        answer.holders.retain(|holder| listed.contains(&holder.id));
    }));
    assert_eq!(found_with(&options), "cordons_name_every_holder");
}
