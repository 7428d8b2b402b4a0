//! Coverage of the cases of a planner.

use std::collections::BTreeMap;
use std::fmt;

use ipu_core::{Effect, JobSpec, Observation, Plan};

use crate::rule_coverage::{RuleVerdict, rule_verdicts, rules_reached};

/// Coverage of the cases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlannerReport {
    /// Number of random observations.
    pub observations: u64,
    /// Number of histories from a random state.
    pub states: u64,
    /// Number of histories of new jobs.
    pub histories: u64,
    /// Number of plans.
    pub plans: u64,
    /// Maximum number of reconciliations until a history was quiescent.
    pub longest: u32,
    /// Number of planned effects, by name.
    pub effects: BTreeMap<&'static str, u64>,
    /// Number of plans for each reached verdict of a rule of the core.
    pub rules: BTreeMap<RuleVerdict, u64>,
}

impl PlannerReport {
    /// Returns the verdicts of the rules of the core that no plan reached.
    #[must_use]
    pub fn unreached(&self) -> Vec<RuleVerdict> {
        let all = rule_verdicts().map(|(verdict, _)| verdict);
        all.filter(|verdict| !self.rules.contains_key(verdict)).collect()
    }

    pub(super) fn record(&mut self, job: &JobSpec, observation: &Observation, plan: &Plan) {
        self.plans += 1;
        for effect in &plan.effects {
            *self.effects.entry(name(effect)).or_default() += 1;
        }
        for verdict in rules_reached(job, observation, plan) {
            *self.rules.entry(verdict).or_default() += 1;
        }
    }
}

impl fmt::Display for PlannerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            observations,
            states,
            histories,
            plans,
            longest,
            ..
        } = self;
        writeln!(
            f,
            "{plans} plans: {observations} observations, {states} histories from random states, {histories} histories of new jobs, quiescent after at most {longest} reconciliations"
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
    }
}
