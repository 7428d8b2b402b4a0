//! The case files of `testdata/plan`: stories of a job, told in words. Their language is explained in `testdata/plan/README.md`.

use std::cell::RefCell;
use std::time::Duration;

use ipu_core::{Effect, Plan, Reason};
use ipu_testkit::{EventEffect, JobEvent, JobWorld};

use super::{pass, plan_of};
use crate::datadriven;

#[test]
fn the_stories_of_the_case_files_come_true() {
    let story = RefCell::new(Story::default());
    datadriven::run("plan", |case| {
        let first = case.command.join(" ");
        let lines = [first.as_str()].into_iter().chain(case.input.lines());
        let told: String = lines.map(|line| story.borrow_mut().tell(line)).collect();
        told.trim_end().to_string()
    });
}

#[derive(Default)]
struct Story {
    world: Option<JobWorld>,
}

impl Story {
    fn tell(&mut self, line: &str) -> String {
        let mut words = line.split_whitespace();
        let command = words.next().unwrap_or_default();
        let rest: Vec<&str> = words.collect();
        let told = match (command, &mut self.world) {
            ("job", world) => JobWorld::new(rest).map(|new| {
                *world = Some(new);
                String::new()
            }),
            (_, Some(world)) => event(world, command, &rest),
            (_, None) => Err("a story begins with a job".to_string()),
        };
        told.unwrap_or_else(|error| format!("error: {error}\n"))
    }
}

fn event(world: &mut JobWorld, command: &str, rest: &[&str]) -> Result<String, String> {
    match (command, rest) {
        ("pass", []) => Ok(tell_plan(&pass(world))),
        ("crash", applied @ ([] | [_])) => {
            let plan = plan_of(world);
            let all = plan.effects.len();
            let applied = applied.first().map_or(Ok(all), |number| number.parse());
            let applied = applied.map_err(|_| format!("no number: {}", rest[0]))?;
            let effects = plan.effects.iter().take(applied);
            effects.clone().for_each(|effect| world.apply(effect).unwrap());
            let effects: String = effects.map(tell_effect).collect();
            Ok(format!("{effects}(not recorded)\n"))
        }
        ("settle", []) => Ok(settle(world)),
        _ => {
            let line = format!("{command} {}", rest.join(" "));
            match line.parse::<JobEvent>()?.inject(world)? {
                EventEffect::Found => Ok(String::new()),
                EventEffect::Missed => Err("there is no such process or partition".to_string()),
            }
        }
    }
}

/// Passes until nothing happens any more without an event or time; tells every effect, and the end.
fn settle(world: &mut JobWorld) -> String {
    let mut told = String::new();
    let mut quiet = 0;
    for _ in 0..200 {
        let before = world.seen.status.clone();
        let plan = pass(world);
        let effects: String = plan.effects.iter().map(tell_effect).collect();
        let known = told.ends_with(&effects) && !effects.is_empty();
        if !known {
            told.push_str(&effects);
        }
        let observed = world.seen.clone();
        world.progress();
        let moved = observed != world.seen;
        quiet = if moved || before != plan.status || plan.requeue_after == Some(Duration::ZERO) {
            0
        } else {
            quiet + 1
        };
        if quiet == 2 || world.finalized {
            return told + &tell_end(&plan);
        }
    }
    told + "it never settles\n"
}

fn tell_plan(plan: &Plan) -> String {
    let effects: String = plan.effects.iter().map(tell_effect).collect();
    let effects = if effects.is_empty() {
        "nothing to do\n".to_string()
    } else {
        effects
    };
    effects + &tell_end(plan)
}

fn tell_end(plan: &Plan) -> String {
    let status = &plan.status;
    let mut told = format!(
        "{:?} {}/{}: {}\n",
        status.phase, status.current_instances, status.desired_instances, status.message
    );
    if status.ipus_held > 0 {
        told.push_str(&format!("holds {} IPUs\n", status.ipus_held));
    }
    let Reason { code, message, .. } = &plan.reasons[0];
    told.push_str(&format!("because {code}: {message}\n"));
    for Reason { code, message, .. } in &plan.reasons[1..] {
        told.push_str(&format!("    and {code}: {message}\n"));
    }
    if let Some(wake) = plan.requeue_after {
        told.push_str(&format!("look again after {wake:?}\n"));
    }
    if plan.expired {
        told.push_str("expired\n");
    }
    told
}

fn tell_effect(effect: &Effect) -> String {
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
        other => format!("{other:?}\n"),
    }
}
