//! The partitions of one run: asked for, looked at, given back through the ledger. Which and when is the plan's business.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipu_core::{
    JobSpec, OnNoCapacity, Owner, PartitionFacts, PartitionId, PartitionSpec, QueueStatus, Reason, Request,
};
use ipu_ledger::{EnsureOutcome, Grant, Pending, Released};
use ipu_vipu_client::{GrpcController, VipuController as _};

use super::host_job::Address;
use crate::commands::gc::sweep_ledger;
use crate::connection::{Connection, HostLedger, ledger_failure};
use crate::display;
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::process::Holder;

/// How often an active partition is looked at: it can come into error by itself, and the workers notice that late.
pub(crate) const CHECK: Duration = Duration::from_secs(5);
/// How often a run that waits looks whether those ahead of it were killed.
const SWEEP: Duration = Duration::from_secs(2);
/// The kind of the owner of what `ipuctl run` holds.
pub(crate) const OWNER_KIND: &str = "HostRun";

/// Whether a step changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    /// It did.
    Moved,
    /// It did not.
    Same,
}

/// The partitions of one run.
pub(crate) struct Partitions {
    ledger: HostLedger,
    controller: Arc<GrpcController>,
    output: Output,
    address: Address,
    holder: String,
    line: OnNoCapacity,
    facts: BTreeMap<u32, PartitionFacts>,
    /// The last request of each instance that has or wants a partition.
    requests: BTreeMap<u32, Request>,
    checked: BTreeMap<u32, Instant>,
    waiting: BTreeMap<u32, String>,
    swept: Instant,
}

impl Partitions {
    pub(crate) fn new(connection: &Connection, line: OnNoCapacity, output: &Output) -> Result<Self, Failure> {
        let holder =
            Holder::own().map_err(|error| Failure::because(Code::Host, "name this process", error))?;
        let address = &connection.address;
        Ok(Self {
            ledger: connection.ledger.clone(),
            controller: Arc::clone(&connection.controller),
            output: output.clone(),
            address: Address {
                host: address.host().to_owned(),
                port: address.port(),
                mark: connection.mark.clone(),
            },
            holder: holder.to_string(),
            line,
            facts: BTreeMap::new(),
            requests: BTreeMap::new(),
            checked: BTreeMap::new(),
            waiting: BTreeMap::new(),
            swept: Instant::now(),
        })
    }

    /// The token by which the ledger knows this run.
    pub(crate) fn holder(&self) -> &str {
        &self.holder
    }

    /// What was last seen of the partitions, by instance.
    pub(crate) const fn facts(&self) -> &BTreeMap<u32, PartitionFacts> {
        &self.facts
    }

    /// What is told of the instances that wait in the line.
    pub(crate) const fn waiting(&self) -> &BTreeMap<u32, String> {
        &self.waiting
    }

    /// Where processes reach the controller.
    pub(crate) const fn address(&self) -> &Address {
        &self.address
    }

    /// Looks again at what changes by itself: partitions on their way out, and now and then those in use.
    pub(crate) async fn observe(&mut self) -> Result<BTreeMap<u32, PartitionFacts>, Failure> {
        for (instance, request) in self.requests.clone() {
            match self.facts.get(&instance) {
                Some(PartitionFacts::Releasing) => {
                    self.release(instance, request.attempt, &request.id).await?;
                }
                Some(PartitionFacts::Active { .. }) if self.is_due(instance) => {
                    self.ask(instance, request).await?;
                }
                _ => {}
            }
        }
        let waits = self
            .facts
            .values()
            .any(|facts| matches!(facts, PartitionFacts::Waiting { .. }));
        if waits && self.swept.elapsed() >= SWEEP {
            // Whoever is in the way may have been killed.
            self.swept = Instant::now();
            sweep_ledger(&self.ledger, &self.output).await?;
        }
        Ok(self.facts.clone())
    }

    fn is_due(&self, instance: u32) -> bool {
        self.checked.get(&instance).is_none_or(|at| at.elapsed() >= CHECK)
    }

    /// Asks for the partition of an instance, fresh for `attempt`.
    pub(crate) async fn ensure(
        &mut self,
        job: &JobSpec,
        instance: u32,
        attempt: u32,
        spec: &PartitionSpec,
    ) -> Result<Changed, Failure> {
        let mut request = Request::of_instance(owner(job), instance, spec.clone());
        request.attempt = attempt;
        request.priority = job.priority();
        request.max_runtime = job.max_runtime();
        request.account = job.account().map(str::to_owned);
        request.preemptible = job.preemptible();
        request.holder.clone_from(&self.holder);
        request.line = self.line;
        self.ask(instance, request).await
    }

    async fn ask(&mut self, instance: u32, request: Request) -> Result<Changed, Failure> {
        let attempt = request.attempt;
        // Recorded before the call: whatever becomes of it, there may be something to release.
        self.requests.insert(instance, request.clone());
        self.facts
            .entry(instance)
            .or_insert(PartitionFacts::Pending { attempt });
        self.checked.insert(instance, Instant::now());
        let answer = self.ledger.ensure(request).await.map_err(ledger_failure)?;
        self.apply_outcome(instance, answer).await
    }

    /// Has the partition reset for `attempt`.
    pub(crate) async fn reset(
        &mut self,
        instance: u32,
        attempt: u32,
        partition: &PartitionId,
    ) -> Result<Changed, Failure> {
        let Some(request) = self.requests.get_mut(&instance) else {
            return Err(Failure::new(
                Code::Bug,
                format!("a reset of partition {partition}, which was never asked for"),
            ));
        };
        request.attempt = attempt;
        let owner = request.owner.clone();
        let answer = self
            .ledger
            .reset(partition, &owner, attempt)
            .await
            .map_err(ledger_failure)?;
        self.apply_outcome(instance, answer).await
    }

