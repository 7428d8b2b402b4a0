//! Linearizability of each partition id as a register, by a search as of Wing and Gong.
//!
//! A call has two steps between its invocation and its return, in this order: *submit* may change the
//! register, *observe* reads what the answer states. The proxy moves the register by itself in two ways: a
//! pending request becomes held, a release ends. An answer is explained if some order of the steps of all
//! calls, consistent with real time, produces it. Calls without a conclusive answer may or may not have had
//! their effect.

use std::collections::{BTreeMap, BTreeSet};

use crate::crash::history::{Call, CallAnswer, Micros, Operation, StateLoss};

/// Time in microseconds within which the proxy acts on a request that it has read in time.
const EFFECT_TIME: Micros = 10_000_000;

/// Configurations at one time after which the search ends without a result. Correct runs have some dozens.
const MAX_CONFIGURATIONS: usize = 20_000;

/// Codes of requests that had no effect, and whose answer does not state the register.
const REFUSED: [&str; 4] = ["TooLate", "Starting", "Stopping", "Overloaded"];

/// State of a partition id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Register<'a> {
    Absent,
    /// Queued, being created, or being reset.
    Pending(&'a str, u32),
    Held(&'a str, u32),
    Releasing(&'a str),
}

/// The statement of a conclusive answer about the register.
#[derive(Clone, Debug)]
enum Observation<'a> {
    Is(Register<'a>),
    /// Pending or held: the controller has lost the partition.
    Failed(&'a str, u32),
    ReleasingOfAnyOwner,
    OtherOwner(&'a str),
    NewerAttempt(&'a str, u32),
    /// Nothing explains a grant to another owner or for another attempt than requested.
    Impossible,
}

/// Call as the search sees it.
struct Steps<'a> {
    call: &'a Call,
    /// Effect of the submit step, if it may have one.
    effect: Option<Operation>,
    observation: Option<Observation<'a>>,
    /// End of the time in which the call may make its steps.
    until: Micros,
}

/// A possible state of the partition, and the steps of open calls that led to it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Configuration<'a> {
    register: Register<'a>,
    /// Submitted calls with a conclusive answer.
    submitted: BTreeSet<usize>,
    /// Calls whose answer is explained.
    observed: BTreeSet<usize>,
    /// Submitted calls without a conclusive answer.
    used: BTreeSet<usize>,
}

/// Returns the number of ids, and the first answer of each id that no order explains.
pub(super) fn unexplained_answers(calls: &[Call], losses: &[StateLoss]) -> (usize, Vec<String>) {
    let mut by_id: BTreeMap<&str, Vec<Steps<'_>>> = BTreeMap::new();
    let mut violations = Vec::new();
    for call in calls {
        let code = call.answer.as_ref().and_then(|answer| answer.code.as_deref());
        if code.is_some_and(|code| REFUSED.contains(&code)) {
            continue;
        }
        let steps = Steps::of(call);
        if matches!(steps.observation, Some(Observation::Failed(..)))
            && !losses.iter().any(|loss| loss.began < call.returned)
        {
            violations.push(format!("no controller has lost its state: {}", describe(call)));
        }
        by_id.entry(&call.id).or_default().push(steps);
    }
    violations.extend(by_id.values().filter_map(|steps| search(steps).err()));
    (by_id.len(), violations)
}

impl<'a> Steps<'a> {
    fn of(call: &'a Call) -> Self {
        let observation = call.answer.as_ref().and_then(|answer| observation(call, answer));
        let is_refused = matches!(
            observation,
            Some(Observation::OtherOwner(_) | Observation::NewerAttempt(..))
        );
        Self {
            call,
            effect: Some(call.operation).filter(|operation| *operation != Operation::Get && !is_refused),
            until: match observation {
                Some(_) => call.returned,
                None => call.returned.max(call.not_after.saturating_add(EFFECT_TIME)),
            },
            observation,
        }
    }

    /// Returns the register after the call.
    fn submit(&self, register: &Register<'a>) -> Register<'a> {
        let (owner, attempt) = (&*self.call.owner, self.call.attempt);
        match (self.effect, register) {
            (Some(Operation::Put), Register::Absent) => Register::Pending(owner, attempt),
            (Some(Operation::Put), Register::Pending(of, older) | Register::Held(of, older))
                if *of == owner && *older < attempt =>
            {
                Register::Pending(owner, attempt)
            }
            (Some(Operation::Delete), Register::Pending(of, _) | Register::Held(of, _)) if *of == owner => {
                Register::Releasing(owner)
            }
            _ => register.clone(),
        }
    }
}

/// Returns what `answer` states, if it is conclusive.
fn observation<'a>(call: &'a Call, answer: &'a CallAnswer) -> Option<Observation<'a>> {
    let owner = answer.owner.as_deref().unwrap_or(&call.owner);
    let attempt = answer.attempt.unwrap_or(call.attempt);
    let is_of_caller = (owner, attempt) == (call.owner.as_str(), call.attempt);
    match (call.operation, answer.code.as_deref(), answer.state.as_deref()) {
        (Operation::Put, None, Some("active")) if !is_of_caller => Some(Observation::Impossible),
        (_, None, Some("active")) => Some(Observation::Is(Register::Held(owner, attempt))),
        (_, None, Some("waiting" | "creating" | "resetting")) => {
            Some(Observation::Is(Register::Pending(owner, attempt)))
        }
        (_, None, Some("failed")) | (_, Some("PartitionFailed"), _) => {
            Some(Observation::Failed(owner, attempt))
        }
        (Operation::Delete, None, Some("releasing")) => {
            Some(Observation::Is(Register::Releasing(&call.owner)))
        }
        (_, None, Some("releasing")) => Some(Observation::ReleasingOfAnyOwner),
        (_, None, Some("gone")) | (_, Some("NotFound"), _) => Some(Observation::Is(Register::Absent)),
        (_, Some("NotTheOwner"), _) => Some(Observation::OtherOwner(&call.owner)),
        (_, Some("OldAttempt"), _) => Some(Observation::NewerAttempt(&call.owner, call.attempt)),
        _ => None,
    }
}

impl Observation<'_> {
    fn holds_in(&self, register: &Register<'_>) -> bool {
        let owner_and_attempt = match register {
            Register::Pending(owner, attempt) | Register::Held(owner, attempt) => Some((*owner, *attempt)),
            Register::Absent | Register::Releasing(_) => None,
        };
        match self {
            Self::Is(expected) => expected == register,
            Self::Failed(owner, attempt) => owner_and_attempt == Some((owner, *attempt)),
            Self::ReleasingOfAnyOwner => matches!(register, Register::Releasing(_)),
            Self::OtherOwner(caller) => match register {
                Register::Pending(owner, _) | Register::Held(owner, _) | Register::Releasing(owner) => {
                    owner != caller
                }
                Register::Absent => false,
            },
            Self::Impossible => false,
            Self::NewerAttempt(caller, attempt) => {
                owner_and_attempt.is_some_and(|(owner, newer)| owner == *caller && newer > *attempt)
            }
        }
    }
}

/// Searches for an order that explains all answers of one id; an error names the first one that none does.
fn search(steps: &[Steps<'_>]) -> Result<(), String> {
    // An invocation before a return of the same time, so that both overlap.
    let mut events: Vec<(Micros, bool, usize)> = Vec::new();
    for (index, steps) in steps.iter().enumerate() {
        if steps.effect.is_some() || steps.observation.is_some() {
            events.push((steps.call.invoked, false, index));
            events.push((steps.until, true, index));
        }
    }
    events.sort_unstable();
    let mut search = Search {
        steps,
        open: BTreeSet::new(),
        optional: BTreeSet::new(),
    };
    let mut configurations = vec![Configuration {
        register: Register::Absent,
        submitted: BTreeSet::new(),
        observed: BTreeSet::new(),
        used: BTreeSet::new(),
    }];
    for (_, is_return, index) in events {
        let is_conclusive = steps[index].observation.is_some();
        match (is_return, is_conclusive) {
            (false, true) => {
                search.open.insert(index);
            }
            (false, false) => {
                search.optional.insert((steps[index].until, index));
            }
            (true, true) => {
                configurations = search.explain(index, configurations)?;
                search.open.remove(&index);
            }
            (true, false) => {
                search.optional.remove(&(steps[index].until, index));
                for configuration in &mut configurations {
                    configuration.used.remove(&index);
                }
            }
        }
    }
    Ok(())
}

/// Open calls at one time of the history.
struct Search<'s, 'a> {
    steps: &'s [Steps<'a>],
    /// Calls with a conclusive answer.
    open: BTreeSet<usize>,
    /// Calls without one, in the order of their end.
    optional: BTreeSet<(Micros, usize)>,
}

impl<'a> Search<'_, 'a> {
    /// Returns the configurations that explain the answer of the call `index`, without this call.
    fn explain(
        &self,
        index: usize,
        configurations: Vec<Configuration<'a>>,
    ) -> Result<Vec<Configuration<'a>>, String> {
        let before: BTreeSet<_> = configurations
            .iter()
            .map(|configuration| configuration.register.clone())
            .collect();
        let mut explained = configurations;
        for configuration in &mut explained {
            self.observe(configuration);
        }
        if !explained
            .iter()
            .all(|configuration| configuration.observed.contains(&index))
        {
            explained = self.reachable(explained)?;
            explained.retain(|configuration| configuration.observed.contains(&index));
        }
        if explained.is_empty() {
            let answer = describe(self.steps[index].call);
            return Err(format!(
                "no order explains {answer}; before it, the partition was one of {before:?}"
            ));
        }
        for configuration in &mut explained {
            configuration.submitted.remove(&index);
            configuration.observed.remove(&index);
        }
        Ok(explained)
    }

    /// Returns all configurations that steps of open calls and of the proxy reach, without those that
    /// another one [replaces](Configuration::replaces).
    fn reachable(&self, configurations: Vec<Configuration<'a>>) -> Result<Vec<Configuration<'a>>, String> {
        let mut reached: BTreeMap<(Register<'a>, BTreeSet<usize>), Vec<Configuration<'a>>> = BTreeMap::new();
        let mut count = 0;
        let mut to_visit = configurations;
        while let Some(mut configuration) = to_visit.pop() {
            self.observe(&mut configuration);
            let key = (configuration.register.clone(), configuration.submitted.clone());
            let similar = reached.entry(key).or_default();
            if similar.iter().any(|other| other.replaces(&configuration)) {
                continue;
            }
            similar.retain(|other| !configuration.replaces(other));
            similar.push(configuration.clone());
            count += 1;
            if count > MAX_CONFIGURATIONS {
                let call = self.open.first().map(|index| self.steps[*index].call);
                return Err(format!(
                    "undecided, too many possibilities before the return of {call:?}"
                ));
            }
            to_visit.extend(self.next(&configuration));
        }
        Ok(reached.into_values().flatten().collect())
    }

    /// Makes all possible observations: they change nothing, so that none is too early.
    fn observe(&self, configuration: &mut Configuration<'a>) {
        for index in &self.open {
            let steps = &self.steps[*index];
            let is_submitted = steps.effect.is_none() || configuration.submitted.contains(index);
            let observation = steps.observation.as_ref();
            if is_submitted && observation.is_some_and(|it| it.holds_in(&configuration.register)) {
                configuration.observed.insert(*index);
            }
        }
    }

    /// Returns the configurations after one more step that may change the register.
    fn next(&self, configuration: &Configuration<'a>) -> Vec<Configuration<'a>> {
        let mut next = Vec::new();
        let with = |register| Configuration {
            register,
            ..configuration.clone()
        };
        match configuration.register {
            Register::Pending(owner, attempt) => next.push(with(Register::Held(owner, attempt))),
            Register::Releasing(_) => next.push(with(Register::Absent)),
            Register::Absent | Register::Held(..) => {}
        }
        for index in self.open.difference(&configuration.submitted) {
            let steps = &self.steps[*index];
            if steps.effect.is_some() {
                let mut next_one = with(steps.submit(&configuration.register));
                next_one.submitted.insert(*index);
                next.push(next_one);
            }
        }
        // Of optional calls with the same effect, the first to end is as good as the others.
        let mut registers = BTreeSet::from([configuration.register.clone()]);
        for (_, index) in &self.optional {
            let register = self.steps[*index].submit(&configuration.register);
            if !configuration.used.contains(index) && registers.insert(register.clone()) {
                let mut next_one = with(register);
                next_one.used.insert(*index);
                next.push(next_one);
            }
        }
        next
    }
}

impl Configuration<'_> {
    /// Returns whether every continuation of `other`, which has the same register and submitted calls, is one
    /// of this configuration.
    fn replaces(&self, other: &Self) -> bool {
        self.used.is_subset(&other.used) && self.observed.is_superset(&other.observed)
    }
}

fn describe(call: &Call) -> String {
    serde_json::to_string(call).unwrap_or_default()
}
