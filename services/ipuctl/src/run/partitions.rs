//! Requests, observes and releases the partitions of one run through the ledger, as the plan decides.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipu_core::{
    IpuCount, JobSpec, OnNoCapacity, Owner, PartitionFacts, PartitionId, PartitionSpec, QueueStatus, Reason,
    Request,
};
use ipu_ledger::{EnsureOutcome, Grant, Pending, Released};
use ipu_proxy_client::WaitingDocument;
use ipu_vipu_client::{GrpcController, VipuController as _};

use super::host_job::Address;
use crate::commands::gc::sweep_ledger;
use crate::connection::{Connection, HostLedger, ledger_failure};
use crate::display;
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::process::Holder;

/// Interval between two checks of an active partition, which can fail while its workers do not notice.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Interval between two sweeps of a queued run for killed runs ahead of it.
const SWEEP_INTERVAL: Duration = Duration::from_secs(2);
/// Owner kind of partitions of `ipuctl run`.
pub(crate) const OWNER_KIND: &str = "HostRun";

/// Effect of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The step changed the state.
    Changed,
    /// The step changed nothing.
    Unchanged,
}

/// The partitions of one run.
pub(crate) struct Partitions {
    ledger: HostLedger,
    controller: Arc<GrpcController>,
    output: Output,
    address: Address,
    holder: String,
    on_no_capacity: OnNoCapacity,
    facts: BTreeMap<u32, PartitionFacts>,
    /// The demands of requests of higher priority.
    preempted: BTreeMap<u32, Reason>,
    /// Last request of each instance that has or requests a partition.
    requests: BTreeMap<u32, Request>,
    checked: BTreeMap<u32, Instant>,
    /// Messages of instances that wait for the queue or the controller.
    waiting: BTreeMap<u32, String>,
    swept: Instant,
}