    async fn apply_outcome(&mut self, instance: u32, answer: EnsureOutcome) -> Result<Changed, Failure> {
        let Some(request) = self.requests.get(&instance) else {
            return Ok(Changed::Same);
        };
        let (attempt, size) = (request.attempt, request.spec.size);
        self.waiting.remove(&instance);
        let facts = match answer {
            EnsureOutcome::Active(grant) => {
                self.say_active(instance, &grant).await;
                PartitionFacts::Active {
                    attempt: grant.attempt,
                    since: grant.since,
                    controller: grant.controller,
                }
            }
            EnsureOutcome::Pending(Pending::Failed { errors }) => PartitionFacts::Failed { attempt, errors },
            EnsureOutcome::Pending(Pending::Releasing) => PartitionFacts::Releasing,
            EnsureOutcome::Pending(Pending::Unanswered { controller, detail }) => {
                self.waiting.insert(
                    instance,
                    format!("controller {controller} does not answer: {detail}"),
                );
                PartitionFacts::Pending { attempt }
            }
            EnsureOutcome::Pending(_) => PartitionFacts::Pending { attempt },
            EnsureOutcome::Waiting(waiting) if never_fits(&waiting.reason) => {
                return Err(refused(size, &waiting));
            }
            EnsureOutcome::Waiting(waiting) => {
                self.waiting.insert(instance, display::waiting(size, &waiting));
                PartitionFacts::Waiting {
                    reason: waiting.reason,
                    attempt,
                }
            }
            EnsureOutcome::Refused(waiting) => {
                self.forget(instance);
                return Err(refused(size, &waiting));
            }
            other => {
                return Err(Failure::new(
                    Code::Bug,
                    format!("an answer that is not known: {other:?}"),
                ));
            }
        };
        Ok(self.set_facts(instance, facts))
    }

    /// Gives the partition of an instance back.
    pub(crate) async fn release(
        &mut self,
        instance: u32,
        attempt: u32,
        partition: &PartitionId,
    ) -> Result<Changed, Failure> {
        let Some(request) = self.requests.get(&instance) else {
            self.facts.remove(&instance);
            return Ok(Changed::Moved);
        };
        let released = self
            .ledger
            .release(partition, &request.owner, Some(attempt))
            .await
            .map_err(ledger_failure)?;
        match released {
            Released::InProgress { detail } => {
                self.waiting.insert(
                    instance,
                    format!("partition {partition} is being released: {detail}"),
                );
                Ok(self.set_facts(instance, PartitionFacts::Releasing))
            }
            Released::LeftLine | Released::Nothing => {
                self.forget(instance);
                Ok(Changed::Moved)
            }
            _ => {
                self.output.say(&format!("partition {partition} released"));
                self.forget(instance);
                Ok(Changed::Moved)
            }
        }
    }

    /// Partitions that could not be given back, if any.
    pub(crate) fn left(&self) -> Vec<PartitionId> {
        self.requests.values().map(|request| request.id.clone()).collect()
    }

    fn forget(&mut self, instance: u32) {
        self.facts.remove(&instance);
        self.requests.remove(&instance);
        self.checked.remove(&instance);
        self.waiting.remove(&instance);
    }

    fn set_facts(&mut self, instance: u32, facts: PartitionFacts) -> Changed {
        let before = self.facts.insert(instance, facts.clone());
        if before == Some(facts) {
            Changed::Same
        } else {
            Changed::Moved
        }
    }

    async fn say_active(&self, instance: u32, grant: &Grant) {
        if matches!(self.facts.get(&instance), Some(PartitionFacts::Active { .. })) {
            return;
        }
        // Where it lies is worth a question and no failure.
        let listed = self.controller.list_partitions(None).await.unwrap_or_default();
        let found = listed.into_iter().find(|partition| partition.id == grant.id);
        let places = display::places(&found.map_or_else(|| grant.places.clone(), |partition| partition.ipus));
        let fresh = if grant.attempt == 0 {
            String::new()
        } else {
            format!(", fresh for attempt {}", grant.attempt)
        };
        self.output.say(&format!(
            "partition {} is active: {places} of {}{fresh}",
            grant.id, grant.controller
        ));
    }
}

/// Who holds the partitions of a job that runs on this host.
pub(crate) fn owner(job: &JobSpec) -> Owner {
    Owner {
        kind: OWNER_KIND.to_owned(),
        job: job.key().clone(),
    }
}

/// Whether waiting cannot help.
pub(crate) fn never_fits(reason: &Reason) -> bool {
    matches!(&*reason.code, "TooLarge" | "UnknownAllocation")
}

/// A request that does not fit and was not to wait.
pub(crate) fn refused(size: ipu_core::IpuCount, waiting: &QueueStatus) -> Failure {
    let (code, when) = if never_fits(&waiting.reason) {
        (Code::Impossible, "cannot fit")
    } else {
        (Code::NoRoom, "does not fit now")
    };
    let message = &waiting.reason.message;
    // The reason says what cannot be done before it says why.
    let why = message
        .strip_prefix("cannot fit")
        .and_then(|rest| rest.split_once(": "))
        .map_or(message.as_str(), |(_, why)| why);
    Failure::new(code, format!("a partition of {size} IPUs {when} because {why}"))
}
