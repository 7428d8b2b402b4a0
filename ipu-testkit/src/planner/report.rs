//! What the cases of a planner covered.

use std::collections::BTreeMap;
use std::fmt;

use ipu_core::{Effect, JobSpec, Observation, Plan};

use crate::rule_coverage::{RuleVerdict, rule_verdicts, rules_reached};

/// What the cases covered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlannerReport {
    /// Random observations that were answered.
    pub observations: u64,
    /// Lives that began in a random state.
    pub states: u64,
    /// Lives that began with a new job.
    pub lives: u64,
    /// Plans that were made.
    pub plans: u64,
    /// The most passes that a life took to come to rest.
    pub longest: u32,
    /// How often each effect was planned, by its name.
    pub effects: BTreeMap<&'static str, u64>,
    /// How many plans showed each verdict of a rule of the core; those that none showed are absent.
    pub rules: BTreeMap<RuleVerdict, u64>,
}

impl PlannerReport {
    /// The verdicts of the rules of the core that no plan showed.
    #[must_use]
    pub fn unreached(&self) -> Vec<RuleVerdict> {
        let all = rule_verdicts().map(|(verdict, _)| verdict);
        all.filter(|verdict| !self.rules.contains_key(verdict)).collect()
    }

    pub(super) fn note(&mut self, job: &JobSpec, seen: &Observation, plan: &Plan) {
        self.plans += 1;
        for effect in &plan.effects {
            *self.effects.entry(name(effect)).or_default() += 1;
        }
        for verdict in rules_reached(job, seen, plan) {
            *self.rules.entry(verdict).or_default() += 1;
        }
    }
}

impl fmt::Display for PlannerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            observations,
            states,
            lives,
            plans,
            longest,
            ..
        } = self;
        writeln!(
            f,
            "{plans} plans: {observations} observations, {states} lives from any state, {lives} lives of new jobs, at rest after {longest} passes at most"
        )?;
        for (effect, count) in &self.effects {
            writeln!(f, "{effect}: {count}")?;
        }
        for (verdict, count) in &self.rules {
            writeln!(f, "{verdict}: {count}")?;
        }
        Ok(())
    }
}

const fn name(effect: &Effect) -> &'static str {
    match effect {
        Effect::EnsurePartition { .. } => "EnsurePartition",
        Effect::ResetPartition { .. } => "ResetPartition",
        Effect::StartWorker { .. } => "StartWorker",
        Effect::StartLauncher { .. } => "StartLauncher",
        Effect::StopWorker { .. } => "StopWorker",
        Effect::StopLauncher { .. } => "StopLauncher",
        Effect::ReleasePartition { .. } => "ReleasePartition",
        Effect::Finalize => "Finalize",
        _ => "another effect",
    }
}
