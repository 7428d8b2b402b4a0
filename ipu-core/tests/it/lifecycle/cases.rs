//! The case files of `testdata/plan`: scenarios of a job in a small command language.
//! `testdata/plan/README.md` documents the commands.

use std::cell::RefCell;
use std::time::Duration;

use ipu_core::Reason;
use ipu_core::job::{Effect, Plan};

use super::job_event::{EventEffect, JobEvent};
use super::world::JobWorld;
use super::{checked_plan, reconcile};
use crate::datadriven;

#[test]
fn the_scenarios_of_the_case_files_produce_the_expected_plans() {
    let scenario = RefCell::new(Scenario::default());
    datadriven::run("plan", |case| {
        let first = case.command.join(" ");
        let lines = [first.as_str()].into_iter().chain(case.input.lines());
        let output: String = lines
            .map(|line| scenario.borrow_mut().run_command(line))
            .collect();
        output.trim_end().to_string()
    });
}

#[derive(Default)]
struct Scenario {
    world: Option<JobWorld>,
}

impl Scenario {
    fn run_command(&mut self, line: &str) -> String {
        let mut words = line.split_whitespace();
        let command = words.next().unwrap_or_default();
        let rest: Vec<&str> = words.collect();
        let output = match (command, &mut self.world) {
            ("job", world) => JobWorld::new(rest).map(|new| {
                *world = Some(new);
                String::new()
            }),
            (_, Some(world)) => run_event(world, command, &rest),
            (_, None) => Err("a scenario starts with the command job".to_string()),
        };
        output.unwrap_or_else(|error| format!("error: {error}\n"))
    }
}

fn run_event(world: &mut JobWorld, command: &str, rest: &[&str]) -> Result<String, String> {
    match (command, rest) {
        ("pass", []) => Ok(format_plan(&reconcile(world))),
        ("crash", applied @ ([] | [_])) => {
            let plan = checked_plan(world);
            let all = plan.effects.len();
            let applied = applied.first().map_or(Ok(all), |number| number.parse());
            let applied = applied.map_err(|_| format!("not a number: {}", rest[0]))?;
            let effects = plan.effects.iter().take(applied);
            effects.clone().for_each(|effect| world.apply(effect).unwrap());
            let effects: String = effects.map(format_effect).collect();
            Ok(format!("{effects}(not recorded)\n"))
        }
        ("settle", []) => Ok(settle(world)),
        _ => {
            let line = format!("{command} {}", rest.join(" "));
            match line.parse::<JobEvent>()?.inject(world)? {
                EventEffect::Found => Ok(String::new()),
                EventEffect::Missed => Err("no such process or partition".to_string()),
            }
        }
    }
}

/// Reconciles until the job is stable without further events or time; returns all effects and the final plan.
fn settle(world: &mut JobWorld) -> String {
    let mut output = String::new();
    let mut stable_rounds = 0;
    for _ in 0..200 {
        let before = world.observation.status.clone();
        let plan = reconcile(world);
        let effects: String = plan.effects.iter().map(format_effect).collect();
        let repeated = output.ends_with(&effects) && !effects.is_empty();
        if !repeated {
            output.push_str(&effects);
        }
        let observed = world.observation.clone();
        world.progress();
        let progressed = observed != world.observation;
        stable_rounds = if progressed || before != plan.status || plan.requeue_after == Some(Duration::ZERO) {
            0
        } else {
            stable_rounds + 1
        };
        if stable_rounds == 2 || world.finalized {
            return output + &format_result(&plan);
        }
    }
    output + "it never settles\n"
}

fn format_plan(plan: &Plan) -> String {
    let effects: String = plan.effects.iter().map(format_effect).collect();
    let effects = if effects.is_empty() {
        "nothing to do\n".to_string()
    } else {
        effects
    };
    effects + &format_result(plan)
}

fn format_result(plan: &Plan) -> String {
    let status = &plan.status;
    let mut output = format!(
        "{:?} {}/{}: {}\n",
        status.phase, status.current_instances, status.desired_instances, status.message
    );
    if status.ipus_held > 0 {
        output.push_str(&format!("holds {} IPUs\n", status.ipus_held));
    }
    let Reason { code, message, .. } = &plan.reasons[0];
    output.push_str(&format!("because {code}: {message}\n"));
    for Reason { code, message, .. } in &plan.reasons[1..] {
        output.push_str(&format!("    and {code}: {message}\n"));
    }
    if let Some(wake) = plan.requeue_after {
        output.push_str(&format!("look again after {wake:?}\n"));
    }
    if plan.expired {
        output.push_str("expired\n");
    }
    output
}

fn format_effect(effect: &Effect) -> String {
    match effect {
        Effect::EnsurePartition {
            instance, attempt, ..
        } => {
            format!("ensure partition {instance} for attempt {attempt}\n")
        }
        Effect::ResetPartition {
            instance, attempt, ..
        } => {
            format!("reset partition {instance} for attempt {attempt}\n")
        }
        Effect::StartWorker {
            instance,
            worker,
            attempt,
            ..
        } => format!("start worker {instance}/{worker}, attempt {attempt}\n"),
        Effect::StartLauncher {
            instance, attempt, ..
        } => {
            format!("start launcher {instance}, attempt {attempt}\n")
        }
        Effect::StopWorker {
            instance,
            worker,
            attempt,
        } => format!("stop worker {instance}/{worker}, attempt {attempt}\n"),
        Effect::StopLauncher { instance, attempt } => {
            format!("stop launcher {instance}, attempt {attempt}\n")
        }
        Effect::ReleasePartition { instance, .. } => format!("release partition {instance}\n"),
        Effect::Finalize => "finalize\n".to_string(),
    }
}
