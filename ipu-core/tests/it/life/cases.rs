//! The case files of `testdata/plan`: stories of a job, told in words. Their language is explained in `testdata/plan/README.md`.

use std::cell::RefCell;
use std::time::Duration;

use ipu_core::{Effect, Exit, PartitionFacts, Plan, ProcessPhase, Reason};

use super::job::job;
use super::world::{Who, World};
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
    words: Vec<String>,
    world: Option<World>,
}

impl Story {
    fn tell(&mut self, line: &str) -> String {
        let mut words = line.split_whitespace();
        let command = words.next().unwrap_or_default();
        let rest: Vec<&str> = words.collect();
        let told = match command {
            "job" | "change" => self.describe(command, &rest),
            _ => match &mut self.world {
                Some(world) => event(world, command, &rest),
                None => Err("a story begins with a job".to_string()),
            },
        };
        told.unwrap_or_else(|error| format!("error: {error}\n"))
    }

    fn describe(&mut self, command: &str, words: &[&str]) -> Result<String, String> {
        if command == "job" {
            self.words.clear();
        }
        self.words.extend(words.iter().map(ToString::to_string));
        let job = job(self.words.iter().map(String::as_str))?;
        match &mut self.world {
            Some(world) if command == "change" => world.job = job,
            _ => self.world = Some(World::new(job)),
        }
        Ok(String::new())
    }
}

fn event(world: &mut World, command: &str, rest: &[&str]) -> Result<String, String> {
    match (command, rest) {
        ("pass", []) => Ok(tell_plan(&world.pass())),
        ("crash", []) => {
            let plan = world.plan();
            plan.effects.iter().for_each(|effect| world.apply(effect));
            let effects: String = plan.effects.iter().map(tell_effect).collect();
            Ok(format!("{effects}(not recorded)\n"))
        }
        ("settle", []) => Ok(settle(world)),
        ("after", [time]) => {
            let seconds = time
                .trim_end_matches('s')
                .parse()
                .map_err(|_| format!("no time: {time}"))?;
            world.after(Duration::from_secs(seconds));
            Ok(String::new())
        }
        ("delete", []) => {
            world.seen.deleted = true;
            Ok(String::new())
        }
        ("ready", []) => {
            world.partitions_progress();
            Ok(String::new())
        }
        ("full" | "room", []) => {
            world.full = command == "full";
            Ok(String::new())
        }
        ("partition", [instance, state]) => {
            let partition = &mut world.instance(number(instance)?).partition;
            let attempt = match partition {
                PartitionFacts::Active { attempt, .. } | PartitionFacts::Pending { attempt } => *attempt,
                _ => 0,
            };
            match *state {
                "error" => {
                    let errors = vec!["IPU link down".to_string()];
                    *partition = PartitionFacts::Failed { attempt, errors };
                }
                "gone" => *partition = PartitionFacts::Absent,
                other => return Err(format!("no such state: {other}")),
            }
            Ok(String::new())
        }
        ("worker", [who, what @ ..]) => {
            let (instance, worker) = who.split_once('/').ok_or("a worker is INSTANCE/NUMBER")?;
            process(world, number(instance)?, Who::Worker(number(worker)?), what)
        }
        ("launcher", [instance, what @ ..]) => process(world, number(instance)?, Who::Launcher, what),
        _ => Err(format!("no such line: {command} {}", rest.join(" "))),
    }
}

fn process(world: &mut World, instance: u32, who: Who, what: &[&str]) -> Result<String, String> {
    let at = world.seen.now;
    if what == ["vanishes"] {
        world.forget(instance, who);
        return Ok(String::new());
    }
    let process = world.process(instance, who).ok_or("there is no such process")?;
    process.phase = match what {
        ["runs"] => ProcessPhase::Running { since: at },
        ["exits", code] => ProcessPhase::Exited {
            exit: Exit::Code(u8::try_from(number(code)?).map_err(|error| error.to_string())?),
            at,
            last_lines: String::new(),
        },
        ["killed", signal] => ProcessPhase::Exited {
            exit: Exit::Signal(u8::try_from(number(signal)?).map_err(|error| error.to_string())?),
            at,
            last_lines: String::new(),
        },
        ["lost", cause @ ..] => ProcessPhase::Lost {
            at,
            cause: cause.join(" "),
        },
        other => return Err(format!("a process does not do this: {}", other.join(" "))),
    };
    Ok(String::new())
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("no number: {text}"))
}

/// Passes until nothing happens any more without an event or time; tells every effect, and the end.
fn settle(world: &mut World) -> String {
    let mut told = String::new();
    let mut quiet = 0;
    for _ in 0..200 {
        let before = world.seen.status.clone();
        let plan = world.pass();
        let effects: String = plan.effects.iter().map(tell_effect).collect();
        let known = told.ends_with(&effects) && !effects.is_empty();
        if !known {
            told.push_str(&effects);
        }
        let moved = world.progress();
        quiet = if moved || before != plan.status || plan.wake == Some(Duration::ZERO) {
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
    if let Some(wake) = plan.wake {
        told.push_str(&format!("look again after {wake:?}\n"));
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