impl Partitions {
    pub(crate) fn new(
        connection: &Connection,
        on_no_capacity: OnNoCapacity,
        output: &Output,
    ) -> Result<Self, Failure> {
        let holder =
            Holder::own().map_err(|error| Failure::because(Code::Host, "identify this process", error))?;
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
            on_no_capacity,
            facts: BTreeMap::new(),
            preempted: BTreeMap::new(),
            requests: BTreeMap::new(),
            checked: BTreeMap::new(),
            waiting: BTreeMap::new(),
            swept: Instant::now(),
        })
    }

    /// Returns the holder token of this run in the ledger.
    pub(crate) fn holder(&self) -> &str {
        &self.holder
    }

    /// Returns the last observed state of the partitions, by instance.
    pub(crate) const fn facts(&self) -> &BTreeMap<u32, PartitionFacts> {
        &self.facts
    }

    /// Returns the demands of requests of higher priority, by instance.
    pub(crate) const fn preempted(&self) -> &BTreeMap<u32, Reason> {
        &self.preempted
    }

    /// Returns the messages of instances that wait for the queue or the controller.
    pub(crate) const fn waiting(&self) -> &BTreeMap<u32, String> {
        &self.waiting
    }

    /// Returns the address of the controller for the processes.
    pub(crate) const fn address(&self) -> &Address {
        &self.address
    }

    /// Polls partitions that are being released and, at [`CHECK_INTERVAL`], active ones.
    pub(crate) async fn observe(&mut self) -> Result<BTreeMap<u32, PartitionFacts>, Failure> {
        for (instance, request) in self.requests.clone() {
            match self.facts.get(&instance) {
                Some(PartitionFacts::Releasing) => {
                    self.release(instance, request.attempt, &request.id).await?;
                }
                Some(PartitionFacts::Active { .. }) if self.is_due(instance) => {
                    let demand = self.ledger.preemption_of(&request.id);
                    match demand.await.map_err(ledger_failure)? {
                        Some(demand) => self.preempted.insert(instance, demand.reason()),
                        None => self.preempted.remove(&instance),
                    };
                    self.request(instance, request).await?;
                }
                _ => {}
            }
        }
        let is_queued = self
            .facts
            .values()
            .any(|facts| matches!(facts, PartitionFacts::Waiting { .. }));
        if is_queued && self.swept.elapsed() >= SWEEP_INTERVAL {
            // A blocking run may have been killed.
            self.swept = Instant::now();
            sweep_ledger(&self.ledger).await?.report(&self.output);
        }
        Ok(self.facts.clone())
    }

    fn is_due(&self, instance: u32) -> bool {
        self.checked
            .get(&instance)
            .is_none_or(|at| at.elapsed() >= CHECK_INTERVAL)
    }

    /// Requests the partition of an instance for `attempt`.
    pub(crate) async fn ensure(
        &mut self,
        job: &JobSpec,
        instance: u32,
        attempt: u32,
        spec: &PartitionSpec,
    ) -> Result<Progress, Failure> {
        let mut request = Request::of_instance(owner(job), instance, spec.clone());
        request.attempt = attempt;
        request.priority = job.priority();
        request.max_runtime = job.max_runtime();
        request.account = job.account().map(str::to_owned);
        request.preemptible = job.preemptible();
        request.holder.clone_from(&self.holder);
        request.on_no_capacity = self.on_no_capacity;
        self.request(instance, request).await
    }

    async fn request(&mut self, instance: u32, request: Request) -> Result<Progress, Failure> {
        let attempt = request.attempt;
        // Recorded before the call: even a failed call may leave a partition to release.
        self.requests.insert(instance, request.clone());
        self.facts
            .entry(instance)
            .or_insert(PartitionFacts::Pending { attempt });
        self.checked.insert(instance, Instant::now());
        let outcome = self.ledger.ensure(request).await.map_err(ledger_failure)?;
        self.apply_outcome(instance, outcome).await
    }

    /// Resets the partition for `attempt`.
    pub(crate) async fn reset(
        &mut self,
        instance: u32,
        attempt: u32,
        partition: &PartitionId,
    ) -> Result<Progress, Failure> {
        let Some(request) = self.requests.get_mut(&instance) else {
            return Err(Failure::new(
                Code::Bug,
                format!("reset of partition {partition}, which was never requested"),
            ));
        };
        request.attempt = attempt;
        let owner = request.owner.clone();
        let outcome = self
            .ledger
            .reset(partition, &owner, attempt)
            .await
            .map_err(ledger_failure)?;
        self.apply_outcome(instance, outcome).await
    }

    async fn apply_outcome(&mut self, instance: u32, outcome: EnsureOutcome) -> Result<Progress, Failure> {
        let Some(request) = self.requests.get(&instance) else {
            return Ok(Progress::Unchanged);
        };
        let (attempt, size) = (request.attempt, request.spec.size);
        self.waiting.remove(&instance);
        let facts = match outcome {
            EnsureOutcome::Active(grant) => {
                self.report_active(instance, &grant).await;
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
            // A request that fits is queued again if the controller rejects it.
            EnsureOutcome::Waiting(waiting)
                if never_fits(&waiting.reason) || self.on_no_capacity == OnNoCapacity::Reject =>
            {
                return Err(rejected(size, &waiting));
            }
            EnsureOutcome::Waiting(waiting) => {
                let text = display::wait_status(&WaitingDocument::from(&waiting), &[]);
                self.waiting.insert(instance, text);
                PartitionFacts::Waiting {
                    reason: waiting.reason,
                    attempt,
                }
            }
            EnsureOutcome::Refused(waiting) => {
                self.forget(instance);
                return Err(rejected(size, &waiting));
            }
        };
        Ok(self.set_facts(instance, facts))
    }

    /// Releases the partition of an instance.
    pub(crate) async fn release(
        &mut self,
        instance: u32,
        attempt: u32,
        partition: &PartitionId,
    ) -> Result<Progress, Failure> {
        let Some(request) = self.requests.get(&instance) else {
            self.facts.remove(&instance);
            return Ok(Progress::Changed);
        };
        let released = self
            .ledger
            .release(partition, &request.owner, Some(attempt))
            .await
            .map_err(ledger_failure)?;
        match released {
            Released::InProgress { detail } => {
                self.waiting
                    .insert(instance, format!("Releasing partition {partition}: {detail}"));
                Ok(self.set_facts(instance, PartitionFacts::Releasing))
            }
            Released::Dequeued | Released::NotFound => {
                self.forget(instance);
                Ok(Progress::Changed)
            }
            _ => {
                self.output.say(&format!("partition {partition} released"));
                self.forget(instance);
                Ok(Progress::Changed)
            }
        }
    }

    /// Returns the partitions that could not be released.
    pub(crate) fn unreleased(&self) -> Vec<PartitionId> {
        self.requests.values().map(|request| request.id.clone()).collect()
    }

    fn forget(&mut self, instance: u32) {
        self.facts.remove(&instance);
        self.preempted.remove(&instance);
        self.requests.remove(&instance);
        self.checked.remove(&instance);
        self.waiting.remove(&instance);
    }

    fn set_facts(&mut self, instance: u32, facts: PartitionFacts) -> Progress {
        let previous = self.facts.insert(instance, facts.clone());
        if previous == Some(facts) {
            Progress::Unchanged
        } else {
            Progress::Changed
        }
    }

    async fn report_active(&self, instance: u32, grant: &Grant) {
        if matches!(self.facts.get(&instance), Some(PartitionFacts::Active { .. })) {
            return;
        }
        // An error here only leaves the IPUs out of the message.
        let listed = self.controller.list_partitions(None).await.unwrap_or_default();
        let partition = listed.into_iter().find(|partition| partition.id == grant.id);
        let places =
            display::places(&partition.map_or_else(|| grant.places.clone(), |partition| partition.ipus));
        let attempt = if grant.attempt == 0 {
            String::new()
        } else {
            format!(", reset for attempt {}", grant.attempt)
        };
        self.output.say(&format!(
            "partition {} is active: {places} of {}{attempt}",
            grant.id, grant.controller
        ));
    }
}

/// Returns the owner of the partitions of a job that runs on this host.
pub(crate) fn owner(job: &JobSpec) -> Owner {
    Owner {
        kind: OWNER_KIND.to_owned(),
        job: job.key().clone(),
    }
}

/// Returns whether a request with this reason can never fit.
pub(crate) fn never_fits(reason: &Reason) -> bool {
    matches!(&*reason.code, "TooLarge" | "UnknownAllocation")
}

/// Returns the failure of a request that can never fit, or that does not fit now and must not queue.
fn rejected(size: IpuCount, waiting: &QueueStatus) -> Failure {
    let reason = display::reason(&waiting.reason);
    let partition = format!("a partition of {}", display::count(size.get(), "IPU"));
    if never_fits(&waiting.reason) {
        Failure::new(Code::Impossible, format!("{partition} can never fit: {reason}"))
    } else {
        Failure::new(
            Code::NoCapacity,
            format!("{partition} does not fit now: {reason}"),
        )
    }
}
